"""What code objects name: attributes, globals, and the modules that they import."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType
from typing import Any, NamedTuple

from gradcore.engine.sites import is_inside
from gradcore.program.reads import LOADS_CONSTANT, reads_options

_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"))
#: Code that uses one of these may name attributes by string constants.
_BY_NAME = frozenset(("getattr", "hasattr", "vars", "attrgetter", "methodcaller", "__dict__", "__getattribute__",
                      "__setattr__"))
#: Code that uses one of these may read all attributes of an object without naming one.
_READ_WHOLE = frozenset(("vars", "dir", "__dict__", "asdict", "astuple", "fields"))
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

    def union(self, *others: Names) -> Names:
        return Names(self.read.union(*[n.read for n in others]), self.called.union(*[n.called for n in others]),
                     self.asked.union(*[n.asked for n in others]), self.whole or any(n.whole for n in others),
                     self.upward or any(n.upward for n in others), self.options or any(n.options for n in others))

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
    catches = bool({"AttributeError", "Exception"} & {*code.co_names}) and not is_inside(code)
    matches = False
    for i in dis.get_instructions(code):
        if i.opname == "LOAD_METHOD" or (i.opname == "LOAD_ATTR" and sys.version_info >= (3, 12) and (i.arg or 0) & 1):
            called.add(str(i.argval))
        elif i.opcode in dis.hasname and i.opname not in _GLOBAL:
            read.add(str(i.argval))
        elif i.opname == "MATCH_CLASS":
            # `case Config(1, scale=2)` names attributes by a constant, and by the tuple __match_args__ of the class.
            matches = True
            read |= {"__match_args__"}.union(*[x for x in code.co_consts if isinstance(x, tuple)
                                               and all(isinstance(name, str) for name in x)])
    return Names(frozenset(read), frozenset(called), frozenset(read | called if catches else asked),
                 not is_inside(code) and not _READ_WHOLE.isdisjoint(code.co_names),
                 not is_inside(code) and not _UPWARD.isdisjoint(code.co_names),
                 "param_groups" in read and ("param_groups" in asked or matches or reads_options(code)))


def _asks_by_name(code: CodeType) -> bool:
    """Does the code, or one inside of it, such as a generator expression, look for attributes by their names?"""
    return bool(_BY_NAME & {*code.co_names}) or any(_asks_by_name(x) for x in code.co_consts if isinstance(x, CodeType))


def _constants(code: CodeType) -> list[Any]:
    """The constants that a code object loads, except for the names of arguments in calls."""
    found: list[Any] = []
    for i in dis.get_instructions(code):
        if i.opname in ("LOAD_CONST", "RETURN_CONST"):
            found.append(i.argval)
        elif i.opname == "CALL_KW":
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
    found = [str(i.argval) for i in dis.get_instructions(code) if i.opname in _GLOBAL]
    if "globals" in code.co_names:
        found += [x for x in code.co_consts if isinstance(x, str)]
    return tuple(dict.fromkeys(found))


@functools.lru_cache(maxsize=4096)
def imports_of(code: CodeType) -> tuple[str, ...]:
    """The modules that a code object imports itself, with a dot in front for each level of a relative import."""
    found, constants = [], [""]
    for i in dis.get_instructions(code):
        if i.opname == "IMPORT_NAME":
            # The level and the names to import are loaded before.
            level = constants[-2] if isinstance(constants[-2], int) else 0
            found += ["." * level + i.argval] if level else [i.argval, i.argval.partition(".")[0]]
        elif i.opname in LOADS_CONSTANT:
            constants.append(i.argval)
    return tuple(dict.fromkeys(found))
