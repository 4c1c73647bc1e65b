"""Hooks around the steps of all optimizers, and the order in which they run beside an optimizer's own."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import gradcore


def order(library: Any) -> list[Any]:
    hooks = importlib.import_module(f"{library.__name__}.optim.optimizer")
    seen: list[Any] = []

    class Own(library.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        def step(self, closure: Any = None) -> None:
            seen.append("steps")

    x = library.ones(1, requires_grad=True)
    optimizers = [library.optim.SGD([x], lr=0.5), Own([x])]
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(lambda *_: seen.append("own before"))
        optimizer.register_step_post_hook(lambda *_: seen.append("own after"))
    with hooks.register_optimizer_step_pre_hook(lambda o, args, kwargs: seen.append(("before", type(o).__name__, len(args)))), \
            hooks.register_optimizer_step_post_hook(lambda o, args, kwargs: seen.append(("after", len(args), kwargs))):
        optimizers[0].step()
        optimizers[0].step(lambda: seen.append("closure"))
        optimizers[1].step()
    optimizers[0].step()
    return seen


def test_hooks_of_all_optimizers_run_around_an_optimizers_own() -> None:
    seen = order(gradcore)
    assert seen[:4] == [("before", "SGD", 1), "own before", "own after", ("after", 1, {})]
    assert seen[4:7] == [("before", "SGD", 2), "own before", "closure"] and seen[-2:] == ["own before", "own after"]


@pytest.mark.oracle
def test_hooks_of_all_optimizers_run_as_pytorchs(torch: Any) -> None:
    assert order(gradcore) == order(torch)


def test_a_compiled_step_calls_hooks_of_all_optimizers() -> None:
    x = gradcore.ones(1, requires_grad=True)
    optimizer, seen = gradcore.optim.SGD([x], lr=0.5), []

    @gradcore.compile
    def step() -> None:
        optimizer.zero_grad()
        (x * x).sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
    with gradcore.optim.optimizer.register_optimizer_step_post_hook(lambda o, *_: seen.append(o)):
        step()
        step()
    step()
    assert seen == [optimizer, optimizer]
