"""Whether code that names an optimizer's ``param_groups`` may read their options, or takes only the parameters from them.

Known are loops over the groups, those of comprehensions and generator expressions too, whose variable is only used as
``group["params"]``, and one group by its number. Whatever else the code does with them may read all.
"""

from __future__ import annotations

import dis
from types import CodeType

from gradcore.program.instructions import LOADS, LOADS_CONSTANT, READS_ALL, indexed, loaded_by, variables_of

#: Between the iterator and the loop, a comprehension that is part of its function keeps its variables and makes its result.
_KEEPS = frozenset(("LOAD_FAST_AND_CLEAR", "SWAP", "COPY", "BUILD_LIST", "BUILD_SET", "BUILD_MAP", "NOP"))
#: What calls the function of a comprehension with the iterator.
_CALLS = frozenset(("PRECALL", "CALL", "CALL_FUNCTION"))


def reads_options(code: CodeType) -> bool:
    """May this code, or a comprehension in it, read more of an optimizer's groups than ``params``?"""
    if READS_ALL & {*code.co_names}:
        return True
    steps = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]
    return any(not _takes_params(steps, k, code) for k, i in enumerate(steps)
               if i.opcode in dis.hasname and i.argval == "param_groups")


def _takes_params(steps: list[dis.Instruction], k: int, code: CodeType) -> bool:
    """Is ``params`` all that is taken of the groups that instruction ``k`` loads?"""
    after = steps[k + 1:]
    if steps[k].opname != "LOAD_ATTR" or not after or after[0].is_jump_target:
        return False
    if after[0].opname != "GET_ITER":
        number = indexed(after[:2])
        return number is not None and all(type(n) is int for n in number) and indexed(after[2:4]) == {"params"}
    rest = after[1:]
    if rest and rest[0].opname in _CALLS:
        # The function was made before the groups were loaded.
        return _in_comprehension(steps[:k])
    while rest and rest[0].opname in _KEEPS:
        rest = rest[1:]
    return len(rest) > 1 and rest[0].opname == "FOR_ITER" and _loops(rest[1], steps, code)


def _in_comprehension(before: list[dis.Instruction]) -> bool:
    """Does the comprehension whose function was made last take only ``params`` of what it goes through?"""
    k = len(before) - 1
    while k > 0 and before[k].opname.startswith("LOAD_"):
        k -= 1
    while k > 0 and before[k].opname in ("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"):
        k -= 1
    made = before[k].argval if k >= 0 and before[k].opname in LOADS_CONSTANT else None
    if not isinstance(made, CodeType) or made.co_argcount != 1 or READS_ALL & {*made.co_names}:
        return False
    steps = [i for i in dis.get_instructions(made) if i.opname not in ("CACHE", "EXTENDED_ARG")]
    at = [k for k, i in enumerate(steps) if ".0" in variables_of(i)]
    if len(at) != 1:
        return False
    rest = [i for i in steps[at[0] + 1:] if i.opname != "GET_ITER"]
    return len(rest) > 1 and rest[0].opname == "FOR_ITER" and _loops(rest[1], steps, made)


def _loops(store: dis.Instruction, steps: list[dis.Instruction], code: CodeType) -> bool:
    """Is the loop's variable a local one of which the code only takes ``params``?"""
    if store.opname not in ("STORE_FAST", "STORE_FAST_LOAD_FAST"):
        return False
    group = variables_of(store)[0]
    if group in code.co_cellvars:
        return False
    for k, i in enumerate(steps):
        # What a comprehension keeps, it puts back.
        named = [] if i.opname == "LOAD_FAST_AND_CLEAR" else loaded_by(i)
        if group in named and (i.opname not in LOADS or group in named[:-1] or indexed(steps[k + 1:k + 3]) != {"params"}):
            return False
    return True
