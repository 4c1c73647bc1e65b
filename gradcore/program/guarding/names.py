"""What code objects name: attributes, globals, and the modules that they import."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import dropwhile
from types import CodeType
from typing import Any, NamedTuple

from gradcore.engine.sites import is_inside
from gradcore.program.guarding.bytecode import CALLS, Step, indexed, steps_of
from gradcore.program.guarding.options import reads_options

_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"))
#: Code that uses one of these may name attributes by string constants.
_BY_NAME = frozenset(("getattr", "hasattr", "vars", "attrgetter", "methodcaller", "__dict__", "__getattribute__",
                      "__setattr__"))
#: Code that uses one of these may read all attributes of an object without naming one.
_READ_WHOLE = frozenset(("vars", "dir", "__dict__", "asdict", "astuple", "fields", "getmembers", "getattr_static", "__reduce__",
                         "__reduce_ex__", "__getstate__"))
#: Code that uses one of these may read from a class what an object, or a class derived from that one, hides.
_UPWARD = frozenset(("super", "type", "__class__", "__mro__", "mro", "__base__", "__bases__"))


class Names(NamedTuple):
    """Attributes that code names: those that it reads or writes, those that it only calls as methods, and of the first those
    that it may ask for by a string, whether they are there or not."""

    read: frozenset[str] = frozenset()
    called: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()
    #: Does the code read all attributes of an object at once?
    whole: bool = False
    #: Does it ask for classes, and with them for what others hide?
    upward: bool = False
    #: May it read options of an optimizer's groups, such as the learning rate?
    options: bool = False
    #: Its constants that are strings, by which it may read a count in the state of an optimizer.
    texts: frozenset[str] = frozenset()

    def union(self, *others: Names) -> Names:
        parts: Any = zip(self, *others, strict=True)
        united: list[Any] = [any(each) if type(each[0]) is bool else each[0].union(*each[1:]) for each in parts]
        return Names(*united)

    def among(self, own: Mapping[str, Any]) -> list[str]:
        """The attributes in ``own`` that the code can read. A call such as ``optimizer.step()`` reads no number ``step``."""
        return sorted(a for a in own if a in self.read or (a in self.called and callable(own[a])))


@functools.lru_cache(maxsize=4096)
def names_of(code: CodeType) -> Names:
    """The attributes that a code object names."""
    read, called = set(), set()
    if is_inside(code):
        texts = [x for x in code.co_consts if isinstance(x, str)] if _BY_NAME & {*code.co_names} else []
    else:
        texts = [*_texts(_constants(code))] if _asks_by_name(code) else []
    # attrgetter("config.scale") names two.
    asked = {part for text in texts for part in text.split(".") if part.isidentifier()}
    read |= asked
    # A user's that catches the error goes on without the attribute.
    used = {*code.co_names, *code.co_freevars}
    catches = bool({"AttributeError", "Exception"} & used) and not is_inside(code)
    matches = False
    for s in steps_of(code):
        if s.opname == "LOAD_METHOD":
            called.add(s.argval)
        elif s.names and s.opname not in _GLOBAL:
            read.add(s.argval)
        elif s.opname == "MATCH_CLASS":
            # `case Config(1, scale=2)` names attributes by a constant, and by the tuple __match_args__ of the class.
            matches = True
            read |= {"__match_args__"}.union(*[x for x in code.co_consts if isinstance(x, tuple)
                                               and all(isinstance(name, str) for name in x)])
    return Names(frozenset(read), frozenset(called), frozenset(read | called if catches else asked),
                 not is_inside(code) and (not _READ_WHOLE.isdisjoint(used) or _computes_names(code)),
                 not is_inside(code) and not _UPWARD.isdisjoint(used),
                 "param_groups" in read and ("param_groups" in asked or matches or reads_options(code)),
                 frozenset(x for x in code.co_consts if isinstance(x, str)))


@functools.lru_cache(maxsize=4096)
def names_within(code: CodeType) -> Names:
    """Also those that the code inside of it names, such as a generator expression, which gets what it finds."""
    return names_of(code).union(*[names_within(x) for x in code.co_consts if isinstance(x, CodeType)])


def _computes_names(code: CodeType) -> bool:
    """Does the code give ``attrgetter`` or ``__getattribute__`` a name that is no constant, or hand ``getattr`` to others?"""
    steps = [s for s in steps_of(code) if s.opname not in ("PUSH_NULL", "KW_NAMES")]
    for k, s in enumerate(steps):
        if not s.opname.startswith("LOAD_"):
            continue
        # What a class's own __getattribute__ hands on is named by the code that it was called for.
        if s.argval in {"attrgetter", "__getattribute__"} - {code.co_name} and not _calls_with_constants(steps[k + 1:]):
            return True
        # A global that is called is loaded by an instruction that says so.
        if s.argval in ("getattr", "hasattr") and not (s.opname == "LOAD_GLOBAL" and (s.arg or 0) & 1):
            return True
    return False


def _calls_with_constants(steps: list[Step]) -> bool:
    """Do the next steps load constants, and call something with them?"""
    rest = [*dropwhile(lambda s: s.opname == "LOAD_CONST", steps)]
    return len(rest) < len(steps) and rest[0].opname in CALLS


def _asks_by_name(code: CodeType) -> bool:
    """Does the code, or one inside of it, such as a generator expression, look for attributes by their names?"""
    return bool(_BY_NAME & {*code.co_names, *code.co_freevars}) or any(
        _asks_by_name(x) for x in code.co_consts if isinstance(x, CodeType))


def fields_of(template: str) -> frozenset[str]:
    """The attributes that ``template.format()`` may read."""
    return frozenset(re.findall(r"\.([^\W\d]\w*)", template))


def _constants(code: CodeType) -> list[Any]:
    """The constants that a code object loads, except for the names of arguments in calls."""
    found: list[Any] = []
    for s in steps_of(code):
        if s.opname in ("LOAD_CONST", "RETURN_CONST"):
            found.append(s.argval)
        elif s.opname == "CALL_KW":
            found.pop()
    return found


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    """The strings among constants, and those in tuples and sets, which a loop may go through."""
    for x in constants:
        if isinstance(x, str):
            yield x
        elif isinstance(x, (tuple, frozenset)):
            yield from _texts(x)


@functools.lru_cache(maxsize=4096)
def globals_of(code: CodeType) -> tuple[str, ...]:
    """The globals that a code object names; attributes with the same name do not count."""
    found = [s.argval for s in steps_of(code) if s.opname in _GLOBAL]
    if "globals" in (*code.co_names, *code.co_freevars):
        found += [x for x in code.co_consts if isinstance(x, str)]
    return tuple(dict.fromkeys(found))


@functools.lru_cache(maxsize=4096)
def computes_globals(code: CodeType) -> bool:
    """Does the code take anything of ``globals()``, but by a constant?"""
    steps = [s for s in steps_of(code) if s.opname not in ("PUSH_NULL", "PRECALL")]
    for k, s in enumerate(steps):
        if s.opname.startswith("LOAD_") and s.opname != "LOAD_CONST" and s.argval == "globals":
            called, *rest = steps[k + 1:]
            if called.opname != "CALL" or not (
                    indexed(rest[:2]) or (rest[0].opname == "CONTAINS_OP" and steps[k - 1].opname == "LOAD_CONST")
                    or (rest[0].argval == "get" and rest[1].opname == "LOAD_CONST"
                        # The name alone, or with a default that takes one step to load.
                        and any(x.opname == "CALL" and x.arg == n for n, x in enumerate(rest[2:4], 1)))):
                return True
    return False


@functools.lru_cache(maxsize=4096)
def imports_of(code: CodeType) -> tuple[str, ...]:
    """The modules that a code object imports itself, with a dot in front for each level of a relative import."""
    found, constants = [], [""]
    for s in steps_of(code):
        if s.opname == "IMPORT_NAME":
            # The level and the names to import are loaded before.
            level = constants[-2] if isinstance(constants[-2], int) else 0
            found += ["." * level + s.argval] if level else [s.argval, s.argval.partition(".")[0]]
        elif s.opname == "LOAD_CONST":
            constants.append(s.argval)
    return tuple(dict.fromkeys(found))
