"""Measures what the graph costs: the time that it takes to build a node."""

from __future__ import annotations

import functools
from time import perf_counter
from typing import Any

import numpy as np

from gradcore.devices.meta import make_meta
from gradcore.engine import owners
from gradcore.engine.leaf import Leaf
from gradcore.engine.node import build_node
from gradcore.engine.state import local
from gradcore.engine.value import PLAIN


@functools.cache
def node_seconds() -> float:
    """The measured cost of a node that keeps two operands, in seconds: the best of five rounds of 500.

    It is what :func:`~gradcore.engine.dispatch.apply` does for ``x * x`` only if its gradient is recorded, and the node's end.
    """
    # On a device of its own, so that the measured pools are not affected, and without numbers that nodes of the user would get.
    device = make_meta()
    was, local.state.grad = local.state.grad, True
    try:
        x: Any = owners.upload(np.ones(1, np.float32), device)
        x.edge = (Leaf(x), 0)
        y = x * x
        args = (x, x)
        call = y.edge[0].call
        best = float("inf")
        for _ in range(5):
            start = perf_counter()
            for _ in range(500):
                edges = [None if type(a) in PLAIN else a.edge for a in args]
                plan = call.plans[tuple(map(bool, edges))]
                build_node(call, plan, args, (y,), (), edges, 0, y.edge[0].site, local.state.scope)
            best = min(best, perf_counter() - start)
        return best / 500
    finally:
        local.state.grad = was
