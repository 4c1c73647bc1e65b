"""Kernel calls of a replay, bound to the memory that they work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: A kernel and its arguments; the list is changed for the arrays and numbers of each run.
KernelCall = tuple[Callable[..., Any], list[Any]]


class Changing(float):
    """A placeholder for a number that differs in each run, while a kernel is written out; it is found again by identity.

    ``cells`` are 0-d arrays that take its place, which each run writes to.
    """

    cells: list[Any]

    def __init__(self, value: float) -> None:
        self.cells = []
