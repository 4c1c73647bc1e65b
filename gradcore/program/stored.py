"""What the functions of a traced run assigned to outside of them: numbers that they count, what is carried, and the rest."""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cached_property
from types import CodeType
from typing import Any

from gradcore.program.assignments import Assignment
from gradcore.program.called import Of
from gradcore.program.carried import new_places
from gradcore.program.counting import counting, only_counted
from gradcore.program.names import Names, names_of
from gradcore.program.places import Count, Place, counts_of, places_of

_CONSTRUCTORS = frozenset(("__init__", "__post_init__"))


class Stored:
    """The instructions ``changing`` something, each with the objects to whose attributes it assigned and how often.

    ``codes`` are all that ran; ``new`` contains what the run has made, ``carried`` the keys of what is carried.
    """

    def __init__(self, changing: list[tuple[Of, Assignment, list[tuple[Any, int]]]], codes: list[CodeType],
                 new: Container[Any], carried: frozenset[tuple[Any, ...]]) -> None:
        # References to the owners would look as if the user held what the function returns.
        self._changing = [(of, a, places_of(of, a, owners, new), [times for _, times in owners])
                          for of, a, owners in changing if not _constructs(of.code, a, owners, new)]
        self._codes = codes
        self._carried = carried

    @cached_property
    def counts(self) -> list[Count]:
        """The numbers that the functions count, and do not read otherwise."""
        found: dict[tuple[Any, ...], Count] = {}
        others: set[str] = set()
        names = Names().union(*map(names_of, self._codes)) if self._changing else Names()
        for of, a, places, times in self._changing:
            how = counting(of.code).get(a.at)
            counts = counts_of(how.by, places, times) if how and only_counted(a.name, self._codes, names) else None
            for count in counts or ():
                before = found.get(count.place.key)
                found[count.place.key] = count if before is None else count._replace(added=before.added + count.added)
            others |= {a.name} if counts is None else set()
        # What is also assigned to in another way is no count.
        return [count for key, count in found.items() if key[-1] not in others]

    @cached_property
    def counted(self) -> frozenset[tuple[Any, ...]]:
        """The keys of what is counted."""
        return frozenset(count.place.key for count in self.counts)

    def uncounted(self) -> Iterator[tuple[str, list[Place | None]]]:
        """What else was assigned to and is not carried: for each instruction a reason against a replay, and the places."""
        for of, a, places, _ in self._changing:
            if any(place is None or place.key not in self._carried | self.counted for place in places):
                yield f"{of.code.co_filename}:{a.line} assigns to {a.name}", places

    def carriable(self) -> list[Place]:
        """The places that could be carried, if there is nothing else that the functions assigned to."""
        return new_places((places for _, places in self.uncounted()), self._carried | self.counted)


def _constructs(code: CodeType, a: Assignment, owners: list[tuple[Any, int]], new: Container[Any]) -> bool:
    """Does a constructor assign to an attribute of the object that it makes, or of another new one?"""
    return code.co_name in _CONSTRUCTORS and a.instruction == "STORE_ATTR" and (
        a.root == code.co_varnames[0] or all(x is not None and x in new for x, _ in owners))
