"""Adds cotangents to one another and to the gradients of leaves: in place, where nobody else sees the sum so far."""

from __future__ import annotations

import sys
from typing import Any

from gradcore.engine.leaf import Leaf
from gradcore.engine.owners import retag_gradient
from gradcore.engine.state import local
from gradcore.engine.value import unseen
from gradcore.errors import SpecError
from gradcore.forking import long
from gradcore.ops.elementwise import add
from gradcore.ops.in_place import add_
from gradcore.ops.movement import clone

#: Threads may run separate graphs that share leaves.
_accumulating = long()


def add_to(gs: list[Any], index: int, g: Any) -> None:
    there = gs[index]
    if there is None:
        gs[index] = g
    elif not local.state.grad and unseen(there) and there.spec.contiguous:
        add_(there, g)
    else:
        gs[index] = add(there, g)


def accumulate(leaf: Leaf, g: Any) -> None:
    """Add ``g`` to a leaf's gradient, unless its tensor requires none by now.

    The first becomes the gradient itself unless something else refers to its storage (an op that passes its cotangent on, or
    the caller), in which case it is copied. Later ones are added in place unless somebody holds the gradient, or has set it to
    a tensor that is not contiguous, whose elements may share memory.
    """
    if leaf.frozen:
        return
    if local.state.aside is not None:
        local.state.aside.add(leaf)
        return
    with _accumulating:
        there = leaf.grad
        if g.spec.shape != leaf.spec.shape:
            raise SpecError(f"a graph from before its leaf got the shape {list(leaf.spec.shape)} returned an invalid gradient: "
                            f"got {list(g.spec.shape)} but expected shape compatible with {list(leaf.spec.shape)}")
        if there is None:
            if g.edge is not None and not local.state.grad:
                # A function's backward, or a hook, has returned what has a graph of its own.
                g.edge = None
            whole = g.spec.contiguous and g.storage.nbytes == g.spec.nbytes
            leaf.grad = g if whole and unseen(g) else clone(g)
        else:
            # Three references: the slot, the local and the argument. (From Python 3.14 on, a local passes none of its own.)
            lender = there.storage.lender
            lent = lender is not None
            held = sys.getrefcount(leaf.grad) > 3 + lent
            if not held and not local.state.grad and there.spec.contiguous and unseen(there, lent):
                add_(there, g)
                return
            leaf.grad = add(there, g)
            if lent:
                del there
                lender.let_go(leaf)
        retag_gradient(leaf.grad, leaf.tensor())
