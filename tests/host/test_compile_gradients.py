"""Gradients that a compiled function drops by itself, as ``zero_grad`` does."""

from __future__ import annotations

from typing import Any

import gradcore
from gradcore import nn


def test_a_loop_over_parameters_may_drop_their_gradients() -> None:
    layer = nn.Linear(3, 2)

    def step(x: Any) -> Any:
        for p in layer.parameters():
            p.grad = None
        loss = layer(x).square().sum()
        loss.backward()
        return loss

    compiled = gradcore.compile(step)
    for k in range(4):
        x = gradcore.full((4, 3), float(k + 1))
        found = compiled(x).item(), layer.weight.grad.tolist(), layer.bias.grad.tolist()
        assert found == (step(x).item(), layer.weight.grad.tolist(), layer.bias.grad.tolist())
    assert len(compiled.programs) == 2, "one for gradients that are there, one for none: " + compiled.explain()


def test_other_things_called_grad_are_assigned_eagerly() -> None:
    class Holder:
        grad: Any = 1.0

    holder, x = Holder(), gradcore.ones(3).requires_grad_()

    def f(other: Any) -> Any:
        for t in (x, holder):
            t.grad = other
        return x * 2

    compiled = gradcore.compile(f)
    compiled(gradcore.ones(3))
    assert "assigns to grad" in compiled.explain()
    x.grad = None

    def g(x: Any) -> Any:
        holder.grad = None
        return x * 2

    compiled = gradcore.compile(g)
    compiled(gradcore.ones(3))
    assert "assigns to grad" in compiled.explain() and not compiled.programs
