"""Guards that objects still lack the attributes that they lack, one of which would be read instead of what was, and that they
are still of the class that they have the others from."""

from __future__ import annotations

from functools import partial
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any

from gradcore.nn.module import Module
from gradcore.program.guarding.guards import Found, Guard, equal, identical, weakly
from gradcore.program.guarding.libraries import is_of_library, is_users
from gradcore.program.guarding.readers import AttributeOf
from gradcore.program.guarding.values import asked


def absent(owner: Any, names: frozenset[str]) -> Found:
    """A guard for each of these attributes that an object, or a class itself, lacks."""
    whose = owner.__name__ if isinstance(owner, type) else f"a {type(owner).__name__}"
    spaces = _spaces(owner)
    for name in sorted(names.difference(chain(*spaces))):
        yield (Guard(f"whether {whose} has {name}", partial(_has, spaces, name), False, identical),
               ("absent", id(owner), name))


def answered(owner: Any, names: frozenset[str]) -> Found:
    """A guard for all those that an object, a class or a module lacks, if a ``__getattr__`` of the user's may give them; and
    one for the class of an object of the user's."""
    kind = type(owner)
    # A proxy says that it is of another class.
    if asked(owner, "__class__") is kind and not (isinstance(owner, (type, ModuleType, Module)) or is_of_library(kind)):
        yield (Guard(f"the class of a {kind.__name__}", AttributeOf(weakly(owner), "__class__"), kind, identical),
               ("class", id(owner)))
    of = owner if isinstance(owner, ModuleType) else type(owner)
    function = getattr(of, "__getattr__", None)
    if isinstance(function, FunctionType) and is_users(function.__code__):
        spaces = _spaces(owner)
        missing = names.difference(chain(*spaces))
        yield (Guard(f"what {of.__name__}.__getattr__ is no longer asked for",
                     lambda: sorted(missing.intersection(chain(*spaces))), [], equal), ("answered", id(owner)))


def _spaces(owner: Any) -> list[Any]:
    """The dicts in which an object's attributes are looked up, but for what a class has from its metaclass."""
    kind, own = (owner, {}) if isinstance(owner, type) else (type(owner), asked(owner, "__dict__", {}))
    return [own, *map(vars, kind.__mro__)]


def _has(spaces: list[Any], name: str) -> bool:
    return any(name in space for space in spaces)
