"""The instructions of Python's bytecode, under names that its versions share."""

from __future__ import annotations

import dis
import sys
from types import CodeType
from typing import Any, NamedTuple

#: By the names that Python 3.14 and 3.15 give them, what loads a constant or a local variable, too.
_LOADS = {"LOAD_SMALL_INT": "LOAD_CONST", "LOAD_COMMON_CONSTANT": "LOAD_CONST", "LOAD_FAST_BORROW": "LOAD_FAST"}
#: From Python 3.13 on, one instruction may do what two do with two variables.
_PAIRS = {"LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"), "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
          "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"), "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST")}
#: Where the second of two variables ends: it has the place of the first.
_UNKNOWN = (sys.maxsize, 0)
#: Instructions of a call behind those that load what is called, and its arguments.
CALLS = frozenset(("PRECALL", "CALL"))
#: Code that uses one of these may read variables that it does not name.
READS_ALL = frozenset(("locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"))


class Step(NamedTuple):
    """An instruction; one for two variables is two steps."""

    opname: str
    argval: Any
    arg: int | None
    opcode: int
    offset: int
    #: Do jumps lead here?
    target: bool
    #: Its argument as text.
    text: str
    #: Of what it computes: where that begins and ends in the source, by line and column.
    begins: tuple[int, int]
    ends: tuple[int, int]

    @property
    def names(self) -> bool:
        """Does it name an attribute, a global or a module?"""
        return self.opcode in dis.hasname

    @property
    def variable(self) -> str | None:
        """The variable of a function that it names."""
        return self.argval if type(self.argval) is str and self.opname != "LOAD_CONST" and not self.names else None

    @property
    def effect(self) -> int:
        """By how many items the stack grows."""
        return dis.stack_effect(self.opcode, self.arg if self.opcode >= dis.HAVE_ARGUMENT else None, jump=False)


def steps_of(code: CodeType) -> list[Step]:
    """The instructions of a code object. An attribute that is called is named by ``LOAD_METHOD``."""
    found: list[Step] = []
    jumped = False
    for i in dis.get_instructions(code):
        target, at = jumped or i.is_jump_target, [x or 0 for x in i.positions or (0,) * 4]
        begins, ends = (at[0], at[2]), (at[1], at[3])
        jumped = i.opname == "EXTENDED_ARG" and target
        if isinstance(i.argval, tuple) and i.opcode not in dis.hasconst and all(type(v) is str for v in i.argval):
            halves = _PAIRS.get(i.opname, [i.opname] * len(i.argval))
            found += [Step(half, name, i.arg, dis.opmap[half], i.offset, target, i.argrepr, begins, end)
                      for half, name, end in zip(halves, i.argval, (ends, _UNKNOWN), strict=True)]
        elif i.opname != "EXTENDED_ARG":
            calls = i.opname == "LOAD_ATTR" and sys.version_info >= (3, 12) and (i.arg or 0) & 1
            found.append(Step("LOAD_METHOD" if calls else _LOADS.get(i.opname, i.opname), i.argval, i.arg, i.opcode, i.offset,
                              target, i.argrepr, begins, ends))
    return found


def indexed(steps: list[Step]) -> set[Any] | None:
    """The part that the first two of these steps take by a constant, as ``[0]`` and ``["key"]`` do; None if they do not."""
    if len(steps) < 2 or any(s.target for s in steps) or steps[0].opname != "LOAD_CONST":
        return None
    part, by = steps[0].argval, steps[1]
    takes = by.opname == "BINARY_SUBSCR" or (by.opname == "BINARY_OP" and by.text == "[]")
    return {part} if takes and type(part) in (int, str) else None
