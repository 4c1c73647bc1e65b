"""Gradients that a compiled function assigns itself, ``p.grad = g``: those that it has made, as by ``grad``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim

Step = Callable[[Any, Any, Any], Any]


def runs(step: Step, optimizer: str | None = None, held: int = 0) -> Any:
    """The compiled step of two parameters and a batch, which has done in seven calls what the eager one does.

    Every ``held``-th gradient is kept.
    """
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        a, b = (nn.Parameter(gradcore.randn(4, 4)) for _ in range(2))
        update = getattr(optim, optimizer)([a, b], lr=0.1) if optimizer else None

        def both(x: Any, a: Any = a, b: Any = b, update: Any = update) -> Any:
            result = step(a, b, x)
            if update is not None:
                update.step()
            return result

        run: Any = wrap(both)
        seen, kept = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k in range(7):
                x = gradcore.tensor(np.random.default_rng(k).standard_normal((4, 4)).astype(np.float32))
                result = run(x)
                if held and k % held == held - 1:
                    kept.append(a.grad)
                shown = [a, b, a.grad, b.grad, *kept, *([] if result is None else [result])]
                seen.append(([None if t is None else (t.tolist(), t.stride()) for t in shown], result is a.grad,
                             gradcore.memory_allocated("cpu")))
                # A gradient that something refers to is held.
                del shown, result, x
        found.append(seen)
    assert found[0] == found[1]
    return run


def loss_of(a: Any, b: Any, x: Any) -> Any:
    return ((x @ a).tanh() @ b).square().mean()


def by_grad(a: Any, b: Any, x: Any) -> None:
    a.grad, b.grad = gradcore.autograd.grad(loss_of(a, b, x), [a, b])


def scaled(a: Any, b: Any, x: Any) -> Any:
    a.grad = b.grad = None
    loss = loss_of(a, b, x)
    loss.backward()
    a.grad = a.grad * 0.5
    return loss.detach()


def exchanged(a: Any, b: Any, x: Any) -> Any:
    by_grad(a, b, x)
    a.grad, b.grad = b.grad, a.grad
    return a.grad


def transposed(a: Any, b: Any, x: Any) -> None:
    by_grad(a, b, x)
    a.grad = (a.grad + 1).t()
    b.grad = b.grad.sum(0, keepdim=True).expand(4, 4)


def added_to(a: Any, b: Any, x: Any) -> None:
    by_grad(a, b, x)
    (x @ a).sum().backward()


def added_to_the_last(a: Any, b: Any, x: Any) -> None:
    for p, g in zip((a, b), gradcore.autograd.grad(loss_of(a, b, x), [a, b]), strict=True):
        p.grad = g if p.grad is None else p.grad + g


def written_to(a: Any, b: Any, x: Any) -> Any:
    by_grad(a, b, x)
    g = a.grad * 2
    a.grad = g
    g.add_(1)
    return g


def part_of_a_tensor(a: Any, b: Any, x: Any) -> None:
    if a.grad is not None:
        a.grad.zero_()
    (x * a).sum().backward()
    a.grad, _ = (gradcore.cat([a.grad, a.grad]) * 0.9).split(4)


def changed_in_place(a: Any, b: Any, x: Any) -> None:
    (x * a).sum().backward()
    a.grad = a.grad.mul_(0.5)


def dropped(a: Any, b: Any, x: Any) -> None:
    by_grad(a, b, x)
    a.grad = None


REPLAYED = (by_grad, scaled, exchanged, transposed, added_to, added_to_the_last, written_to, part_of_a_tensor, changed_in_place,
            dropped)


@pytest.mark.parametrize("held", [0, 1, 2])
@pytest.mark.parametrize("optimizer", [None, "SGD", "Adam"])
@pytest.mark.parametrize("step", REPLAYED)
def test_a_gradient_that_it_makes_is_assigned_by_replays(step: Step, optimizer: str | None, held: int) -> None:
    run = runs(step, optimizer, held)
    assert run.programs and not any("cannot be replayed" in why for why in run.traces[2:]), run.traces


def of_an_argument(a: Any, b: Any, x: Any) -> None:
    by_grad(a, b, x)
    a.grad = x


def what_shows_an_argument(a: Any, b: Any, x: Any) -> None:
    by_grad(a, b, x)
    a.grad = x.detach().t()


def anothers(a: Any, b: Any, x: Any) -> None:
    b.grad = gradcore.ones(4, 4) if a.grad is None else a.grad
    (x * a).sum().backward()


def with_a_graph(a: Any, b: Any, x: Any) -> None:
    a.grad = (x * b).exp()


def parts_of_one(a: Any, b: Any, x: Any) -> None:
    gradients = gradcore.autograd.grad(loss_of(a, b, x), [a, b])
    for p, g in zip((a, b), gradcore.cat([g.flatten() for g in gradients]).split(16), strict=True):
        p.grad = g.view_as(p)


def the_same(a: Any, b: Any, x: Any) -> None:
    a.grad = b.grad = x * 2


REFUSED: dict[Step, str] = {
    of_an_argument: "assigns to grad", what_shows_an_argument: "assigns to grad", anothers: "assigns to grad",
    with_a_graph: "assigns to grad", parts_of_one: "gradients in the same memory", the_same: "gradients in the same memory"}


@pytest.mark.parametrize("step", REFUSED)
def test_others_are_assigned_eagerly(step: Step) -> None:
    run = runs(step)
    assert any("cannot be replayed" in why and REFUSED[step] in why for why in run.traces), run.traces
    assert not run.programs or step is anothers


def test_that_of_a_parameter_which_requires_none_is_assigned_eagerly() -> None:
    def step(a: Any, b: Any, x: Any) -> None:
        a.requires_grad_(False)
        a.grad = x * 2

    run = runs(step)
    assert not run.programs and "assigns to grad" in run.traces[1]


def test_the_numbers_of_an_update_are_those_of_each_run_where_gradients_are_not_contiguous() -> None:
    """The op of the update copies them before it runs."""
    run = runs(transposed, "Adam")
    update = next(i for i in run.programs[0].instructions if i.op == "adam_")
    assert [x.position for x in update.operands if isinstance(x, gradcore.program.Number)] == [0, 1, 2]


def test_a_backward_does_not_add_in_place_to_a_gradient_whose_elements_share_memory() -> None:
    p = nn.Parameter(gradcore.ones(3))
    p.grad = gradcore.ones(1).expand(3).detach()
    (p * gradcore.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert p.grad.tolist() == [2, 3, 4]
