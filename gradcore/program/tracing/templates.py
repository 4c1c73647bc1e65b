"""The result of a traced run as a template, from which each replay makes its own.

Tensors leave their places to those of the replay. Arrays, and instances that the run makes and returns, such as
dataclasses, simple namespaces and distributions, are made again.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from weakref import getweakrefcount

import numpy as np

from gradcore.distributions import Distribution, Transform
from gradcore.engine.leaf import Leaf, leaf_of
from gradcore.engine.value import Value
from gradcore.spec import is_overlapping
from gradcore.trees import mapped

#: By these a class says that there is more to an instance than its attributes.
_OWN = ("__new__", "__getattribute__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__",
        "__deepcopy__", "__getnewargs__", "__getnewargs_ex__", "__del__")


class Output:
    """Takes the place of a tensor in the template of a result: an output of the program, an argument, the gradient of a
    leaf, or what is returned as it is."""

    __slots__ = ("index", "argument", "leaf", "value")

    def __init__(self, index: int = -1, argument: int = -1, leaf: Leaf | None = None, value: Any = None) -> None:
        self.index = index
        self.argument = argument
        self.leaf = leaf
        self.value = value


class Instance:
    """Takes the place of an instance in the template of a result: its class, and templates of its attributes by name.

    ``value`` is the instance itself until :meth:`Templates.let_go`, and after it if something else refers to it, too: then the
    trace is not replayed.
    """

    __slots__ = ("kind", "items", "value")

    def __init__(self, value: Any) -> None:
        self.kind: Any = type(value)
        self.items: dict[str, Any] = {}
        self.value = value

    def made(self, change: Callable[[Any], Any]) -> Any:
        """An instance with each attribute made from its template."""
        if self.value is not None:
            return self.value
        made = self.kind.__new__(self.kind)
        vars(made).update({name: change(v) for name, v in self.items.items()})
        return made

    def inside(self) -> list[Any]:
        """What else of the value something may refer to, and so change it."""
        return [vars(self.value)]


class Array(Instance):
    """Takes the place of an array of NumPy's in the template of a result, of which each replay returns a copy."""

    __slots__ = ("writeable",)

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.items["array"] = value.copy("K")
        # A copy can be written to, even that of what is read-only.
        self.writeable = _is_writeable(value)

    def made(self, change: Callable[[Any], Any]) -> Any:
        if self.value is not None:
            return self.value
        made = self.items["array"].copy("K")
        made.flags.writeable = self.writeable
        return made

    def inside(self) -> list[Any]:
        # An array of another kind than its base's, and one of as_strided(), have bases that have bases themselves.
        found, base = [], self.value.base
        while base is not None and type(base) is not bytes:  # nobody can change bytes
            found.append(base)
            base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
        return found


def gradients_of(leaves: Iterable[Leaf]) -> dict[int, Leaf]:
    """The leaves that have a gradient, by the id of the gradient."""
    return {id(leaf.grad): leaf for leaf in leaves if leaf.grad is not None}


class Templates:
    """Makes the template of a result, with an :class:`Output` for each tensor: one that occurs twice is one output.

    ``arguments`` are tensors that the run was given, ``gradients``, by id, those that are read from the slots of their leaves.
    ``new`` contains what the run has made, such as instances; without it they are taken as they are.
    """

    def __init__(self, arguments: list[Any], gradients: Mapping[int, Leaf] | None = None,
                 new: Container[Any] | None = None) -> None:
        self._arguments = arguments
        self._gradients = gradients or {}
        self._new = new
        #: The tensors that the program has to return.
        self.outputs: list[Any] = []
        #: Each instance comes before those among its attributes.
        self._instances: list[Instance] = []
        #: Ids of what can be changed, and stands in several places of the result: its caller changes it in all of them.
        self._repeated: set[int] = set()
        self._reasons: list[str] = []

    def of(self, result: Any) -> Any:
        """The template of a result."""
        self._repeated.update(() if self._new is None else self._twice(result, set()))
        return self._of(result)

    def _of(self, x: Any) -> Any:
        if isinstance(x, Value):
            return self._place(x)
        if self._new is not None and isinstance(x, (list, dict, set)) and x not in self._new:
            self._reasons.append(f"it returns a {type(x).__name__} that was there before, and a replay would return another "
                                 "one")
            return Output(value=x)
        if id(x) in self._repeated:
            self._reasons.append(f"it returns a {type(x).__name__} in two places, and each call makes it anew")
            return Output(value=x)
        if self._new is not None and isinstance(x, np.ndarray):
            if x.size and _is_writeable(x) and is_overlapping((*x.shape, x.itemsize), (*x.strides, 1)):
                self._reasons.append("it returns an array with an element in several places, which a copy would not have")
                return Output(value=x)
            self._instances.append(Array(x))
            return self._instances[-1]
        return self._instance(x) if self._is_made(x) else _own(mapped(x, self._of))

    def _twice(self, x: Any, met: set[int]) -> Iterator[int]:
        """The ids of what can be changed, and was met before in the result."""
        has_attributes = self._is_made(x)
        if has_attributes or isinstance(x, (list, dict, set)):
            if id(x) in met:
                yield id(x)
                return
            met.add(id(x))
        if has_attributes or isinstance(x, (list, tuple, dict)):
            inside = vars(x) if has_attributes else x
            for part in inside.values() if isinstance(inside, dict) else inside:
                yield from self._twice(part, met)

    def _is_made(self, x: Any) -> bool:
        """Is it an instance that the run has made, of a class from before, and that a replay can make?"""
        return self._new is not None and _is_of_attributes(type(x)) and x in self._new and type(x) not in self._new

    def _place(self, x: Any) -> Output:
        for k, a in enumerate(self._arguments):
            if a is x:
                return Output(argument=k)
        if id(x) in self._gradients and x.edge is None:
            return Output(leaf=self._gradients[id(x)])
        if leaf_of(x) is not None:
            return Output(value=x)
        for k, a in enumerate(self.outputs):
            if a is x:
                return Output(index=k)
        self.outputs.append(x)
        return Output(index=len(self.outputs) - 1)

    def _instance(self, x: Any) -> Instance:
        found = Instance(x)
        self._instances.append(found)
        # A transform finds its inverse again.
        found.items = {name: None if name == "_inv" and isinstance(x, Transform) else self._of(v)
                       for name, v in vars(x).items()}
        return found

    def let_go(self) -> list[str]:
        """Free the instances and arrays, to which nothing of the caller's may refer any more. Returns reasons against a replay:
        those that the user refers to elsewhere, such as a cache, which would give the same one in each call."""
        for template in self._instances:
            # An attribute counts one more reference as an argument; an item of a list, two.
            inside = template.inside()
            if (sys.getrefcount(template.value) > 2 or getweakrefcount(template.value)
                    or any(sys.getrefcount(inside[k]) > 3 for k in range(len(inside)))):
                self._reasons.append(f"it returns a {template.kind.__name__}, which something else refers to, too")
            else:
                template.value = None
        return self._reasons


def _is_writeable(x: Any) -> bool:
    """``x.flags.writeable``, which warns for what np.broadcast_arrays() returns."""
    return bool(x.flags.num & 0x400)


def _own(x: Any) -> Any:
    """A copy of a mutable object, so that what one caller writes to it no other caller sees; other objects as they are."""
    return x.copy() if isinstance(x, (set, np.ndarray)) else x


def parts(template: Any) -> Iterator[Any]:
    """What a template holds, in order, but for the containers and instances that have parts themselves."""
    if isinstance(template, (list, tuple, dict, Instance)):
        found = template.items if isinstance(template, Instance) else template
        for v in found.values() if isinstance(found, dict) else found:
            yield from parts(v)
    else:
        yield template


def outputs_in(template: Any) -> Iterator[Output]:
    """The :class:`Output` objects in a template, in order."""
    return (x for x in parts(template) if type(x) is Output)


def kept_as_they_are(template: Any, outputs: list[Any], known: Iterable[Any]) -> None:
    """Let a template refer directly to those outputs that are among the ``known`` tensors, which existed before the run."""
    there = set(map(id, known))
    for place in outputs_in(template):
        if place.index >= 0 and id(outputs[place.index]) in there:
            place.value = outputs[place.index]


def rebuilt(template: Any, outputs: list[Any], arguments: list[Any]) -> Any:
    """The result that a template describes, with the given outputs and arguments in their places."""
    if type(template) is Output:
        if template.value is not None:
            return template.value
        if template.leaf is not None:
            return template.leaf.grad
        return outputs[template.index] if template.index >= 0 else arguments[template.argument]

    def inside(v: Any) -> Any:
        return rebuilt(v, outputs, arguments)

    return template.made(inside) if isinstance(template, Instance) else _own(mapped(template, inside))


def _is_of_attributes(kind: type) -> bool:
    """Has a class instances that are only their attributes, so that an object with the same ones is another such instance?"""
    if kind is SimpleNamespace:
        return True
    return ((dataclasses.is_dataclass(kind) or issubclass(kind, (Distribution, Transform)))
            and not any(vars(c).get("__slots__") for c in kind.__mro__)
            and not any(name in vars(c) for c in kind.__mro__ if c is not object and c is not Transform for name in _OWN)
            and (kind.__setattr__ is object.__setattr__ or _is_frozen(kind)))


def _is_frozen(kind: Any) -> bool:
    """Is it a dataclass whose ``__setattr__`` only refuses, as Python has written it?"""
    params, own = getattr(kind, "__dataclass_params__", None), getattr(kind.__setattr__, "__code__", None)
    return params is not None and params.frozen and own is not None and own.co_filename == "<string>"
