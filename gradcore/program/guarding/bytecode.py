"""What single instructions of Python's bytecode do, by the names that its versions give them."""

from __future__ import annotations

import dis
from typing import Any

#: Instructions that load a constant. Python 3.14 has one of its own for small integers, 3.15 for None and its like.
LOADS_CONSTANT = frozenset(("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT"))
#: Instructions that load a variable, or several; the last of these is on top of the stack.
LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
                   "STORE_FAST_LOAD_FAST"))
#: Instructions of a call behind those that load what is called, and its arguments.
CALLS = frozenset(("PRECALL", "CALL", "CALL_FUNCTION"))
#: Code that uses one of these may read variables that it does not name.
READS_ALL = frozenset(("locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"))


def variables_of(i: dis.Instruction) -> list[Any]:
    """The variables that an instruction names, or what it may name, if it is not one of those with constants, attributes and
    globals."""
    if i.opname in LOADS_CONSTANT or i.opcode in dis.hasname:
        return []
    return [v if type(v) is str else None for v in (i.argval if isinstance(i.argval, tuple) else (i.argval,))]


def loaded_by(i: dis.Instruction) -> list[Any]:
    """The variables that it does not only store to."""
    return ([] if i.opname in ("STORE_FAST", "STORE_FAST_STORE_FAST")
            else variables_of(i)[i.opname == "STORE_FAST_LOAD_FAST":])


def indexed(steps: list[dis.Instruction]) -> set[Any] | None:
    """The part that the first two of these steps take by a constant, as ``[0]`` and ``["key"]`` do; None if they do not."""
    if len(steps) < 2 or any(i.is_jump_target for i in steps) or steps[0].opname not in LOADS_CONSTANT:
        return None
    part, by = steps[0].argval, steps[1]
    takes = by.opname == "BINARY_SUBSCR" or (by.opname == "BINARY_OP" and by.argrepr == "[]")
    return {part} if takes and type(part) in (int, str) else None
