"""Kernel calls of a replay, bound to the memory that they work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: A kernel and its arguments, which are changed where a run brings its own.
Call = tuple[Callable[..., Any], list[Any]]


class Changing(float):
    """Stands for a number that is another one at every run, where a kernel is written out: found again by identity.

    ``cells`` are arrays without dimensions that take its place, for a run to write to.
    """

    cells: list[Any]

    def __init__(self, value: float) -> None:
        self.cells = []
