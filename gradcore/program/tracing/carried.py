"""Tensors that a function keeps from one call to the next outside: ``self.hidden = hidden.detach()``.

A replay runs no Python code, so nothing would assign. Once a trace has found such a place, an attribute, a global, or a
variable of an enclosing function, it is treated as an argument and as a result: each call reads what is there when it begins,
and puts its own there when it has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Any

from gradcore.program.watching.stored import Place, is_state

#: How many traces with a place may fail.
_MOST_FAILURES = 3


class Carried:
    """The places that a compiled function carries from call to call; in the order in which they were found."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        #: Those for which no trace has succeeded yet, and below how often one has failed, by key.
        self._tried: list[Place] = []
        #: The keys of what a trace has assigned to: a first call may make what all others find.
        self._assigned: set[tuple[Any, ...]] = set()
        self._failed: Counter[tuple[Any, ...]] = Counter()

    def keys(self) -> frozenset[tuple[Any, ...]]:
        return frozenset(place.key for place in self.places)

    def present(self) -> list[Place]:
        """The places whose owners still exist."""
        if any(place.is_gone() for place in self.places):
            self.places = [place for place in self.places if not place.is_gone()]
        return self.places

    def offer(self, found: list[Place]) -> str:
        """Carry these, to which the last trace has assigned, from the next on, unless it was the first to do so or that was
        tried in vain; says so for :meth:`Compiled.explain`."""
        before = self._assigned
        self._assigned = before | {place.key for place in found}
        if not found or any(place.key not in before or self._failed[place.key] >= _MOST_FAILURES for place in found):
            return ""
        self._tried = [*self._tried, *found]
        self.places = [*self.places, *found]
        return f"; the next trace takes {', '.join(place.name for place in found)} for an argument and for a result"

    def settle(self, reached: Container[tuple[Any, ...]], good: bool) -> None:
        """A trace has succeeded, or failed, perhaps for a reason that will not be there the next time. ``reached`` has the keys
        of the places that its code could reach."""
        tried = [place for place in self._tried if place.key in reached]
        self._failed.update(place.key for place in tried if not good)
        dropped = [place for place in tried if not good and self._failed[place.key] >= _MOST_FAILURES]
        self.places = [place for place in self.places if place not in dropped]
        self._tried = [place for place in self._tried if place not in (tried if good else dropped)]


class Exchange:
    """What a traced run has left in the places: taken out as long as the run is looked at, as if it were returned."""

    def __init__(self, places: list[Place]) -> None:
        self._places = places
        self._former = [place.get() for place in places]
        #: Those that it has changed; and reasons against a replay: those in which it has left what a replay cannot.
        self.changed: list[Place] = []
        self.obstacles: list[str] = []

    def take(self, result: Any) -> Any:
        """The result of the run, and with it what it left, if it changed any place. These have their former values again."""
        left = []
        for place, former in zip(self._places, self._former, strict=True):
            now = place.get()
            if now is former:
                continue
            if not is_state(now):
                self.obstacles.append(f"it leaves in {place.name} something else than tensors without a graph")
                continue
            place.put(former)
            self.changed.append(place)
            left.append(now)
        self._former = []
        return joined(self.changed, result, left)


def joined(places: list[Place], result: Any, left: list[Any] | None = None) -> Any:
    """A result, and with it what is ``left`` in some places, by default what they hold."""
    if not places:
        return result
    return result, [place.get() for place in places] if left is None else left


def parted(places: list[Place], found: Any) -> Any:
    """The result of a pair that :func:`joined` has made, after its other part was put in the places."""
    if not places:
        return found
    result, values = found
    for place, value in zip(places, values, strict=True):
        place.put(value)
    return result
