"""Numbers that a function counts up or down and does not read otherwise: ``self.steps += 1``.

No op depends on such a number, so a replay counts as the function does, and the number is no reason to trace again.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable
from types import CodeType
from typing import Any, NamedTuple

from gradcore.program.names import LOADS_CONSTANT, Names

_OPERATORS = {"+=": 1, "+": 1, "-=": -1, "-": -1}
#: By instruction that stores: those that load the same variable.
_LOADS = {"STORE_ATTR": ("LOAD_ATTR",), "STORE_GLOBAL": ("LOAD_GLOBAL", "LOAD_NAME")}
#: Instructions that load a variable, whose attribute is counted.
_OWNERS = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")


class Counting(NamedTuple):
    """An instruction that stores a number plus ``by``; ``owner`` is the variable whose attribute it is, or "". ``read`` is the
    offset of the instruction that loads the number."""

    name: str
    owner: str
    by: Any
    read: int


@functools.lru_cache(maxsize=4096)
def counting(code: CodeType) -> dict[int, Counting]:
    """By offset: the instructions of a code object that store a number plus a constant."""
    steps = [i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG"]
    return {steps[k].offset: found for k in range(3, len(steps)) if (found := _counts(steps, k)) is not None}


def _counts(steps: list[dis.Instruction], k: int) -> Counting | None:
    """Is step ``k`` the end of a statement that counts?"""
    store, name = steps[k], steps[k].argval
    if store.opname not in _LOADS:
        return None
    # The load of the number, the constant, the operator; of an attribute also the object, which ``self.n += 1`` leaves on the
    # stack, and ``self.n = self.n + 1`` loads again.
    of_object = store.opname == "STORE_ATTR"
    first = k - 3 - 2 * of_object - (of_object and steps[k - 1].opname == "SWAP")
    if first < 0 or any(i.is_jump_target for i in steps[first + 1:k + 1]):
        return None
    owner, rest = "", steps[first:k]
    if of_object:
        owner, rest = rest[0].argval if rest[0].opname in _OWNERS else "", rest[1:]
        if rest[-1].opname == "SWAP" and rest[0].opname == "COPY":
            rest = rest[1:-1]
        elif rest[-1].opname in _OWNERS and rest[-1].argval == owner:
            rest = rest[:-1]
        if not owner or len(rest) != 3:
            return None
    load, constant, operator = rest
    if (load.opname not in _LOADS[store.opname] or load.argval != name or constant.opname not in LOADS_CONSTANT
            or type(constant.argval) not in (int, float) or operator.argrepr not in _OPERATORS):
        return None
    return Counting(str(name), owner, _OPERATORS[operator.argrepr] * constant.argval, load.offset)


@functools.lru_cache(maxsize=4096)
def _reads(code: CodeType) -> frozenset[str]:
    """Attributes and globals that code reads other than to count."""
    counts = {c.read for c in counting(code).values()}
    return frozenset(str(i.argval) for i in dis.get_instructions(code)
                     if i.opcode in dis.hasname and not i.opname.startswith("STORE_") and i.offset not in counts)


def only_counted(name: str, codes: Iterable[CodeType], names: Names) -> bool:
    """Does none of the code read what has this name, by a string perhaps?"""
    return not names.whole and "__dict__" not in names.read and name not in names.asked and not any(
        name in _reads(code) for code in codes)
