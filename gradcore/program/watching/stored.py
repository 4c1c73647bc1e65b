"""The places outside of a traced run to which its code assigns, and what it leaves there."""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Iterable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any
from weakref import ref

from gradcore.cells import name_of_file
from gradcore.engine.value import Value
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter
from gradcore.program.guarding.values import asked
from gradcore.program.watching.assignments import Assignment
from gradcore.program.watching.called import Ran

#: What to do instead of an assignment to what a tensor has.
_INSTEAD = {name: f" (of a tensor: write p.{name}.copy_(...) instead)" for name in ("grad", "data")}
_CONSTRUCTORS = frozenset(("__init__", "__post_init__"))


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
        return (of if type(of) is dict else asked(of, "__dict__", {})).get(self._at, _Absent)

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


def places_of(of: Ran, a: Assignment, owners: list[Any], new: Container[Any]) -> list[Place | None]:
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
    kind, own = type(owner), asked(owner, "__dict__", {})
    if (kind.__setattr__ not in (object.__setattr__, Module.__setattr__) or name not in own
            or hasattr(type(getattr(kind, name, None)), "__set__")):
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


def is_state(x: Any) -> bool:
    """Is it a tensor without a graph, None, or a tuple of these? What a replay leaves is made anew, and who else refers to a
    list would not see it."""
    if isinstance(x, Value):
        return x.edge is None and not isinstance(x, Parameter)
    return x is None or (type(x) is tuple and all(map(is_state, x)))


class Stored:
    """What the functions of a traced run assigned to outside of them.

    ``changing`` has the instructions that did, each with the objects to whose attributes it assigned.
    ``new`` contains what the run has made, ``carried`` the keys of what is carried, ``known`` those of what guards tell.
    ``restored`` says of a key, and of what is there now, whether the run has found the same.
    """

    def __init__(self, changing: list[tuple[Ran, Assignment, list[Any]]], new: Container[Any],
                 carried: frozenset[tuple[Any, ...]], known: Container[tuple[Any, ...]],
                 restored: Callable[[tuple[Any, ...], Any], bool]) -> None:
        # References to the owners would look as if the user held what the function returns.
        self._changing = [(of, a, places_of(of, a, owners, new)) for of, a, owners in changing
                          if not _constructs(of.code, a, owners, new)]
        self._carried = carried
        self._known, self._restored = known, restored

    def _is_left(self, place: Place | None) -> bool:
        """Does a replay leave there what the run did?"""
        return place is not None and (place.key in self._carried or (
            place.key in self._known and self._restored(place.key, place.get())))

    def others(self) -> Iterator[tuple[str, list[Place | None]]]:
        """What was assigned to and is not carried: for each instruction a reason against a replay, and the places."""
        for of, a, places in self._changing:
            if not all(map(self._is_left, places)):
                yield f"{name_of_file(of.code.co_filename)}:{a.line} assigns to {a.name}{_INSTEAD.get(a.name, '')}", places

    def carriable(self) -> list[Place]:
        """The places that could be carried, which hold tensors now; none if the functions assigned to anything else."""
        others = {getattr(place, "key", None): place for _, places in self.others() for place in places
                  if not self._is_left(place)}
        states = [place for place in others.values()
                  if place is not None and place.get() is not None and is_state(place.get())]
        return states if len(states) == len(others) else []


def _constructs(code: CodeType, a: Assignment, owners: list[Any], new: Container[Any]) -> bool:
    """Does a constructor assign to an attribute of the object that it makes, or of another new one?"""
    return code.co_name in _CONSTRUCTORS and a.instruction == "STORE_ATTR" and (
        a.owner == code.co_varnames[0] or all(x is not None and x in new for x in owners))
