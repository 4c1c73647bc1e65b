"""Whether code reads more of the groups of an optimizer than their parameters.

Of ``param_groups``, loops are known, those of comprehensions and generator expressions too, whose variable is only used as
``group["params"]``, and one group by its number. Whatever else code does with them may read all their options.
"""

from __future__ import annotations

from itertools import dropwhile
from types import CodeType

from gradcore.program.guarding.bytecode import CALLS, READS_ALL, Step, indexed, steps_of

#: Before the loop, a comprehension that is part of its function keeps its variables and makes its result.
_KEEPS = frozenset(("LOAD_FAST_AND_CLEAR", "SWAP", "COPY", "BUILD_LIST", "BUILD_SET", "BUILD_MAP", "NOP"))
#: What stands between the iterator and the loop in the function of a comprehension or of a generator expression.
_BEGINS = frozenset(("GET_ITER", "RETURN_GENERATOR", "POP_TOP", "RESUME"))


def reads_options(code: CodeType) -> bool:
    """May this code, or a comprehension in it, read more of an optimizer's groups than ``params``?"""
    if READS_ALL & {*code.co_names, *code.co_freevars}:
        return True
    steps = steps_of(code)
    return any(not _takes_params(steps, k, code) for k, s in enumerate(steps) if s.names and s.argval == "param_groups")


def _takes_params(steps: list[Step], k: int, code: CodeType) -> bool:
    """Is ``params`` all that is taken of the groups that instruction ``k`` loads?"""
    after = steps[k + 1:]
    if steps[k].opname != "LOAD_ATTR" or not after or after[0].target:
        return False
    # From Python 3.15 on, a comprehension takes the iterator after it has kept its variables, a generator expression itself.
    rest = _past_kept(after)
    iterates = bool(rest) and rest[0].opname == "GET_ITER"
    if iterates:
        rest = _past_kept(rest[1:])
    if rest and rest[0].opname in CALLS:
        # The function was made before the groups were loaded.
        return _in_comprehension(steps[:k])
    if iterates:
        return _loops(rest, steps, code)
    number = indexed(after[:2])
    return number is not None and all(type(n) is int for n in number) and indexed(after[2:4]) == {"params"}


def _past_kept(steps: list[Step]) -> list[Step]:
    """The steps after those by which a comprehension keeps its variables and makes its result, if it begins here."""
    return list(dropwhile(lambda s: s.opname in _KEEPS, steps))


def _in_comprehension(before: list[Step]) -> bool:
    """Does the comprehension whose function was made last take only ``params`` of what it goes through?"""
    k = len(before) - 1
    while k > 0 and before[k].opname.startswith("LOAD_"):
        k -= 1
    while k > 0 and before[k].opname in ("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"):
        k -= 1
    made = before[k].argval if k >= 0 and before[k].opname == "LOAD_CONST" else None
    if not isinstance(made, CodeType) or made.co_argcount != 1 or READS_ALL & {*made.co_names, *made.co_freevars}:
        return False
    steps = steps_of(made)
    at = [k for k, s in enumerate(steps) if s.variable == ".0"]
    if len(at) != 1:
        return False
    rest = [s for s in steps[at[0] + 1:] if s.opname not in _BEGINS]
    return _loops(rest, steps, made)


def _loops(rest: list[Step], steps: list[Step], code: CodeType) -> bool:
    """Do the next steps begin a loop, whose variable is a local one of which the code only takes ``params``?"""
    if [s.opname for s in rest[:2]] != ["FOR_ITER", "STORE_FAST"] or rest[1].variable in code.co_cellvars:
        return False
    # What a comprehension keeps, it puts back.
    return all(s.opname == "LOAD_FAST" and indexed(steps[k + 1:k + 3]) == {"params"} for k, s in enumerate(steps)
               if s.variable == rest[1].variable and s.opname not in ("STORE_FAST", "LOAD_FAST_AND_CLEAR"))
