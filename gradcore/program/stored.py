"""What the functions of a traced run assigned to outside of them: what is carried, and the rest."""

from __future__ import annotations

from collections.abc import Container, Iterator
from types import CodeType
from typing import Any

from gradcore.program.assignments import Assignment
from gradcore.program.called import Of
from gradcore.program.carried import new_places
from gradcore.program.places import Place, places_of

_CONSTRUCTORS = frozenset(("__init__", "__post_init__"))


class Stored:
    """The instructions ``changing`` something, each with the objects to whose attributes it assigned.

    ``new`` contains what the run has made, ``carried`` the keys of what is carried.
    """

    def __init__(self, changing: list[tuple[Of, Assignment, list[Any]]], new: Container[Any],
                 carried: frozenset[tuple[Any, ...]]) -> None:
        # References to the owners would look as if the user held what the function returns.
        self._changing = [(of, a, places_of(of, a, owners, new)) for of, a, owners in changing
                          if not _constructs(of.code, a, owners, new)]
        self._carried = carried

    def others(self) -> Iterator[tuple[str, list[Place | None]]]:
        """What was assigned to and is not carried: for each instruction a reason against a replay, and the places."""
        for of, a, places in self._changing:
            if any(place is None or place.key not in self._carried for place in places):
                yield f"{of.code.co_filename}:{a.line} assigns to {a.name}", places

    def carriable(self) -> list[Place]:
        """The places that could be carried, if there is nothing else that the functions assigned to."""
        return new_places((places for _, places in self.others()), self._carried)


def _constructs(code: CodeType, a: Assignment, owners: list[Any], new: Container[Any]) -> bool:
    """Does a constructor assign to an attribute of the object that it makes, or of another new one?"""
    return code.co_name in _CONSTRUCTORS and a.instruction == "STORE_ATTR" and (
        a.root == code.co_varnames[0] or all(x is not None and x in new for x in owners))
