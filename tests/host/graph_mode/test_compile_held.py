"""Gradients that a replay left and that somebody holds: they count until the holder lets go, as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn


def again(back: Any, p: Any, x: Any) -> None:
    back(x)


def eagerly(back: Any, p: Any, x: Any) -> None:
    (p * x).sum().backward()


def cleared(back: Any, p: Any, x: Any) -> None:
    p.grad = None


def replaced(back: Any, p: Any, x: Any) -> None:
    p.grad = gradcore.ones(100)


def cleared_and_again(back: Any, p: Any, x: Any) -> None:
    p.grad = None
    back(x)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("then", [again, eagerly, cleared, replaced, cleared_and_again])
def test_a_gradient_is_freed_when_its_holder_lets_go(then: Callable[..., None], view: bool) -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        p, x, live = nn.Parameter(gradcore.ones(100)), gradcore.ones(100), []

        @wrap
        def back(x: Any, p: Any = p) -> None:
            (p * x).sum().backward()

        for k in range(6):
            p.grad = None
            back(x * (k + 1))
            held = p.grad[10:] if view else p.grad
            then(back, p, x)
            live += [gradcore.memory_allocated(), held.sum().item(), None if p.grad is None else p.grad.sum().item()]
            del held
            live.append(gradcore.memory_allocated())
            p.grad = None
            live.append(gradcore.memory_allocated())
        found.append([v - live[-1] if k % 5 in (0, 3, 4) else v for k, v in enumerate(live)])
        if wrap is gradcore.compile:
            assert back.programs and len(back.traces) <= 5
    assert found[0] == found[1]


def test_the_arena_is_used_again_once_the_holder_has_let_go() -> None:
    p, x = nn.Parameter(gradcore.ones(100)), gradcore.ones(100)
    back = gradcore.compile(lambda x: (p * x).sum().backward())
    for _ in range(2):
        back(x)
        p.grad = None
    replay = back._cached()[0].replay
    bound = replay._bound
    for _ in range(3):
        back(x)
        held = p.grad
        p.grad = None
        del held
    assert replay._bound is bound
    back(x)
    held = p.grad
    p.grad = None
    back(x * 2)
    assert replay._bound is not bound and held.tolist() == [1.0] * 100 and p.grad.tolist() == [2.0] * 100
    p.grad = None


def assigns(layer: Any) -> None:
    layer.weight.grad = None


def assigns_while_frozen(layer: Any) -> None:
    layer.weight.requires_grad_(False)
    layer.weight.grad = None
    layer.weight.requires_grad_()


@pytest.mark.parametrize("drop", [assigns, assigns_while_frozen, nn.Module.zero_grad])
def test_a_gradient_that_is_there_is_added_to_what_a_function_makes_and_drops(drop: Any) -> None:
    def run(wrap: Any) -> Any:
        layer = nn.Linear(3, 1)
        w = layer.weight

        def step(x: Any) -> Any:
            loss = layer(x).sum()
            loss.backward()
            w.data -= 0.1 * w.grad
            layer.bias.grad = None
            drop(layer)
            return loss.detach()

        step, seen = wrap(step), []
        for k in range(9):
            w.grad = None if k % 3 else gradcore.ones(1, 3) * k
            seen.append((step(gradcore.ones(2, 3)).item(), w.tolist(), w.grad is None))
        return seen, step

    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        found.append(run(wrap))
    (eager, _), (compiled, f) = found
    assert eager == compiled and len(f.programs) == 2 == len(f.traces), f.explain()


def test_an_update_in_the_backward_adds_to_a_gradient_that_is_there() -> None:
    def run(wrap: Any) -> Any:
        w = nn.Parameter(gradcore.ones(3))

        def update(p: Any) -> None:
            p.data.sub_(p.grad)
            p.grad = None

        w.register_post_accumulate_grad_hook(update)

        def step(x: Any) -> Any:
            loss = (w * x).sum()
            loss.backward()
            return loss.detach()

        step, seen = wrap(step), []
        for k in range(6):
            w.grad = gradcore.ones(3) if k in (2, 5) else None
            seen.append((step(gradcore.ones(3)).item(), w.tolist(), w.grad is None))
        return seen

    assert run(lambda f: f) == run(gradcore.compile)
