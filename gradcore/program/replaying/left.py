"""The gradients that runs of a program leave in leaves, and whether anything else holds one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gradcore.engine.leaf import Leaf
from gradcore.program.program import Operand
from gradcore.program.replaying.arena import Part


@dataclass(slots=True, eq=False)
class Left:
    """What a run leaves in a leaf: a gradient over the buffer of ``operand``, with the array that it shows, or None."""

    leaf: Leaf
    operand: Operand | None = None
    gradient: Any = None
    array: Any = None

    def lies_in_arena(self) -> bool:
        """Is there a gradient, and not over captured bytes?"""
        return self.gradient is not None and type(self.gradient.storage) is Part

    def is_in_place(self) -> bool:
        """Has the leaf the gradient that the last run left?"""
        return self.gradient is not None and self.leaf.grad is self.gradient


def _count_of_local() -> int:
    """The count of a local variable that one container refers to: from Python 3.14 on, a call adds no reference of its own."""
    for x, in [[object()]]:
        return sys.getrefcount(x)
    raise AssertionError


_ALONE = _count_of_local()


def is_any_held(entries: Iterable[Left]) -> bool:
    """Does anything but its leaf hold any of these gradients, or is one no longer what was left: ``p.grad.data = other``?"""
    getrefcount = sys.getrefcount
    for left in entries:
        g = left.gradient
        # The storage is referred to by the tensor, the binding and the argument.
        if g is not None and (getrefcount(g) > _ALONE + (left.leaf.grad is g) or g.array is not left.array
                              or g.edge is not None or getrefcount(g.storage) > 3):
            return True
    return False
