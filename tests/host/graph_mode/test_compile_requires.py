"""Steps that set ``requires_grad``: replayed if all is as it was when they return, refused otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn

Sets = Callable[[nn.Module, bool], object]


def by_assignment(m: nn.Module, wanted: bool) -> None:
    for p in m.parameters():
        p.requires_grad = wanted


def by_one_after_another(m: nn.Module, wanted: bool) -> None:
    params = [*m.parameters()]
    while params:
        params.pop().requires_grad = wanted


def by_the_method_of_each(m: nn.Module, wanted: bool) -> None:
    for p in m.parameters():
        p.requires_grad_(wanted)


def by_the_modules_method(m: nn.Module, wanted: bool) -> None:
    m.requires_grad_(wanted)


WAYS = [by_assignment, by_one_after_another, by_the_method_of_each, by_the_modules_method]


@pytest.mark.parametrize("sets", WAYS)
def test_a_judge_that_does_not_learn_meanwhile(sets: Sets) -> None:
    def losses(wrap: Callable[[Any], Any]) -> tuple[list[Any], Any]:
        gradcore.manual_seed(0)
        generator, judge = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizers = [gradcore.optim.SGD(m.parameters(), lr=0.1) for m in (generator, judge)]

        def step(z: Any, x: Any) -> Any:
            sets(judge, False)
            optimizers[0].zero_grad()
            ours = -judge(generator(z)).mean()
            ours.backward()
            optimizers[0].step()
            sets(judge, True)
            optimizers[1].zero_grad()
            theirs = (judge(generator(z).detach()) - judge(x)).mean()
            theirs.backward()
            optimizers[1].step()
            return ours.detach(), theirs.detach()

        run, found = wrap(step), []
        for k in range(6):
            found.append([v.item() for v in run(gradcore.full((4, 2), 0.1 * k), gradcore.full((4, 3), 0.2 * k))])
            assert all(p.requires_grad and p.grad is not None for p in judge.parameters())
        return [*found, [p.tolist() for p in (*judge.parameters(), *generator.parameters())]], run

    eager, _ = losses(lambda f: f)
    compiled, step = losses(gradcore.compile)
    assert compiled == eager
    # The first step finds no gradients.
    assert len(step.programs) == len(step.traces) == 2, step.explain()


@pytest.mark.parametrize("sets", WAYS)
def test_what_stays_frozen_is_refused_until_it_is(sets: Sets) -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        m = nn.Linear(2, 2)

        def step(x: Any, m: Any = m) -> Any:
            loss = m(x).sum()
            sets(m, False)
            return loss.detach()

        run, x = wrap(step), gradcore.ones(1, 2)
        for k in range(8):
            if k == 4:
                m.requires_grad_(True)
            found.append((run(x).item(), [p.requires_grad for p in m.parameters()]))
    assert found[:8] == found[8:]
    assert "assigns to requires_grad of a Parameter" in run.traces[0]
    # It is called with trainable weights twice, and each time what it does is another thing.
    assert len(run.programs) == 1 and "cannot be replayed" in run.traces[2], run.explain()


@pytest.mark.parametrize("sets", WAYS)
def test_what_each_call_turns_round_is_never_replayed(sets: Sets) -> None:
    m = nn.Linear(2, 2)

    def step(x: Any) -> Any:
        sets(m, not m.weight.requires_grad)
        return m(x).detach()

    run, found = gradcore.compile(step), []
    for _ in range(6):
        run(gradcore.ones(1, 2))
        found.append([p.requires_grad for p in m.parameters()])
    assert found == [[False, False], [True, True]] * 3 and not run.programs, run.explain()


def test_a_weight_that_needs_no_gradient_gets_one_in_the_run() -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        w = gradcore.full((3,), 2.0)

        def step(x: Any, w: Any = w) -> Any:
            w.requires_grad = True
            w.grad = None
            loss = (w * x).square().sum()
            loss.backward()
            w.requires_grad = False
            return loss.detach()

        run = wrap(step)
        for k in range(6):
            loss = run(gradcore.full((3,), float(k)))
            found.append((loss.item(), w.requires_grad, w.grad.tolist()))
    assert found[:6] == found[6:]


def test_what_the_run_makes_may_require_a_gradient() -> None:
    def slopes(x: Any) -> Any:
        x = x.detach()
        x.requires_grad = True
        (x * x * x).sum().backward()
        return x.grad

    run = gradcore.compile(slopes)
    for k in range(4):
        assert run(gradcore.full((2,), float(k))).tolist() == [3.0 * k * k] * 2
    assert len(run.programs) == 1 and len(run.traces) == 1, run.explain()


def test_an_argument_that_is_made_to_require_a_gradient_is_refused() -> None:
    def slopes(x: Any) -> Any:
        x.requires_grad = True
        return (x * x).sum().detach()

    run = gradcore.compile(slopes)
    for k in range(3):
        x = gradcore.full((2,), float(k))
        assert run(x).item() == 2.0 * k * k and x.requires_grad
    assert not run.programs
