"""Functions that update parameters, and return what has a graph: eager mode runs them, so a compiled one does not raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn


class Odd(gradcore.autograd.Function):
    """Has a gradient that nobody asks for."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        raise ValueError("not differentiable")


def two_results(model: Any, optimizer: Any, x: Any) -> Any:
    loss, score = model(x).pow(2).mean(), model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss, score


def retained(model: Any, optimizer: Any, x: Any) -> Any:
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    return loss


def by_hand(model: Any, optimizer: Any, x: Any) -> Any:
    out = model(x)
    with gradcore.no_grad():
        for p in model.parameters():
            p.mul_(0.9)
    return out


def not_differentiable(model: Any, optimizer: Any, x: Any) -> Any:
    return Odd.apply(model(x))


def flat(result: Any) -> Any:
    return [t.tolist() for t in result] if isinstance(result, tuple) else result.tolist()


@pytest.mark.parametrize("function, why", [
    (two_results, "updates parameters itself"), (retained, "updates parameters itself"),
    (by_hand, "a backward raises ModifiedInPlace"), (not_differentiable, "a backward raises ValueError: not differentiable")])
def test_it_runs_and_is_not_replayed(function: Callable[..., Any], why: str) -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)
        step = wrap(lambda x, model=model, optimizer=optimizer: function(model, optimizer, x))
        found.append([flat(step(gradcore.ones(3, 2))) for _ in range(4)] + [p.tolist() for p in model.parameters()])
    assert found[0] == found[1] and not step.programs
    assert all(why in trace and "still referenced" not in trace for trace in step.traces[1:])
