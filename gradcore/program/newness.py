"""Tells what a run makes from what was there before."""

from __future__ import annotations

import gc
from itertools import chain
from typing import Any

from gradcore.program.passed import is_new


class New:
    """A context manager that contains the objects which are made while it is open.

    The collector's young generation has them, until a collection, which announces itself, moves them to an older one.
    """

    def __init__(self) -> None:
        #: Ids of objects that a collection has found in the young generation. What was freed since has left its id to another
        #: new object.
        self._found: set[int] = set()

    def __enter__(self) -> New:
        gc.collect(0)
        gc.callbacks.append(self._collects)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            # In one call of C's, as in is_new.
            self._found.update(map(id, chain.from_iterable(map(gc.get_objects, (0,)))))

    def __contains__(self, x: Any) -> bool:
        return id(x) in self._found or is_new(x)
