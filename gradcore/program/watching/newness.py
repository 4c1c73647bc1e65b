"""Tells what a run makes from what was there before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain
from operator import countOf
from typing import Any

import numpy as np

#: How many frozen objects are left so: Python 3.12 freezes some when it starts. With None all are left, and not counted, which
#: takes the collector a look at each.
frozen: int | None = gc.get_freeze_count()


def _young() -> Iterator[int]:
    """The ids of all objects made since the last collection of garbage, for one call of C's to go through to the end."""
    # A thread that is making a tuple fails if the list of all objects, which refers to the tuple, is there when it goes on
    # (python/cpython#59313). None goes on within such a call, which makes the list and frees it.
    return map(id, chain.from_iterable(map(gc.get_objects, (0,))))


def is_new(x: Any) -> bool:
    """Was it made since the last collection of garbage?"""
    return countOf(_young(), id(x)) > 0


class New:
    """A context manager that contains the objects which are made while it is open.

    The collector's young generation has them, until a collection, which announces itself, moves them to an older one.
    """

    def __init__(self) -> None:
        #: Ids of objects that were found to be new, as by a collection in the young generation. What was freed since has left
        #: its id to another new object.
        self._found: set[int] = set()
        self._open = False

    def __enter__(self) -> New:
        if frozen is not None and gc.get_freeze_count() > frozen:
            # The collector, by which functions and what holds a result are found, shows no frozen object.
            gc.unfreeze()
        gc.collect(0)
        gc.callbacks.append(self._collects)
        self._open = True
        return self

    def __exit__(self, *exc: object) -> None:
        if self._open:
            self._open = False
            gc.callbacks.remove(self._collects)
            self._collects("start", {})

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._found.update(_young())

    def __contains__(self, x: Any) -> bool:
        if isinstance(x, (dict, np.ndarray)) and not gc.is_tracked(x):
            # The collector knows no array, nor a dict that is empty or holds only numbers and strings; then the holders tell.
            # To find these takes a look at all objects, so what is new is noted.
            if id(x) not in self._found and all(map(self._has, gc.get_referrers(x))):
                self._found.add(id(x))
            return id(x) in self._found
        return self._has(x)

    def _has(self, x: Any) -> bool:
        return id(x) in self._found or (self._open and is_new(x))
