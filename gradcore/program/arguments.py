"""The arguments of a compiled function as keys, and its results as templates."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from gradcore.engine.node import Leaf
from gradcore.engine.owners import MOST
from gradcore.engine.value import Value
from gradcore.program.instances import Instance, Instances
from gradcore.program.libraries import is_bound, is_opaque
from gradcore.program.values import LONG, MOST_INSIDE, VALUES, attributes_of, buffer_of, has_buffer
from gradcore.spec import TensorSpec
from gradcore.trees import mapped

#: Kernels of a GPU may depend on the alignment of a tensor up to this many bytes.
ALIGNED = 256
#: Types whose values are equal only if they are the same to every op; and others that are keyed by value.
_PLAIN = frozenset((int, bool, str, bytes, range, type(None)))
_VALUES = (int, float, complex, str, bytes, range, np.dtype, np.generic, np.ndarray, set, frozenset)
#: Types of which no attributes are looked at; a memory-mapped array has those of its file.
_WITHOUT = VALUES | {np.ndarray, np.memmap}
#: The default of ``gradients``: of no leaf.
_NONE: Mapping[int, Leaf] = MappingProxyType({})


class Output:
    """Takes the place of a tensor in the template of a result: an output of the program, an argument, the gradient of a
    leaf, or what is returned as it is."""

    __slots__ = ("index", "argument", "leaf", "value")

    def __init__(self, index: int = -1, argument: int = -1, leaf: Leaf | None = None, value: Any = None) -> None:
        self.index = index
        self.argument = argument
        self.leaf = leaf
        self.value = value


def key_of(x: Any, tensors: list[Any], kept: list[Any], leaves: bool) -> Any:
    """The part of a program's key that stands for an argument: equal keys, one program.

    Tensors are appended to ``tensors``; objects without a value to compare are keyed by identity and appended to ``kept``.
    So are leaves, which usually are parameters, unless ``leaves`` says that they are arguments like others.
    """
    if isinstance(x, Value):
        if not leaves and x.edge is not None and type(x.edge[0]) is Leaf:
            kept += x, x.storage
            own = getattr(x, "__dict__", None)
            return id(x), id(x.storage), x.spec, key_of(own, tensors, kept, leaves) if own else None
        tensors.append(x)
        layout, edge = _layout_of(x) if x.spec.offset else x.spec, x.edge
        return layout, x.storage.device.name, type(x), edge is not None and (1 if edge[0].hooks is None else 2)
    if type(x) in _PLAIN:
        return type(x), x
    if type(x) is float:
        # 0.0 and -0.0 are equal.
        return (float, x) if x else (float, str(x))
    key: tuple[Any, ...]
    if isinstance(x, _VALUES) and not (isinstance(x, np.ndarray) and (x.size > MOST or x.dtype.hasobject)):
        key = _key_of_value(x)
    elif isinstance(x, slice):
        return slice, *[key_of(v, tensors, kept, leaves) for v in (x.start, x.stop, x.step)]
    elif isinstance(x, (list, tuple)):
        key = type(x), *[key_of(v, tensors, kept, leaves) for v in x]
    elif isinstance(x, dict):
        # 1, 1.0 and True are equal.
        key = type(x), *[(k if type(k) is str else (type(k), k), key_of(v, tensors, kept, leaves)) for k, v in x.items()]
    else:
        return _identity_of(x, tensors, kept, leaves)
    if type(x) in _WITHOUT or not (own := attributes_of(x)):
        return key
    # One of a class of the user's has attributes, too.
    return *key, key_of(own, tensors, kept, leaves)


def _key_of_value(x: Any) -> tuple[Any, ...]:
    if isinstance(x, (np.generic, np.ndarray)):
        return type(x), x.dtype, x.shape, x.tobytes()
    if isinstance(x, (set, frozenset)):
        return type(x), frozenset((type(v), v) for v in x)
    return (type(x), x, str(x)) if isinstance(x, (float, complex)) else (type(x), x)


def _identity_of(x: Any, tensors: list[Any], kept: list[Any], leaves: bool) -> Any:
    kept.append(x)
    if isinstance(x, deque):
        # The same object again, if the function returns it, and its items, which may be others.
        return deque, id(x), *[key_of(v, tensors, kept, leaves) for v in x]
    if has_buffer(x):
        return id(x), *buffer_of(x)
    return id(x)


def unknown_among(kept: list[Any], numbers: bool) -> list[str]:
    """Reasons against a replay: arguments that a key identifies, but that give something else each time, or may.

    ``numbers`` says that the run made tensors of Python numbers.
    """
    long = [f"a {type(a).__name__}" for a in kept if isinstance(a, LONG) and not isinstance(a, deque) and not has_buffer(a)]
    if len(kept) > MOST_INSIDE:
        long.append("with many objects")
    long = [f"it makes a tensor of Python numbers, and an argument, {what}, has too many items to be compared"
            for what in long if numbers]
    return long + [f"an argument is a {type(a).__name__}, "
                   + ("which gives different values each time" if isinstance(a, Iterator) else "whose state no guard can see")
                   for a in kept if isinstance(a, Iterator) or is_opaque(a) or is_bound(a)]


def contents(arguments: Any, leaves: bool) -> Any:
    """What arguments contain, to be compared with what they contain after a run that holds their tensors."""
    tensors: list[Any] = []
    return key_of(arguments, tensors, [], leaves), [*map(id, tensors)]


def _layout_of(x: Any) -> TensorSpec:
    """A tensor's spec but for the place of its bytes in their storage, of which only a captured program depends on anything:
    on the alignment, which the copies of its inputs have."""
    spec: TensorSpec = x.spec
    place = 0 if x.storage.device.graphs is None else spec.offset % (ALIGNED // spec.dtype.itemsize)
    return TensorSpec.strided(spec.shape, spec.dtype, spec.strides, place)


def distances(tensors: list[Any]) -> Iterator[int]:
    """For each tensor: how many bytes it begins behind the first of ``tensors`` that has the same storage."""
    firsts: dict[int, int] = {}
    for t in tensors:
        start = t.spec.offset * t.spec.dtype.itemsize
        yield start - firsts.setdefault(id(t.storage), start)


def gradients_of(leaves: Iterable[Leaf]) -> dict[int, Leaf]:
    """The leaves that have a gradient, by the id of the gradient."""
    return {id(leaf.grad): leaf for leaf in leaves if leaf.grad is not None}


def template_of(x: Any, arguments: list[Any], outputs: list[Any], gradients: Mapping[int, Leaf] = _NONE,
                instances: Instances | None = None) -> Any:
    """A result with an :class:`Output` for each tensor; the tensors that the program has to return are appended to ``outputs``.

    A tensor that occurs twice is one output. One of the ``gradients`` (by id) is read from the slot of its leaf. The instances
    that ``instances`` takes become a :class:`Instance`.
    """
    if isinstance(x, Value):
        return _place(x, arguments, outputs, gradients)
    if instances is not None and instances.is_of_before(x):
        return Output(value=x)

    def inside(v: Any) -> Any:
        return template_of(v, arguments, outputs, gradients, instances)

    return instances.template(x, inside) if instances is not None and instances.takes(x) else _own(mapped(x, inside))


def _place(x: Any, arguments: list[Any], outputs: list[Any], gradients: Mapping[int, Leaf]) -> Output:
    for k, a in enumerate(arguments):
        if a is x:
            return Output(argument=k)
    if id(x) in gradients and x.edge is None:
        return Output(leaf=gradients[id(x)])
    if x.edge is not None and type(x.edge[0]) is Leaf:
        return Output(value=x)
    for k, a in enumerate(outputs):
        if a is x:
            return Output(index=k)
    outputs.append(x)
    return Output(index=len(outputs) - 1)


def _own(x: Any) -> Any:
    """A copy of a mutable object, so that what one caller writes to it no other caller sees; other objects as they are."""
    return x.copy() if isinstance(x, (set, np.ndarray)) else x


def parts(shape: Any) -> Iterator[Any]:
    """What a template holds, in order, but for the containers and instances that have parts themselves."""
    if isinstance(shape, (list, tuple, dict, Instance)):
        found = shape.items if isinstance(shape, Instance) else shape
        for v in found.values() if isinstance(found, dict) else found:
            yield from parts(v)
    else:
        yield shape


def places(shape: Any) -> Iterator[Output]:
    """The :class:`Output` objects in a template, in order."""
    return (x for x in parts(shape) if type(x) is Output)


def kept_as_they_are(shape: Any, outputs: list[Any], known: Iterable[Any]) -> None:
    """Let a template refer directly to those outputs that are among the ``known`` tensors, which existed before the run."""
    there = set(map(id, known))
    for place in places(shape):
        if place.index >= 0 and id(outputs[place.index]) in there:
            place.value = outputs[place.index]


def rebuilt(shape: Any, outputs: list[Any], arguments: list[Any]) -> Any:
    """The result that a template describes, with the given outputs and arguments in their places."""
    if type(shape) is Output:
        if shape.value is not None:
            return shape.value
        if shape.leaf is not None:
            return shape.leaf.grad
        return outputs[shape.index] if shape.index >= 0 else arguments[shape.argument]

    def inside(v: Any) -> Any:
        return rebuilt(v, outputs, arguments)

    return shape.made(inside) if type(shape) is Instance else _own(mapped(shape, inside))
