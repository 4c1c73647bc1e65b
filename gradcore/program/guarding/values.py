"""Values: what is compared by its value rather than by identity, and how; which attributes an object has beside its value."""

from __future__ import annotations

import marshal
import random
import zlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from operator import is_
from types import MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np

from gradcore.devices.device import Device
from gradcore.engine.owners import MOST
from gradcore.engine.value import Value

#: Python's own types of values, of which an instance has no attributes.
VALUES = frozenset((int, float, complex, bool, str, bytes, type(None), list, tuple, set, frozenset, dict))
#: Types that are compared by value.
_PLAIN = (int, float, complex, bool, str, bytes, type(None), range, np.generic)
#: What is compared only if it is not too long: a tensor that is made of Python numbers may have them out of a longer one.
LONG = (list, tuple, deque, set, frozenset, dict, MappingProxyType, np.ndarray, bytearray, memoryview, array)
#: The most items of a container that get a guard each, if they are not plain data.
MOST_INSIDE = 1000
#: Types of random generators.
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
#: The most characters of plain data in a reason.
_LONGEST = 200

_absent = object()


def asked(x: Any, name: str, default: Any = None) -> Any:
    """``getattr`` for any object: the ``__getattr__`` of a class of the user's may raise what it likes."""
    try:
        return getattr(x, name, default)
    except Exception:
        return default


def attributes_of(x: Any) -> Mapping[str, Any] | None:
    """The attributes of an object, those in slots of its classes included; None if it can have none.

    A number, a list or an array of a class of the user's may have some beside its value.
    """
    own, kinds = asked(x, "__dict__"), type(x).__mro__ if hasattr(type(x), "__slots__") else ()
    slots = [n for c in kinds if "__slots__" in vars(c) for n, m in vars(c).items() if isinstance(m, MemberDescriptorType)]
    found = {n: asked(x, n, _absent) for n in slots}
    return (own or {}) | {n: value for n, value in found.items() if value is not _absent} if slots else own


def is_plain(x: Any, depth: int = 4) -> bool:
    """Is it a number, string, range or None, or a container of these, if not too large? One with attributes is an object."""
    if type(x) not in VALUES and not isinstance(x, Enum) and attributes_of(x):
        return False
    if isinstance(x, _PLAIN):
        # A structured scalar can be written to.
        return not isinstance(x, np.void)
    if depth and isinstance(x, (list, tuple, set, frozenset, deque)) and len(x) <= MOST:
        return all(is_plain(v, depth - 1) for v in x)
    return bool(depth) and isinstance(x, dict) and len(x) <= MOST and all(
        isinstance(k, _PLAIN) and is_plain(v, depth - 1) for k, v in x.items())


def kinds_in(x: Any) -> set[type]:
    """The classes of plain data, and of what is in it, that are not Python's own: code may read what they have."""
    found = set() if type(x) in VALUES else {type(x)}
    if isinstance(x, (list, tuple, set, frozenset, deque, dict)):
        found.update(*map(kinds_in, [*x, *x.values()] if isinstance(x, dict) else x))
    return found


def is_settings(own: Mapping[str, Any] | None, depth: int = 4, met: frozenset[int] = frozenset()) -> bool:
    """Do attributes hold no tensors, nor modules with some, nor iterators? Those change for reasons of their own."""
    return own is not None and all(_is_setting(x, depth, met) for x in own.values())


def _is_setting(x: Any, depth: int, met: frozenset[int]) -> bool:
    if is_plain(x) or isinstance(x, (type, ModuleType, Device)) or id(x) in met:
        # What leads back to an object that is looked at, as to its parent, has no more than that.
        return True
    met |= {id(x)}
    if not depth or isinstance(x, (Value, Iterator)):
        return False
    if isinstance(x, LONG) and not has_buffer(x) and not isinstance(x, np.ndarray):
        return len(x) <= MOST_INSIDE and all(
            _is_setting(v, depth - 1, met) for v in (x.values() if isinstance(x, Mapping) else x))
    own = attributes_of(x)
    return own is None or is_settings(own, depth - 1, met)


def copied(x: Any) -> Any:
    """A copy of plain data, of the same types, or itself if nothing in it can change; methods of subclasses are not called,
    which may fail without their items."""
    kind: Any = type(x)
    if isinstance(x, dict):
        base = OrderedDict if isinstance(x, OrderedDict) else dict
        made = kind.__new__(kind)
        for k, v in base.items(x):
            base.__setitem__(made, k, copied(v))
        return made
    if isinstance(x, (tuple, frozenset)):
        items = list(map(copied, x))
        # One of a subclass may have attributes, and hold on to what they refer to.
        return x if kind in (tuple, frozenset) and all(map(is_, items, x)) else (
            tuple if isinstance(x, tuple) else frozenset).__new__(kind, items)
    if isinstance(x, (list, deque, set)):
        made = kind.__new__(kind)
        if isinstance(x, deque):
            deque.__init__(made, maxlen=x.maxlen)
        for v in x:
            set.add(made, v) if isinstance(x, set) else (list if isinstance(x, list) else deque).append(made, copied(v))
        return made
    return x


def equal(now: Any, seen: Any) -> bool:
    """Is plain data what it was? Mutable containers were copied when they were seen."""
    if now is seen:
        return True
    # 1, 1.0 and True are equal, but ops treat them differently.
    if type(now) is not type(seen):
        return False
    if type(now) not in VALUES and not isinstance(now, Enum) and attributes_of(now):
        # Plain data has none.
        return False
    if isinstance(now, dict):
        return len(now) == len(seen) and _all_equal(now, seen) and _all_equal(now.values(), seen.values())
    if isinstance(now, deque) and now.maxlen != seen.maxlen:
        return False
    if isinstance(now, (list, tuple, deque)):
        return len(now) == len(seen) and _all_equal(now, seen)
    if isinstance(now, (set, frozenset)):
        # Their items have no order to be compared in, but 1 and 1.0 are written differently, as are 0.0 and -0.0.
        return len(now) == len(seen) and ({*map(id, now)} == {*map(id, seen)} or {*map(repr, now)} == {*map(repr, seen)})
    if isinstance(now, range):
        # Equal ones may differ in where they stop.
        return str(now) == str(seen)
    if not (now == seen or (now != now and seen != seen)):
        return False
    # 0.0 and -0.0 are equal too.
    return bool(now) or str(now) == str(seen)


def comparison(x: Any) -> Callable[[Any, Any], bool]:
    """How plain data is compared; an item of a class of the user's may be given an attribute, and still be the same item."""
    return still_plain if any(kind.__dictoffset__ and not issubclass(kind, Enum) for kind in kinds_in(x)) else equal


def still_plain(now: Any, seen: Any) -> bool:
    return is_plain(now) and equal(now, seen)


def _all_equal(now: Iterable[Any], seen: Iterable[Any]) -> bool:
    # Only containers were copied, so their items mostly are the same objects, and comparing ids costs a twentieth.
    return all(map(is_, now, seen)) or all(map(equal, now, seen))


def difference(name: str, now: Any, seen: Any) -> str:
    """A sentence with the present and the former value of plain data; of long containers, of the first item that differs."""
    while len(repr(now)) > _LONGEST and type(now) is type(seen) and isinstance(now, (list, tuple, deque, dict)):
        keys = list(now) if isinstance(now, dict) else range(len(now))
        others = list(seen) if isinstance(seen, dict) else range(len(seen))
        key = next((k for k in keys if not equal(now[k], seen[k])), None) if keys == others else None
        if key is None:
            break
        name, now, seen = f"{name}[{key!r}]", now[key], seen[key]
    return f"{name} is {_brief(now)} and was {_brief(seen)}"


def _brief(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def same_array(now: Any, seen: Any) -> bool:
    return (isinstance(now, np.ndarray) and now.dtype == seen.dtype and now.shape == seen.shape
            and now.tobytes() == seen.tobytes())


def ids_in(container: Any) -> tuple[int, ...]:
    return tuple(map(id, (*container, *container.values()) if isinstance(container, Mapping) else container))


def mark_of(x: Any) -> int:
    """A number that is another one when a container has been written to; of objects in it, when there are others."""
    if isinstance(x, np.ndarray):
        # What can only be read may be a large data set, in a file.
        written = x.flags.writeable and not x.dtype.hasobject
        return zlib.crc32(np.ascontiguousarray(x).view(np.uint8).data) if written else 0
    try:
        return zlib.crc32(marshal.dumps(x, 2))
    except ValueError:
        return hash(ids_in(x))


def buffer_of(x: Any) -> tuple[str, bytes]:
    """The format and the bytes of a bytearray or an array."""
    view = memoryview(x)
    return view.format, view.tobytes()


def has_buffer(x: Any) -> bool:
    """Does an object other than a NumPy array show its bytes, as a bytearray or a number of ctypes does, and are they few?"""
    try:
        return not isinstance(x, np.ndarray) and memoryview(x).nbytes <= 8 * MOST
    except (TypeError, ValueError, BufferError):
        return False


def state_of(generator: Any) -> Any:
    """A generator's state, as a value that can be compared."""
    if isinstance(generator, random.Random):
        return hash(generator.getstate())
    return _comparable(generator.get_state(legacy=False) if isinstance(generator, np.random.RandomState)
                       else generator.bit_generator.state)


def _comparable(state: Any) -> Any:
    # To print the 624 numbers of a Mersenne twister takes longer than the rest of a short trace.
    if isinstance(state, dict):
        return tuple((key, _comparable(value)) for key, value in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state
