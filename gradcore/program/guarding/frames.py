"""Looks at the frames of functions: the objects among their arguments, those in containers included, and the user's lines."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Container, Iterable, Iterator
from itertools import takewhile
from types import CodeType, FrameType, FunctionType
from typing import Any

from gradcore.cells import name_of_file
from gradcore.engine.value import Value
from gradcore.nn.module import Module
from gradcore.program.guarding.bytecode import CALLS, steps_of
from gradcore.program.guarding.libraries import is_users
from gradcore.program.guarding.values import MOST_INSIDE, VALUES, asked

#: Methods of a module that go through it from its first part on in each call.
_LISTING = frozenset(("parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children",
                      "named_children"))
#: Instructions of a call behind those that load what is called.
_CALLING = CALLS | {"LOAD_CONST"}
#: Views of a dict.
_VIEWS: tuple[type, ...] = tuple(type(view({})) for view in (dict.keys, dict.values, dict.items))
#: Containers in containers that are looked into.
_DEPTH = 4


def by_id(codes: Iterable[CodeType]) -> dict[int, CodeType]:
    """Code objects by their ids, by which to find one at each call: its hash takes long."""
    return {id(code): code for code in codes}


def upwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, the one that called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_frames(frame: FrameType, outside: int) -> list[FrameType]:
    """Those frames of the user's from this one upwards that come before the one with the id ``outside``."""
    return [f for f in takewhile(lambda f: id(f) != outside, upwards(frame)) if is_users(f.f_code)]


def iterators(frame: FrameType) -> list[Any]:
    """The arguments that are iterators or views of a dict, by which code gets objects that are not looked at there.

    The code of a comprehension is part of that around it.
    """
    return [x for name in parameters(frame.f_code) if not name.startswith(".") and name in frame.f_locals
            for x in [frame.f_locals[name]] if isinstance(x, (Iterator, *_VIEWS))]


def is_given_objects(frame: FrameType, known: Container[int]) -> bool:
    """Is there an object among the arguments, by which code may get others, but for those whose ids are ``known``?

    What a comprehension goes through is none: its code is part of that around it.
    """
    return any(type(x) not in VALUES and id(x) not in known and not isinstance(x, (Value, Module, FunctionType))
               for name, x in passed(frame) if not name.startswith("."))


def passed(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """The arguments that a frame began with, each with its name, and the items of those that are containers."""
    for name in parameters(frame.f_code):
        if name in frame.f_locals:
            yield from _inside(name, frame.f_locals[name], _DEPTH)


def parameters(code: CodeType) -> tuple[str, ...]:
    """The names of all parameters of a code object."""
    several = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:code.co_argcount + code.co_kwonlyargcount + several]


def first_argument(frame: FrameType) -> Any:
    """What a call was given first, as a method its object; None if that was nothing by position."""
    code, seen = frame.f_code, frame.f_locals
    if code.co_argcount:
        return seen.get(code.co_varnames[0])
    several = seen.get(code.co_varnames[code.co_kwonlyargcount]) if code.co_flags & inspect.CO_VARARGS else None
    return several[0] if several else None


def _inside(name: str, x: Any, depth: int) -> Iterator[tuple[str, Any]]:
    yield name, x
    if depth and isinstance(x, (list, tuple, dict, set, frozenset, deque)) and len(x) <= MOST_INSIDE:
        for item in x.values() if isinstance(x, dict) else x:
            yield from _inside(name, item, depth - 1)


def id_in(cell: Any) -> int | None:
    """The id of what a cell of a closure holds; None if it is empty."""
    try:
        return id(cell.cell_contents)
    except ValueError:
        return None


def line_of(frame: FrameType) -> str:
    return f"{name_of_file(frame.f_code.co_filename)}:{frame.f_lineno}"


def users_line(frame: FrameType) -> str:
    """The user's line that a frame of a library was called from; its own if there is none."""
    return line_of(next((f for f in upwards(frame) if is_users(f.f_code)), frame))


def is_method(code: CodeType, owner: Any) -> bool:
    """Is it the code of a method of the owner, rather than of a function whose first argument it is?"""
    kinds = type(owner).__mro__
    if code.co_qualname.rpartition(".")[0] in {kind.__qualname__ for kind in kinds}:
        # Behind a decorator, too.
        return True
    own = (asked(f, "__func__", f) for of in (owner, *kinds) for f in vars(of).values())
    return any(asked(f, "__code__") is code for f in own)


def is_generated(frame: FrameType) -> bool:
    """Is it a method that Python has written for a class of the user's, such as the comparison of a dataclass?"""
    return frame.f_code.co_filename == "<string>" and not str(frame.f_globals.get("__name__")).startswith("gradcore.")


def takes_first(frame: FrameType) -> bool:
    """Does a frame that calls ``next`` ask for the first part of a module, as in ``next(model.parameters()).device``?"""
    before = [s for s in steps_of(frame.f_code) if s.offset < frame.f_lasti and s.opname not in _CALLING]
    return bool(before) and before[-1].opname in ("LOAD_METHOD", "LOAD_ATTR") and before[-1].argval in _LISTING
