"""Differentiates an op that is one kernel: runs a function of ops that computes the same, and differentiates that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradcore.engine.backward import Sweep
from gradcore.engine.state import local
from gradcore.engine.value import Value, alias
from gradcore.ops.movement import cast_to, expand
from gradcore.ops.op import install_differentiation


def differentiate(fn: Callable[..., Any], places: Sequence[int], gs: Sequence[Any], values: Sequence[Any]) -> Any:
    """The gradients of ``fn(*values)``, whose cotangents are ``gs``, with respect to the values at ``places``.

    What the function allocates and keeps has the layer, line and phase of the node, and is released as the small sweep here
    runs through it. If gradients are recorded, the function's graph stays, and the next derivative goes through it.
    """
    state = local.state
    recorded, node = state.grad, state.node
    sweep = Sweep(None, recorded, ())
    try:
        state.grad = True
        inputs = [_gate(v, k in places) if isinstance(v, Value) else v for k, v in enumerate(values)]
        gates = [inputs[k].edge[0].id if isinstance(inputs[k], Value) and inputs[k].edge is not None else 0 for k in places]
        made = fn(*inputs)
        for y, g in zip(made if isinstance(made, tuple) else (made,), gs, strict=True):
            if y is not None and y.edge is not None and g is not None:
                g = cast_to(g, y.spec)  # a function of 16-bit floats may compute in float32
                sweep.deliver(y.edge, alias(g, g.edge))
        made = y = None
        state.grad = recorded
        sweep.drain(max(gates))
    finally:
        state.grad, state.node = recorded, node
    found = [sweep.pending[number][1][0] if number in sweep.pending else None for number in gates]
    return found if len(found) > 1 else found[0]


def _gate(value: Any, wanted: bool) -> Any:
    """A value for the function to read: with an edge of its own, at which the sweep stops, or without any."""
    alone = alias(value, value.edge if wanted else None)
    return alone if alone.edge is None else expand(alone, shape=alone.spec.shape)


install_differentiation(differentiate)
