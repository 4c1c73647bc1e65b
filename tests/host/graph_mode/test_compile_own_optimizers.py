"""Compiled functions see what an optimizer holds that its own update does not read: memory, attributes and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn


class Plain(gradcore.optim.Optimizer):
    """An update of the user's own, out of common ops."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.25})

    @gradcore.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])


def clamped(optimizer: Any) -> Any:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.data.clamp_(-0.5, 0.5)


def in_both_modes(make: Callable[[Any], Any], run: Callable[[Any], Any], change: Callable[[Any], None]) -> list[list[Any]]:
    """What eager and compiled calls return, and leave in the parameter, before and after a change that a replay must notice."""
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        p = nn.Parameter(gradcore.ones(2, 2))
        optimizer = make([p])
        call = wrap(lambda optimizer=optimizer: run(optimizer))
        values = []
        for k in range(6):
            p.grad = gradcore.ones(2, 2)
            if k == 3:
                change(optimizer)
            result = call()
            values.append((p.tolist(), None if result is None else result.tolist()))
        found.append(values)
        if wrap is gradcore.compile:
            assert call.programs and "cannot be replayed" not in call.traces[-1]
    return found


@pytest.mark.parametrize("make", [Plain, gradcore.optim.Adafactor, gradcore.optim.SGD])
@pytest.mark.parametrize("run", [lambda optimizer: optimizer.step(), clamped], ids=["step", "clamped"])
def test_a_parameter_that_only_an_optimizer_leads_to_was_given_other_memory(make: Any, run: Any) -> None:
    def change(optimizer: Any) -> None:
        p, = optimizer.param_groups[0]["params"]
        p.data = p.data + 1

    eager, compiled = in_both_modes(make, run, change)
    assert compiled == eager
