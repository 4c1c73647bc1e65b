"""Assignments of code to anything but its own variables, found among the instructions that ran."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Container, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from gradcore.engine.state import is_inside
from gradcore.program.reach import is_library

#: What can be written to outside a function; a variable of an enclosing one is another case.
_STORES = frozenset(("STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL"))
_CELLS = frozenset(("STORE_DEREF", "DELETE_DEREF"))
_ITEMS = frozenset(("STORE_SUBSCR", "DELETE_SUBSCR"))


class Assignment(NamedTuple):
    """An instruction that assigns: to what, in which line, and from where to where it stands in its code."""

    name: str
    line: int
    start: int
    at: int


def assigned(code: CodeType, containers: Container[str], keeping: bool = False) -> Iterator[Assignment]:
    """Attributes, globals and variables of enclosing functions that code assigns to; items of containers too.

    Attributes of the first argument are left out of code that is ``keeping`` something there.
    """
    line, outside, start = code.co_firstlineno, "", None
    before: Any = None
    for i in dis.get_instructions(code):
        start = i.offset if start is None else start
        if i.opname == "EXTENDED_ARG":
            continue
        line = (i.positions.lineno if i.positions else None) or line
        name, loaded = i.argval, before
        # Newer Pythons load two variables at once, the second of which lies on top.
        before = i.opname.startswith("LOAD_FAST") and (name[-1] if isinstance(name, tuple) else name)
        kept = i.opname == "STORE_ATTR" and keeping and loaded == code.co_varnames[0]
        if not kept and (i.opname in _STORES or (i.opname in _CELLS and name in code.co_freevars)):
            yield Assignment(str(name), line, start, i.offset)
        if i.opname in ("LOAD_GLOBAL", "LOAD_DEREF") and name not in code.co_cellvars:
            outside = str(name)
        elif i.opname in ("STORE_FAST", "STORE_NAME", "POP_TOP", "RETURN_VALUE"):
            outside = ""
        elif i.opname in _ITEMS and outside in containers:
            yield Assignment(f"an item of {outside}", line, start, i.offset)
        start = None


@functools.lru_cache(maxsize=4096)
def _assigns(code: CodeType) -> bool:
    return any(i.opname in _STORES | _CELLS | _ITEMS for i in dis.get_instructions(code))


class Steps:
    """A context that notes which instructions run of the user's code that assigns to something.

    Where a debugger, or who measures coverage, traces already, it notes none: all of them may have run then.
    """

    def __init__(self) -> None:
        self._ran: dict[CodeType, set[int]] = {}

    def __enter__(self) -> Steps:
        if sys.gettrace() is None:
            sys.settrace(self._follow)
        return self

    def __exit__(self, *exc: object) -> None:
        if sys.gettrace() == self._follow:
            sys.settrace(None)

    def _follow(self, frame: FrameType, event: str, arg: Any) -> Any:
        if is_inside(frame.f_code) or is_library(frame.f_code.co_filename) or not _assigns(frame.f_code):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._note

    def _note(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self._ran.setdefault(frame.f_code, set()).add(frame.f_lasti)
        return self._note

    def may_have_run(self, code: CodeType, of: Assignment) -> bool:
        """Did it run, or is nothing known of its code?"""
        ran = self._ran.get(code)
        return ran is None or not ran.isdisjoint(range(of.start, of.at + 1))
