"""Calls of kernels: what a device is told of one, so that it can choose a kernel, and those of a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradcore.spec import TensorSpec

#: A kernel and its arguments, bound to the memory that it works on; the list is changed for the arrays and numbers of each run.
KernelCall = tuple[Callable[..., Any], list[Any]]
#: The calls of neighboring instructions, a list for each.
Steps = list[list[KernelCall]]


class Changing(float):
    """A placeholder for a number that differs in each run, while a kernel is written out; it is found again by identity.

    ``cells`` are 0-d arrays that take its place, which each run writes to.
    """

    cells: list[Any]

    def __init__(self, value: float) -> None:
        self.cells = []


@dataclass(slots=True)
class Operands:
    """The operands of an op, for a device whose kernels do not take every dtype."""

    op: str
    inputs: tuple[Any, ...]
    #: Results, then auxiliary ones.
    outputs: tuple[TensorSpec, ...]
    #: Positions of the inputs that the kernel writes to.
    writes: tuple[int, ...]
    #: Returns the bytes of workspace that the op would declare with float32 in place of 16-bit floats; None for none.
    wide_workspace: Callable[[], int | None]

    @property
    def function(self) -> str:
        """The name of the functional op, which an in-place one has with an underscore."""
        return self.op.rstrip("_")
