"""Finds where code assigns to anything but its own variables, and which of these instructions ran."""

from __future__ import annotations

import dis
import functools
import sys
from collections import Counter
from collections.abc import Container, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from gradcore.engine.sites import is_inside
from gradcore.program.libraries import is_library

#: Instructions that write outside a function; whether a cell is an enclosing function's depends on the code.
_STORES = frozenset(("STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL"))
_CELLS = frozenset(("STORE_DEREF", "DELETE_DEREF"))
_ITEMS = frozenset(("STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"))


class Assignment(NamedTuple):
    """An instruction that assigns to ``name``, with its line; ``start`` is its offset with its prefixes, ``at`` without.

    ``operator`` is the offset of the in-place operator whose result it assigns (``x.y += z``), or -1.
    """

    name: str
    line: int
    start: int
    at: int
    operator: int


def assigned(code: CodeType, containers: Container[str], keeping: bool) -> Iterator[Assignment]:
    """Attributes, globals and variables of enclosing functions that code assigns to; items of containers too.

    With ``keeping``, assignments to attributes of the first argument are left out.
    """
    return (found for found, container in _found(code, keeping) if container is None or container in containers)


# Each trace asks about all functions that ran, and to disassemble them takes longer than all else that it does.
@functools.lru_cache(maxsize=4096)
def _found(code: CodeType, keeping: bool) -> list[tuple[Assignment, str | None]]:
    """Every assignment, and for one to an item of which variable."""
    made: list[tuple[Assignment, str | None]] = []
    line, outside, start = code.co_firstlineno, "", None
    before: Any = None
    operator = -1
    # What is loaded first where an expression begins: an item's target is loaded after the value, which may load more.
    begins: dict[tuple[int, int], str] = {}
    for i in dis.get_instructions(code):
        start = i.offset if start is None else start
        if i.opname == "EXTENDED_ARG":
            continue
        line = (i.positions.lineno if i.positions else None) or line
        # Without columns (python -X no_debug_ranges), the last variable that was loaded is taken for the target.
        at = (line, i.positions.col_offset) if i.positions and i.positions.col_offset is not None else (0, i.offset)
        name, loaded = i.argval, before
        # Newer Pythons load two variables with one instruction; the second is on top of the stack.
        before = i.opname.startswith("LOAD_FAST") and (name[-1] if isinstance(name, tuple) else name)
        kept = i.opname == "STORE_ATTR" and keeping and loaded == code.co_varnames[0]
        if not kept and (i.opname in _STORES or (i.opname in _CELLS and name in code.co_freevars)):
            made.append((Assignment(str(name), line, start, i.offset, operator), None))
        if i.opname in ("LOAD_GLOBAL", "LOAD_DEREF") and name not in code.co_cellvars:
            outside = begins[at] = str(name)
        elif i.opname.startswith("LOAD_FAST"):
            begins[at] = ""
        elif i.opname in ("STORE_FAST", "STORE_NAME", "POP_TOP", "RETURN_VALUE"):
            outside = ""
        elif i.opname in _ITEMS:
            container = begins.get(at, outside)
            made.append((Assignment(f"an item of {container}", line, start, i.offset, operator), container))
        if i.opname != "SWAP":
            operator = i.offset if i.opname == "BINARY_OP" and i.argrepr.endswith("=") else -1
        start = None
    return made


@functools.lru_cache(maxsize=4096)
def _assigns(code: CodeType) -> bool:
    return any(i.opname in _STORES | _CELLS | _ITEMS for i in dis.get_instructions(code))


class Steps:
    """A context manager that records which instructions run, in those of the user's functions that assign to something.

    If a debugger or a coverage tool traces already, nothing is recorded, and every instruction is taken to have run.
    """

    def __init__(self) -> None:
        #: By code: how often the instruction at each offset ran.
        self._ran: dict[CodeType, Counter[int]] = {}

    def __enter__(self) -> Steps:
        if sys.gettrace() is None:
            # Python 3.12 follows instructions only if some frame has asked for it by now. No variable may refer to the frame
            # that it is in, which would never be freed.
            sys._getframe().f_trace_opcodes = True
            sys.settrace(self._follow)
            sys._getframe().f_trace_opcodes = False
        return self

    def __exit__(self, *exc: object) -> None:
        if sys.gettrace() == self._follow:
            sys.settrace(None)

    def _follow(self, frame: FrameType, event: str, arg: Any) -> Any:
        if is_inside(frame.f_code) or is_library(frame.f_code.co_filename) or not _assigns(frame.f_code):
            return None
        # Python 3.13 takes note of the wish for instructions only from a frame that has a function for them.
        frame.f_trace = self._note
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._note

    def _note(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            self._ran.setdefault(frame.f_code, Counter())[frame.f_lasti] += 1
        return self._note

    def changes(self, code: CodeType, of: Assignment, harmless: Counter[tuple[CodeType, int]],
                dropped: Container[tuple[CodeType, int]]) -> bool:
        """Did the assignment run more often than the runs of it, or of its operator, that were ``harmless``?

        If nothing is known of its code, only those that have ``dropped`` a gradient are taken for harmless.
        """
        ran = self._ran.get(code)
        if ran is None:
            return (code, of.at) not in dropped
        times = max(ran[at] for at in range(of.start, of.at + 1))
        return times > max(harmless[code, of.at], harmless[code, of.operator])
