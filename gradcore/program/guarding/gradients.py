"""Guards for the gradients of leaves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from gradcore.engine.leaf import Leaf
from gradcore.program.guarding.guards import Asking, Term
from gradcore.program.guarding.readers import Namer


class GradientGuard(Asking):
    """A leaf has a gradient of the same layout, which something else holds or not, as before; or it has none, as before.

    It matters whether it is held, since a held gradient is not added to in place.
    """

    __slots__ = ("leaf", "spec", "held")

    def __init__(self, leaf: Any, spec: Any, held: bool = False) -> None:
        self.leaf = leaf
        self.spec = spec
        self.held = held

    def terms(self, name: Namer) -> Iterator[Term]:
        yield f"{name(self)}.holds()", self.why_not

    def _spec(self) -> Any:
        return None if self.leaf.grad is None else self.leaf.grad.spec

    def holds(self) -> bool:
        spec = self._spec()
        return spec is self.spec and (spec is None or is_gradient_held(self.leaf) is self.held)

    def why_not(self) -> str:
        now = self._spec()
        held = "no longer referenced elsewhere" if self.held else "now referenced elsewhere"
        return (f"the gradient of {self.leaf.described()}, is "
                + (held if now is self.spec else f"{now} and was {self.spec}"))


def is_gradient_held(leaf: Leaf) -> bool:
    """Does anything but the leaf, and the replay that made it, refer to the gradient that a leaf has, or to its bytes?"""
    grad = leaf.grad
    if grad is None:
        # Another thread has just dropped it.
        return False
    # The replay that made it also holds a reference.
    more = grad.storage.lender is not None
    # A base that nobody else sees may be dropped by the next write.
    own = grad.base is not None and sys.getrefcount(grad.base) <= 2
    return sys.getrefcount(leaf.grad) > 3 + more or sys.getrefcount(grad.storage) > 2 + more + own
