"""Variables outside of a function that it assigns to: attributes, globals, and variables of enclosing functions."""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Iterable
from types import CellType, FunctionType
from typing import Any
from weakref import ref

from gradcore.nn.module import Module
from gradcore.program.assignments import Assignment
from gradcore.program.called import Of


class _Absent:
    """Takes the place of a value where there is none."""


class Place:
    """A variable outside a function: its ``name`` for messages, and the ``key`` of guards for it."""

    __slots__ = ("name", "key", "_of", "_at")

    def __init__(self, name: str, key: tuple[Any, ...], of: Callable[[], Any], at: str) -> None:
        self.name = name
        self.key = key
        #: Gives what has the variable: an object, weakly, a dict of globals, or a cell; and the name in it.
        self._of = of
        self._at = at

    def get(self) -> Any:
        """What is there; :class:`_Absent` if nothing is, or its owner no longer exists."""
        of = self._of()
        if type(of) is CellType:
            try:
                return of.cell_contents
            except ValueError:
                return _Absent
        return (of if type(of) is dict else getattr(of, "__dict__", {})).get(self._at, _Absent)

    def put(self, value: Any) -> None:
        of = self._of()
        if type(of) is dict:
            of[self._at] = value
            if value is _Absent:
                del of[self._at]
        elif type(of) is CellType:
            of.cell_contents = value
            if value is _Absent:
                del of.cell_contents
        elif of is not None and value is not _Absent:
            # A module has its buffers twice, and labels them.
            setattr(of, self._at, value)
        elif of is not None and self.get() is not _Absent:
            delattr(of, self._at)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Place) and self.key == other.key and self._of() is other._of() is not None)

    def __hash__(self) -> int:
        return hash(self.key)

    def is_gone(self) -> bool:
        return self._of() is None


def places_of(of: Of, a: Assignment, owners: list[Any], new: Container[Any]) -> list[Place | None]:
    """What an instruction assigned to, to attributes of these ``owners`` perhaps; None for each that a replay cannot assign to.

    ``new`` contains what the run has made.
    """
    if a.instruction == "STORE_ATTR":
        return [None if owner is None or owner in new else _attribute(owner, a.name) for owner in owners]
    if a.instruction == "STORE_GLOBAL" and a.name in of.variables:
        variables = of.variables
        return [Place(f"the global {a.name}", ("global", id(variables), a.name), lambda: variables, a.name)]
    if a.instruction == "STORE_DEREF":
        at = of.code.co_freevars.index(a.name)
        # The functions that may have run: what their variables held when they began, they may not hold any more.
        cells = {id(cell): cell for f in gc.get_referrers(of.code) if isinstance(f, FunctionType)
                 for cell in (f.__closure__ or ())[at:at + 1]}
        if len(cells) == 1:
            cell, = cells.values()
            return [Place(f"the variable {a.name}", ("cell", id(cell)), lambda: cell, a.name)]
    return [None]


def _attribute(owner: Any, name: str) -> Place | None:
    """An attribute of an object, if to assign to it does nothing but that; it may be a buffer of a module."""
    kind, own = type(owner), getattr(owner, "__dict__", {})
    if (kind.__setattr__ not in (object.__setattr__, Module.__setattr__) or name not in own
            or hasattr(getattr(kind, name, None), "__set__")):
        return None
    if isinstance(owner, Module) and (name in own["_parameters"] or name in own["_modules"]):
        return None
    whose = "a " * (not isinstance(owner, Module)) + kind.__name__
    return Place(f"{name} of {whose}", ("attribute", id(owner), name), ref(owner), name)


def carried_of(module: Any, carried: Iterable[tuple[Any, ...]]) -> frozenset[str]:
    """The names of those attributes of a module that are carried."""
    return frozenset(key[2] for key in carried if key[:2] == ("attribute", id(module)))


def place_of(key: tuple[Any, ...], carried: Container[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """The key of the carried place that is, or that has, what a guard with this key looks at."""
    return key[:3] if key[:3] in carried else key[:2] if key[:2] in carried else None
