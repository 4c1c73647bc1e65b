"""Tensors that a function keeps from one call to the next outside: ``self.hidden = hidden.detach()``.

A replay runs no Python code, so nothing would assign. Once a trace has found such a place, it is treated as an argument and as
a result: each call reads what is there when it begins, and puts its own there when it has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from typing import Any

from gradcore.engine.value import Value
from gradcore.program.places import Place

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

    def settle(self, places: list[Place], former: list[Any], reached: Container[tuple[Any, ...]], good: bool) -> None:
        """A trace with these places, which held these ``former`` values, has succeeded, or failed, perhaps for a reason that
        will not be there the next time. ``reached`` has the keys of those that its code could reach.

        What a good one could read and left as it was, a mask that the first call made, say, is better referred to than passed.
        """
        tried = [place for place in self._tried if place.key in reached]
        idle = [place for place, value in zip(places, former, strict=True) if good and place in tried and place.get() is value]
        failed = idle if good else tried
        self._failed.update(place.key for place in failed)
        dropped = [place for place in failed if place in idle or self._failed[place.key] >= _MOST_FAILURES]
        self.places = [place for place in self.places if place not in dropped]
        self._tried = [place for place in self._tried if place not in (tried if good else dropped)]


def joined(places: list[Place], result: Any, former: list[Any] | None = None) -> Any:
    """A result, and what the places hold, if there are any; they get their ``former`` values back, if these are given."""
    if not places:
        return result
    found = [place.get() for place in places]
    for place, value in zip(places, former or (), strict=False):
        place.put(value)
    return result, found


def parted(places: list[Place], found: Any) -> Any:
    """The result of a pair that :func:`joined` has made, after its other part was put in the places."""
    if not places:
        return found
    result, values = found
    for place, value in zip(places, values, strict=True):
        place.put(value)
    return result


def new_places(found: Iterable[list[Place | None]], carried: Container[tuple[Any, ...]]) -> list[Place]:
    """Those of the places ``found`` that are not ``carried``, and that hold tensors now; none if one of them cannot be."""
    others = {getattr(place, "key", None): place for places in found for place in places
              if place is None or place.key not in carried}
    return [place for place in others.values() if place is not None and _has_tensor(place.get())] if None not in others else []


def _has_tensor(x: Any) -> bool:
    """Is it a tensor, or does a list, tuple or dict hold one?"""
    if isinstance(x, (list, tuple, dict)):
        return any(map(_has_tensor, x.values() if isinstance(x, dict) else x))
    return isinstance(x, Value)
