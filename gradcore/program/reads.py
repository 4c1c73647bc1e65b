"""Which parts of a value code reads: of an argument, such as a batch's index or its names, or of an optimizer's groups.

``x, y, i = batch`` reads those parts whose variables are loaded anywhere, and ``batch["x"]`` that part. Whatever else the code
does with a parameter, and each instruction that is not known here, reads all of it.

Of ``param_groups``, loops are known, those of comprehensions and generator expressions too, whose variable is only used as
``group["params"]``, and one group by its number. Whatever else the code does with them may read all their options.
"""

from __future__ import annotations

import dis
import functools
import inspect
from itertools import dropwhile
from types import CodeType, FunctionType, MethodType
from typing import Any

from gradcore.engine.value import PLAIN

#: Instructions that load a constant. Python 3.14 has one of its own for small integers, 3.15 for None and its like.
LOADS_CONSTANT = frozenset(("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT"))
#: Code that uses one of these may read variables that it does not name.
_READS_ALL = frozenset(("locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"))
#: Code that may be left in the middle, when a debugger or its owner looks at its variables.
_LEFT = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: Instructions that load a variable, or several; the last of these is on top of the stack.
LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
                   "STORE_FAST_LOAD_FAST"))
#: Instructions that take one value each from the stack for the variable that they name.
_STORES = frozenset(("STORE_FAST", "STORE_DEREF", "STORE_GLOBAL"))
#: What may be left out of a key if it is not read, beside numbers: it holds no tensor.
_TEXTS = frozenset((str, bytes))
#: Before the loop, a comprehension that is part of its function keeps its variables and makes its result.
_KEEPS = frozenset(("LOAD_FAST_AND_CLEAR", "SWAP", "COPY", "BUILD_LIST", "BUILD_SET", "BUILD_MAP", "NOP"))
#: What stands between the iterator and the loop in the function of a comprehension or of a generator expression.
_BEGINS = frozenset(("GET_ITER", "RETURN_GENERATOR", "POP_TOP", "RESUME"))
#: What calls the function of a comprehension with the iterator.
_CALLS = frozenset(("PRECALL", "CALL", "CALL_FUNCTION"))


def _variables_of(i: dis.Instruction) -> list[Any]:
    """The variables that an instruction names, or what it may name, if it is not one of those with constants, attributes and
    globals."""
    if i.opname in LOADS_CONSTANT or i.opcode in dis.hasname:
        return []
    return [v if type(v) is str else None for v in (i.argval if isinstance(i.argval, tuple) else (i.argval,))]


def _loaded_by(i: dis.Instruction) -> list[Any]:
    """The variables that it does not only store to."""
    return ([] if i.opname in ("STORE_FAST", "STORE_FAST_STORE_FAST")
            else _variables_of(i)[i.opname == "STORE_FAST_LOAD_FAST":])


def _indexed(steps: list[dis.Instruction]) -> set[Any] | None:
    """The part that is read if the next steps take one by a constant."""
    if len(steps) < 2 or any(i.is_jump_target for i in steps) or steps[0].opname not in LOADS_CONSTANT:
        return None
    part, by = steps[0].argval, steps[1]
    takes = by.opname == "BINARY_SUBSCR" or (by.opname == "BINARY_OP" and by.argrepr == "[]")
    return {part} if takes and type(part) in (int, str) else None


# -- arguments ---------------------------------------------------------------------------------------------------------


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
    if _READS_ALL & {*code.co_names} or code.co_flags & _LEFT:
        return {}
    steps = [*dis.get_instructions(code)]
    loaded: set[Any] = {*code.co_cellvars}.union(*[_loaded_by(i) for i in steps]) - {None}
    names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    return {name: read for name in names if name not in code.co_cellvars
            for read in [_parts(name, steps, loaded)] if read is not None}


def _parts(name: str, steps: list[dis.Instruction], loaded: set[Any]) -> frozenset[Any] | None:
    """The parts of a parameter that code reads, or None if it may read all."""
    read: set[Any] = set()
    for k, i in enumerate(steps):
        named = _variables_of(i)
        if name not in named:
            continue
        if i.opname not in LOADS or name in named[:-1]:
            return None
        taken = _indexed(steps[k + 1:k + 3])
        if taken is None:
            taken = _unpacked(steps[k + 1:], loaded)
        if taken is None:
            return None
        # None says that it has to have parts: how many, and what it is, matters.
        read |= taken | {None}
    return frozenset(read)


def _unpacked(steps: list[dis.Instruction], loaded: set[Any]) -> set[Any] | None:
    """The parts that are read if what lies on the stack is unpacked into variables by the next steps; None if it is not, or
    if all are read."""
    if not steps or steps[0].opname != "UNPACK_SEQUENCE" or steps[0].is_jump_target:
        return None
    count, k = steps[0].arg or 0, 0
    read: set[int] = set()
    for i in steps[1:]:
        if k == count:
            # From a list or tuple of another length they would not be unpacked, and the length is in the key.
            return read | {at - count for at in read}
        if i.is_jump_target:
            return None
        if i.opname == "POP_TOP":
            # Of `_, _ = pair` Python stores one.
            stored: tuple[Any, ...] = (None,)
        elif i.opname in _STORES:
            stored = (i.argval,)
            read |= {k} if i.opname != "STORE_FAST" else set()
        elif i.opname == "STORE_FAST_STORE_FAST":
            stored = i.argval
        elif i.opname == "STORE_FAST_LOAD_FAST" and k == count - 1:
            stored = i.argval[:1]
        else:
            return None
        read.update(at for at, variable in enumerate(stored, k) if at < count and variable in loaded)
        k += len(stored)
        if k > count:
            # The last one stores something else as well.
            return None
    return None


# -- groups of an optimizer --------------------------------------------------------------------------------------------


def reads_options(code: CodeType) -> bool:
    """May this code, or a comprehension in it, read more of an optimizer's groups than ``params``?"""
    if _READS_ALL & {*code.co_names}:
        return True
    steps = _steps(code)
    return any(not _takes_params(steps, k, code) for k, i in enumerate(steps)
               if i.opcode in dis.hasname and i.argval == "param_groups")


def _steps(code: CodeType) -> list[dis.Instruction]:
    return [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]


def _takes_params(steps: list[dis.Instruction], k: int, code: CodeType) -> bool:
    """Is ``params`` all that is taken of the groups that instruction ``k`` loads?"""
    after = steps[k + 1:]
    if steps[k].opname != "LOAD_ATTR" or not after or after[0].is_jump_target:
        return False
    # From Python 3.15 on, a comprehension takes the iterator after it has kept its variables, a generator expression itself.
    rest = _past_kept(after)
    iterates = bool(rest) and rest[0].opname == "GET_ITER"
    if iterates:
        rest = _past_kept(rest[1:])
    if rest and rest[0].opname in _CALLS:
        # The function was made before the groups were loaded.
        return _in_comprehension(steps[:k])
    if iterates:
        return _loops(rest, steps, code)
    number = _indexed(after[:2])
    return number is not None and all(type(n) is int for n in number) and _indexed(after[2:4]) == {"params"}


def _past_kept(steps: list[dis.Instruction]) -> list[dis.Instruction]:
    """The steps after those by which a comprehension keeps its variables and makes its result, if it begins here."""
    return list(dropwhile(lambda i: i.opname in _KEEPS, steps))


def _in_comprehension(before: list[dis.Instruction]) -> bool:
    """Does the comprehension whose function was made last take only ``params`` of what it goes through?"""
    k = len(before) - 1
    while k > 0 and before[k].opname.startswith("LOAD_"):
        k -= 1
    while k > 0 and before[k].opname in ("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"):
        k -= 1
    made = before[k].argval if k >= 0 and before[k].opname in LOADS_CONSTANT else None
    if not isinstance(made, CodeType) or made.co_argcount != 1 or _READS_ALL & {*made.co_names}:
        return False
    steps = _steps(made)
    at = [k for k, i in enumerate(steps) if ".0" in _variables_of(i)]
    if len(at) != 1:
        return False
    rest = [i for i in steps[at[0] + 1:] if i.opname not in _BEGINS]
    return _loops(rest, steps, made)


def _loops(rest: list[dis.Instruction], steps: list[dis.Instruction], code: CodeType) -> bool:
    """Do the next steps begin a loop, whose variable is a local one of which the code only takes ``params``?"""
    if [i.opname for i in rest[:2]] not in (["FOR_ITER", "STORE_FAST"], ["FOR_ITER", "STORE_FAST_LOAD_FAST"]):
        return False
    group = _variables_of(rest[1])[0]
    if group in code.co_cellvars:
        return False
    for k, i in enumerate(steps):
        # What a comprehension keeps, it puts back.
        named = [] if i.opname == "LOAD_FAST_AND_CLEAR" else _loaded_by(i)
        if group in named and (i.opname not in LOADS or group in named[:-1] or _indexed(steps[k + 1:k + 3]) != {"params"}):
            return False
    return True
