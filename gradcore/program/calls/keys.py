"""The key of a call, which says what its arguments are; and in words what one key has other than another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import numpy as np

from gradcore.devices.device import get_default_device
from gradcore.dtypes import default_float
from gradcore.engine.leaf import Leaf
from gradcore.engine.owners import MOST
from gradcore.engine.state import State, local
from gradcore.engine.value import Value
from gradcore.program.guarding.libraries import is_bound, is_opaque
from gradcore.program.guarding.values import LONG, MOST_INSIDE, VALUES, attributes_of, buffer_of, has_buffer, mark_of
from gradcore.program.replaying.arena import ALIGNED
from gradcore.program.watching.stored import Place
from gradcore.spec import TensorSpec

#: The part of a thread's state that decides what a function computes; the rest only says what bytes are attributed to, and
#: which writes count.
_STATE = [name for name in State.__slots__ if name not in ("scope", "site", "node", "launch", "placed", "remade", "sweep",
                                                             "bare", "watch", "__weakref__")]
_MODES = attrgetter(*_STATE)
#: What a key begins with; see :func:`modes`.
_NAMES = (*_STATE, "default dtype", "default device")
#: The storage of a tensor.
storage_of = attrgetter("storage")
#: Types whose values are equal only if they are the same to every op; and others that are keyed by value.
_PLAIN = frozenset((int, bool, str, bytes, type(None)))
_VALUES = (int, float, complex, str, bytes, np.dtype, np.generic, np.ndarray)
#: Types of which no attributes are looked at; a memory-mapped array has those of its file.
_WITHOUT = VALUES | {np.ndarray, np.memmap}
#: What is compared by identity.
_LEAF = "a leaf that requires a gradient"
_OBJECT = "an object"


def modes() -> list[Any]:
    """What decides, beside its arguments and what guards see, what a function computes."""
    return [*_MODES(local.state), default_float(), get_default_device().name]


def modes_left(key: Any) -> list[str]:
    """Reasons against a replay: the modes that a call with this key has left as others."""
    return [f"it leaves the mode {name} as {now}, and found {was}: set it outside"
            for name, now, was in zip(_NAMES, modes(), key, strict=False) if now != was]


class Keys:
    """Makes the parts of a program's key that stand for arguments: equal keys, one program."""

    __slots__ = ("tensors", "seen", "kept", "leaves")

    def __init__(self, leaves: bool) -> None:
        #: The tensors that a program takes, and with them those that are keyed by identity.
        self.tensors: list[Any] = []
        self.seen: list[Any] = []
        #: Objects without a value to compare, which are keyed by identity. So are leaves, which usually are parameters, unless
        #: ``leaves`` says that they are arguments like others.
        self.kept: list[Any] = []
        self.leaves = leaves

    def of(self, x: Any) -> Any:
        """The part for one argument, whose tensors and other objects are appended to the lists."""
        if isinstance(x, Value):
            if not self.leaves and x.edge is not None and type(x.edge[0]) is Leaf:
                return self._identity_of_tensor(x)
            self.tensors.append(x)
            self.seen.append(x)
            layout, edge = _layout_of(x) if x.spec.offset else x.spec, x.edge
            return layout, x.storage.device.name, type(x), edge is not None and (1 if edge[0].hooks is None else 2)
        if type(x) in _PLAIN:
            return type(x), x
        if type(x) is float:
            # 0.0 and -0.0 are equal, and NaN is not.
            return (float, x) if x and x == x else (float, str(x))
        key: tuple[Any, ...]
        if isinstance(x, _VALUES) and not (isinstance(x, np.ndarray) and (x.size > MOST or x.dtype.hasobject)):
            key = _key_of_value(x)
        elif isinstance(x, (slice, range)):
            # Equal ranges may differ in where they stop.
            return type(x), *map(self.of, (x.start, x.stop, x.step))
        elif isinstance(x, (list, tuple)):
            key = type(x), *map(self.of, x)
        elif isinstance(x, (set, frozenset)):
            # In order, in which code may go through them: equal sets may have others.
            key = type(x), *map(self._hashed, x)
        elif isinstance(x, dict):
            key = type(x), *[(k if type(k) is str else self._hashed(k), self.of(v)) for k, v in x.items()]
        else:
            return self._identity_of(x)
        if type(x) in _WITHOUT or not (own := attributes_of(x)):
            return key
        # One of a class of the user's has attributes, too.
        return *key, self.of(own)

    def _hashed(self, x: Any) -> Any:
        """The part for an item of a set, or for a key of a dict."""
        if isinstance(x, Value):
            return self._identity_of_tensor(x)
        if isinstance(x, (tuple, frozenset)):
            return type(x), *map(self._hashed, x)
        return _key_of_value(x)

    def _identity_of_tensor(self, x: Any) -> tuple[Any, ...]:
        self.kept += x, x.storage
        self.seen.append(x)
        own = getattr(x, "__dict__", None)
        return id(x), id(x.storage), x.spec, x.edge is not None, self.of(own) if own else None

    def _identity_of(self, x: Any) -> Any:
        self.kept.append(x)
        if isinstance(x, deque):
            # The same object again, if the function returns it, and its items, which may be others.
            return deque, id(x), *map(self.of, x)
        return (type(x), id(x), *buffer_of(x)) if has_buffer(x) else id(x)


def _key_of_value(x: Any) -> tuple[Any, ...]:
    if isinstance(x, (np.generic, np.ndarray)):
        return type(x), x.dtype, x.shape, x.strides, x.tobytes()
    # 1, 1.0 and True are equal, as are 0.0 and -0.0, and ranges that differ in where they stop; NaN is not.
    return (type(x), x if x == x else None, str(x)) if isinstance(x, (float, complex, range)) else (type(x), x)


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
    keys = Keys(leaves)
    return keys.of(arguments), [*map(id, keys.tensors)], [mark_of(x) for x in keys.kept if isinstance(x, LONG)]


def _layout_of(x: Any) -> TensorSpec:
    """A tensor's spec but for the place of its bytes in their storage, of which only a captured program depends on anything:
    on the alignment, which the copies of its inputs have."""
    spec: TensorSpec = x.spec
    place = 0 if x.storage.device.graphs is None else spec.offset % (ALIGNED // spec.dtype.itemsize)
    return TensorSpec.strided(spec.shape, spec.dtype, spec.strides, place)


def shared_memory(tensors: list[Any]) -> Iterator[int]:
    """For each tensor: the first that shares its memory, how many bytes it begins behind that one, and the first that it is.

    A program for arguments that share memory is not valid for arguments that do not, and the other way round.
    """
    firsts: dict[int, tuple[int, int]] = {}
    seen: dict[int, int] = {}
    for k, t in enumerate(tensors):
        start = t.spec.offset * t.spec.dtype.itemsize
        first, begin = firsts.setdefault(id(t.storage), (k, start))
        yield from (first, start - begin, seen.setdefault(id(t), k))


# -- in words ----------------------------------------------------------------------------------------------------------


def difference(key: Any, before: Any) -> str:
    """A sentence on the first difference of two keys, which begin with the modes and go on with the arguments."""
    k = next((k for k, (now, was) in enumerate(zip(key, before, strict=False)) if now != was), len(key))
    if k < len(_NAMES):
        return f"the mode is new: {_NAMES[k]} is {key[k]} and was {before[k]}"
    more = [part[0].name for part in key[len(_NAMES):] if isinstance(part, tuple) and part and isinstance(part[0], Place)
            and all(part[0] is not was[0] for was in before if isinstance(was, tuple) and was)]
    if more:
        return f"{', '.join(more)} became an argument"
    if len(key) != len(before) or k == len(key):
        return "there are more or fewer arguments or tensors in them, or they share memory in another way"
    now, was = key[k], before[k]
    if all(isinstance(x, int) for x in key[k:]):
        # Behind the arguments are numbers that say which of them share memory; an object is a number, too.
        return "an argument is another object, which is compared by identity, or the arguments share memory in another way"
    name = f"argument {k - len(_NAMES)}"
    if isinstance(now, tuple) and isinstance(was, tuple) and isinstance(now[0], Place) and now[0] is was[0]:
        name, now, was = now[0].name, now[1], was[1]
    elif _is_named(now) and _is_named(was) and now[0] == was[0]:
        name, now, was = f"argument {now[0]}", now[1], was[1]
    while _is_container(now) and _is_container(was) and now[0] is was[0] and len(now) == len(was):
        i, now, was = next((i, a, b) for i, (a, b) in enumerate(zip(now, was, strict=True)) if a != b)
        if _is_named(now) and _is_named(was) and now[0] == was[0]:
            name, now, was = f"{name}[{now[0]!r}]", now[1], was[1]
        else:
            name = f"{name}[{i - 1}]"
    texts = _text(now), _text(was)
    if texts[0] == texts[1] and texts[0] in (_LEAF, _OBJECT):
        return another(name, texts[0] == _LEAF)
    if texts[0] == texts[1] and isinstance(now[0], TensorSpec) and now[0].strides != was[0].strides:
        return f"{name}, {texts[0]}, has strides {now[0].strides} and had {was[0].strides}"
    return f"{name} is {texts[0]} and was {texts[1]}" if all(texts) and texts[0] != texts[1] else f"{name} has changed"


def another(name: str, leaf: bool) -> str:
    """A sentence on an argument that is compared by identity, as a leaf is."""
    inside = ": call x = x.detach().requires_grad_() inside of the function" if leaf else ""
    return f"{name} is another {(_LEAF if leaf else _OBJECT).split(' ', 1)[1]}, and these are compared by identity{inside}"


def _is_named(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str)


def _is_container(part: Any) -> bool:
    return isinstance(part, tuple) and part[0] in (list, tuple, dict)


def _text(part: Any) -> str:
    """An argument as a text, from its part of a key; "" for what takes too many words."""
    if isinstance(part, int):
        return _OBJECT
    if isinstance(part, tuple) and isinstance(part[0], int):
        return _LEAF
    if isinstance(part, tuple) and isinstance(part[0], TensorSpec):
        return f"{part[0]} on {part[1]}" + " that requires a gradient" * (part[3] > 0)
    if _is_container(part):
        return f"a {part[0].__name__} of {len(part) - 1}"
    if isinstance(part, tuple) and part[0] in (int, float, bool, str, type(None)):
        # The key of a zero is its text, which has a sign, and that of NaN.
        text = str(part[1]) if part[0] is float else repr(part[1])
        return text if len(text) < 100 else ""
    return ""
