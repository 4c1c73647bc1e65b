"""Guards: each remembers one thing that a traced function read, and tells whether it is still the same.

Plain data is compared by value; tensors, parameters, modules and functions by identity. What a guard asks it states as terms of
Python, which :mod:`gradcore.program.guard_terms` compiles together.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from operator import is_
from types import CellType, FunctionType
from typing import Any

import numpy as np

from gradcore.engine.owners import MOST
from gradcore.program.attributes import VALUES, attributes_of

#: Types that are compared by value.
_PLAIN = (int, float, complex, bool, str, bytes, type(None), np.generic)
#: The most items of a container that get a guard each, if they are not plain data.
MOST_INSIDE = 1000
#: The most characters of plain data in a reason.
_LONG = 200
#: Gives an object a name that terms can refer to it by.
Namer = Callable[[Any], str]


def same_memory(name: Namer, tensor: Any, storage: Any, spec: Any) -> Iterator[str]:
    yield f"{name(tensor)}.storage is {name(storage)}"
    # Other elements of the same memory, as after p.data = p.data[:4].
    yield f"{name(tensor)}.spec is {name(spec)}"


class Item:
    """Reads ``of[key]``; a function that does the same costs a guard ten times as much as the term."""

    __slots__ = ("of", "key")

    def __init__(self, of: Any, key: Any) -> None:
        self.of = of
        self.key = key

    def __call__(self) -> Any:
        return self.of[self.key]

    def term(self, name: Namer) -> str:
        return f"{name(self.of)}[{repr(self.key) if type(self.key) is str else name(self.key)}]"


class Cell:
    """Reads what a closure's cell holds."""

    __slots__ = ("cell",)

    def __init__(self, cell: CellType) -> None:
        self.cell = cell

    def __call__(self) -> Any:
        return self.cell.cell_contents

    def term(self, name: Namer) -> str:
        return f"{name(self.cell)}.cell_contents"


class Attributes:
    """Reads the ``__dict__`` of what a weak reference, or a function, gives: an object may get another one."""

    __slots__ = ("of",)

    def __init__(self, of: Callable[[], Any]) -> None:
        self.of = of

    def __call__(self) -> Any:
        return self.of().__dict__

    def term(self, name: Namer) -> str:
        return f"{name(self.of)}().__dict__"


class Guard:
    """One value that was read: its ``name`` for messages, ``look`` to read it again, what was ``seen``, how to compare."""

    __slots__ = ("name", "look", "seen", "same")

    def __init__(self, name: str, look: Callable[[], Any], seen: Any, same: Callable[[Any, Any], bool]) -> None:
        self.name = name
        self.look = look
        self.seen = seen
        self.same = same

    def holds(self) -> bool:
        try:
            return self.same(self.look(), self.seen)
        except Exception:
            return False

    def terms(self, name: Namer) -> Iterator[str]:
        now = self.look.term(name) if isinstance(self.look, (Item, Cell, Attributes)) else f"{name(self.look)}()"
        if self.same is same_object:
            yield f"{name(self.seen)}() is {now} is not None"
        elif self.same is identical:
            yield f"{now} is {name(self.seen)}"
        elif self.same is equal:
            # Immutable data mostly is the same object.
            yield f"((now := {now}) is {name(self.seen)} or {name(equal)}(now, {name(self.seen)}))"
        elif self.same is same_bytes:
            tensor, storage, spec, edge = self.seen
            yield f"{now} is {name(tensor)}"
            yield from same_memory(name, tensor, storage, spec)
            yield f"{name(tensor)}.edge is {name(edge)}"
        else:
            yield f"{name(self.same)}({now}, {name(self.seen)})"

    def values(self) -> list[Any]:
        """The tensor that is guarded, if it is one."""
        return [self.seen[0]] if self.same is same_bytes else []

    def replaced(self) -> list[Any]:
        """The storage that the guarded tensor had, if it has another one now."""
        return [self.seen[1]] if self.same is same_bytes and self.seen[0].storage is not self.seen[1] else []

    def why_not(self) -> str:
        """A sentence that says what has changed."""
        try:
            now = self.look()
        except Exception as error:
            return f"{self.name} can no longer be read: {error!r}"
        if is_plain(now) and is_plain(self.seen):
            return _difference(self.name, now, self.seen)
        return f"{self.name} is a different object"

    def refusal(self) -> str:
        """Why a run that has changed what is guarded is not replayed."""
        return f"the function changes what it reads: {self.why_not()}"


class CodeGuard(Guard):
    """A function has the code that ran: a module that is loaded again, in a notebook say, may give it another."""

    __slots__ = ("function",)

    def __init__(self, function: FunctionType) -> None:
        super().__init__(f"the code of {function.__name__}", lambda: function.__code__, function.__code__, identical)
        self.function = function

    def terms(self, name: Namer) -> Iterator[str]:
        yield f"{name(self.function)}.__code__ is {name(self.seen)}"


class Options(Guard):
    """The options of an optimizer's groups: compared after a traced run, which must not change them, but not between runs."""

    __slots__ = ()


class Draws(Guard):
    """The state of a generator or an iterator, which drawing from it changes.

    It is compared after a traced run, which must not draw; it is no reason to trace again.
    """

    __slots__ = ()

    def refusal(self) -> str:
        return f"the function draws from {self.name}, which gives different values each time"


class Opaque(Draws):
    """An object of C code, whose state no guard can see: no run of a function that refers to it is replayed."""

    __slots__ = ()

    def refusal(self) -> str:
        return f"the function refers to {self.name}, whose state no guard can see"


class Items(Guard):
    """Which objects a container has, by their ids, so that none is held: compared after a traced run, which must not change
    them, but not between runs.
    """

    __slots__ = ()

    def __init__(self, name: str, look: Callable[[], Any]) -> None:
        super().__init__(name, lambda: ids_in(look()), ids_in(look()), equal)

    def why_not(self) -> str:
        return f"{self.name} has other items, or has them in another order"


def ids_in(container: Any) -> tuple[int, ...]:
    return tuple(map(id, (*container, *container.values()) if isinstance(container, Mapping) else container))


#: Types of random generators.
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)


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


def is_plain(x: Any, depth: int = 4) -> bool:
    """Is this a number, a string, None, or a container of these that is not too large? One with attributes is an object."""
    if type(x) not in VALUES and not isinstance(x, Enum) and attributes_of(x):
        return False
    if isinstance(x, _PLAIN):
        # A structured scalar can be written to.
        return not isinstance(x, np.void)
    if depth and isinstance(x, (list, tuple, set, frozenset, deque)) and len(x) <= MOST:
        return all(is_plain(v, depth - 1) for v in x)
    return bool(depth) and isinstance(x, dict) and len(x) <= MOST and all(
        isinstance(k, _PLAIN) and is_plain(v, depth - 1) for k, v in x.items())


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
    if isinstance(now, dict):
        return len(now) == len(seen) and _all_equal(now, seen) and _all_equal(now.values(), seen.values())
    if isinstance(now, (list, tuple, deque)):
        return len(now) == len(seen) and _all_equal(now, seen)
    if isinstance(now, (set, frozenset)):
        # Their items have no order to be compared in, but 1 and 1.0 are written differently, as are 0.0 and -0.0.
        return len(now) == len(seen) and ({*map(id, now)} == {*map(id, seen)} or {*map(repr, now)} == {*map(repr, seen)})
    if not (now == seen or (now != now and seen != seen)):
        return False
    # 0.0 and -0.0 are equal too.
    return not isinstance(now, (float, complex, np.floating)) or bool(now) or str(now) == str(seen)


def _all_equal(now: Iterable[Any], seen: Iterable[Any]) -> bool:
    # Only containers were copied, so their items mostly are the same objects, and comparing ids costs a twentieth.
    return all(map(is_, now, seen)) or all(map(equal, now, seen))


def _difference(name: str, now: Any, seen: Any) -> str:
    """A sentence with the present and the former value of plain data; of long containers, of the first item that differs."""
    while len(repr(now)) > _LONG and type(now) is type(seen) and isinstance(now, (list, tuple, deque, dict)):
        keys = list(now) if isinstance(now, dict) else range(len(now))
        others = list(seen) if isinstance(seen, dict) else range(len(seen))
        key = next((k for k in keys if not equal(now[k], seen[k])), None) if keys == others else None
        if key is None:
            break
        name, now, seen = f"{name}[{key!r}]", now[key], seen[key]
    return f"{name} is {_brief(now)} and was {_brief(seen)}"


def _brief(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def identical(now: Any, seen: Any) -> bool:
    return now is seen


def same_object(now: Any, seen: Any) -> bool:
    # Both are None once the object that a weak reference leads to has gone.
    return now is not None and now is seen()


def same_method(now: Any, seen: Any) -> bool:
    return type(now) is type(seen) and bool(now == seen)


def same_of_its_class(now: Any, seen: Any) -> bool:
    return now is seen[0] and type(now) is seen[1]


def same_bytes(now: Any, seen: Any) -> bool:
    tensor, storage, spec, edge = seen
    return now is tensor and tensor.storage is storage and tensor.spec is spec and tensor.edge is edge


def same_array(now: Any, seen: Any) -> bool:
    return (isinstance(now, np.ndarray) and now.dtype == seen.dtype and now.shape == seen.shape
            and now.tobytes() == seen.tobytes())


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


def same_buffer(now: Any, seen: Any) -> bool:
    return bool(buffer_of(now) == seen)


def same_items(now: Any, seen: Any) -> bool:
    return len(now) == len(seen) and all(map(is_, now, seen))


def same_entries(now: Any, seen: Any) -> bool:
    return len(now) == len(seen) and equal(tuple(now), tuple(seen)) and all(map(is_, now.values(), seen.values()))
