"""Which arguments, and which parts of them such as a batch's index or its names, a function never reads.

``x, y, i = batch`` reads those parts whose variables are loaded anywhere, and ``batch["x"]`` that part. Whatever else the code
does with a parameter, and each instruction that is not known here, reads all of it.
"""

from __future__ import annotations

import functools
import inspect
from types import CodeType, FunctionType, MethodType
from typing import Any

from gradcore.engine.value import PLAIN
from gradcore.program.guarding.bytecode import READS_ALL, Step, indexed, steps_of

#: Code that may be left in the middle, when a debugger or its owner looks at its variables.
_LEFT = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: Instructions that take one value each from the stack; and those whose variable other code may read.
_STORES = frozenset(("STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "POP_TOP"))
_SEEN = frozenset(("STORE_DEREF", "STORE_GLOBAL"))
#: What may be left out of a key if it is not read, beside numbers: it holds no tensor.
_TEXTS = frozenset((str, bytes))


class Unread:
    """The arguments of a function, with None for what it never reads."""

    def __init__(self, function: Any) -> None:
        of = getattr(function, "__func__", function)
        self._function = of if isinstance(of, FunctionType) else None
        #: The first parameter of a method is no argument.
        self._first = int(isinstance(function, MethodType))
        self._code: CodeType | None = None
        #: By position and by name: the positions and keys of the parts that are read, with None among them; nothing if the
        #: argument is never read.
        self._positions: dict[int, frozenset[Any]] = {}
        self._names: dict[str, frozenset[Any]] = {}

    def _look(self, code: CodeType) -> None:
        self._code = code
        read, count = _read_of(code), code.co_argcount
        names = [*enumerate(code.co_varnames[:count + code.co_kwonlyargcount])][self._first:]
        self._positions = {k - self._first: read[name] for k, name in names if k < count and name in read}
        # The name of one that has only a position may be that of another, among those with two stars.
        self._names = {name: read[name] for k, name in names if k >= code.co_posonlyargcount and name in read}

    def seen(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """What the key of a call with these arguments is made of."""
        if self._function is not None and self._function.__code__ is not self._code:
            # The first call, or the function was given other code.
            self._look(self._function.__code__)
        positions, names = self._positions, self._names
        if not positions and not names:
            return args, kwargs
        return ([_without(a, positions[k]) if k in positions else a for k, a in enumerate(args)],
                {name: _without(a, names[name]) if name in names else a for name, a in kwargs.items()})


def _without(x: Any, read: frozenset[Any]) -> Any:
    """An argument without the parts that are not ``read``, as far as they hold no tensor. How many there are, and the keys of
    a dict, stay."""
    kind = type(x)
    if not read and _is_plain(x):
        return None
    if kind is list or kind is tuple:
        n = len(x)
        return kind([v if k in read or k - n in read or not _is_plain(v) else None for k, v in enumerate(x)])
    if kind is dict and all(type(k) is str or type(k) is int for k in x):
        return {k: v if k in read or not _is_plain(v) else None for k, v in x.items()}
    return x


def _is_plain(x: Any) -> bool:
    """Is it a number, a text or None, or a list, tuple or dict of these?"""
    kind = type(x)
    if kind is list or kind is tuple:
        return all(map(_is_plain, x))
    if kind is dict:
        return all(map(_is_plain, x)) and all(map(_is_plain, x.values()))
    return kind in PLAIN or kind in _TEXTS


@functools.lru_cache(maxsize=4096)
def _read_of(code: CodeType) -> dict[str, frozenset[Any]]:
    """By parameter of which not all is read: the positions and keys of the parts that are, with None; nothing if none is."""
    if READS_ALL & {*code.co_names, *code.co_freevars} or code.co_flags & _LEFT:
        return {}
    steps = steps_of(code)
    loaded = {*code.co_cellvars, *(s.variable for s in steps if s.opname != "STORE_FAST")} - {None}
    names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    return {name: read for name in names if name not in code.co_cellvars
            for read in [_parts(name, steps, loaded)] if read is not None}


def _parts(name: str, steps: list[Step], loaded: set[str | None]) -> frozenset[Any] | None:
    """The parts of a parameter that code reads, or None if it may read all."""
    read: set[Any] = set()
    for k, s in enumerate(steps):
        if s.variable != name:
            continue
        if s.opname != "LOAD_FAST":
            return None
        taken = indexed(steps[k + 1:k + 3])
        if taken is None:
            taken = _unpacked(steps[k + 1:], loaded)
        if taken is None:
            return None
        # None says that it has to have parts: how many, and what it is, matters.
        read |= taken | {None}
    return frozenset(read)


def _unpacked(steps: list[Step], loaded: set[str | None]) -> set[Any] | None:
    """The parts that are read if what lies on the stack is unpacked into variables by the next steps; None if it is not, or
    if all are read."""
    if not steps or steps[0].opname != "UNPACK_SEQUENCE" or steps[0].target:
        return None
    count = steps[0].arg or 0
    read: set[int] = set()
    stores = steps[1:count + 1]
    for k, s in enumerate(stores):
        # Of `_, _ = pair` Python stores one.
        if s.target or s.opname not in _STORES:
            return None
        if s.opname in _SEEN or s.variable in loaded:
            read.add(k)
    # From a list or tuple of another length they would not be unpacked, and the length is in the key.
    return read | {k - count for k in read} if len(stores) == count else None
