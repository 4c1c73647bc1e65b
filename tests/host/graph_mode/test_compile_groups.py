"""Compiled steps that name an optimizer's groups: those that take only parameters from them are replayed while rates change."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.optim import lr_scheduler

#: What a step does with ``opt`` or ``self.opt`` before the update, to give a list of parameters.
TAKES = ("ps = [p for g in opt.param_groups for p in g['params']]",
         "ps = [p for g in self.opt.param_groups for p in g['params'] if p.grad is not None]",
         "ps = list(p for g in self.opt.param_groups for p in g['params'])",
         "ps = {p: 1 for group in opt.param_groups for p in group['params']}",
         "ps = []\n    for group in opt.param_groups:\n        ps += group['params']",
         "for g in opt.param_groups:\n        ps = g['params']\n        nn.utils.clip_grad_norm_(g['params'], 1.0)",
         "ps = opt.param_groups[0]['params']", "ps = opt.param_groups[-1]['params'][:1]")
#: The same, but what they give depends on the rate ``opt.param_groups[0]['lr']``, or may.
READS = ("ps = [p * g['lr'] for g in opt.param_groups for p in g['params']]",
         "ps = [p for g in opt.param_groups for p in g['params'] if g['lr'] > 0.05 or p.dim() > 1]",
         "ps = [g['params'][0] * h['lr'] for h in opt.param_groups for g in opt.param_groups]",
         "ps = [f() for g in opt.param_groups for f in [lambda: g['params'][0] * g['lr']]]",
         "for g in opt.param_groups:\n        ps = g['params']\n    ps = [ps[0] * g['lr']]",
         "for g in opt.param_groups:\n        ps = [g['params'][0] * g[key]]",
         "for g in opt.param_groups:\n        ps = [g['params'][0] * locals()['g']['lr']]",
         "for g in opt.param_groups:\n        ps = g['params'], dict(g)\n    ps = [ps[0][0] * ps[1]['lr']]",
         "for g, in zip(opt.param_groups):\n        ps = [g['params'][0] * g['lr']]",
         "groups = opt.param_groups\n    ps = [p * g['lr'] for g in groups for p in g['params']]",
         "(g,) = opt.param_groups\n    ps = [g['params'][0] * g['lr']]",
         "ps = [next(g for g in opt.param_groups)['params'][0] * next(g for g in opt.param_groups)['lr']]",
         "ps = [p * getattr(opt, 'param_' + 'groups')[0]['lr'] for p in getattr(opt, 'param_groups')[0]['params']]",
         "ps = [opt.param_groups[0]['params'][0] * opt.param_groups[0]['lr']]",
         "ps = [opt.param_groups[:1][0]['params'][0] * opt.param_groups[:1][0]['lr']]",
         "match opt:\n        case SGD(param_groups=[{'params': ps, 'lr': lr}]):\n            ps = [ps[0] * lr]",
         "ps = [opt.param_groups[0]['params'][0] * opt.state_dict()['param_groups'][0]['lr']]",
         "ps = [model.weight * float(f'{opt}'.split('lr: ')[1].split()[0])]")


def run(text: str, compiles: bool) -> tuple[list[Any], list[str]]:
    """The results of six steps, with two rates taking turns, and why the step was traced."""
    gradcore.manual_seed(0)
    model = nn.Linear(3, 2)
    opt = gradcore.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    scope: dict[str, Any] = {"nn": nn, "model": model, "opt": opt, "self": SimpleNamespace(opt=opt), "key": "lr",
                             "SGD": gradcore.optim.SGD}
    exec(f"def step(x):\n    opt.zero_grad()\n    model(x).square().sum().backward()\n    {text}\n"
         "    total = sum(p.detach().sum() for p in ps)\n    opt.step()\n    return total", scope)
    step, found = gradcore.compile(scope["step"], max_programs=20) if compiles else scope["step"], []
    for k in range(6):
        opt.param_groups[0]["lr"] = (0.01, 0.1)[k // 2 % 2] + k / 1000
        found.append(step(gradcore.ones(4, 3)).item())
    scope.clear()
    return [found, model.weight.tolist()], getattr(step, "traces", [])


@pytest.mark.parametrize("text", TAKES)
def test_a_step_that_takes_the_parameters_of_groups_is_replayed_with_other_rates(text: str) -> None:
    results, traces = run(text, compiles=True)
    assert results == run(text, compiles=False)[0]
    # The first call makes the optimizer's state.
    assert len(traces) == 2, traces


@pytest.mark.parametrize("text", READS)
def test_a_step_that_reads_the_rate_of_groups_has_it_as_it_is(text: str) -> None:
    results, traces = run(text, compiles=True)
    assert results == run(text, compiles=False)[0]
    assert len(traces) == 6, traces


def clear(optimizer: Any) -> None:
    optimizer.zero_grad()


@pytest.mark.parametrize("act", [lambda optimizer, schedule: clear(optimizer), lambda optimizer, schedule: schedule.step()])
def test_a_function_that_updates_nothing_is_not_traced_again_for_another_rate(act: Callable[[Any, Any], None]) -> None:
    """Code of the user's that takes an optimizer and a schedule reads no rate by that."""
    p = nn.Parameter(gradcore.ones(2))
    optimizer = gradcore.optim.SGD([p], lr=0.1)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
    optimizer.step()

    @gradcore.compile
    def gradients(x: Any) -> None:
        optimizer.zero_grad()
        (p * x).sum().backward()
        act(optimizer, schedule)

    for _ in range(6):
        gradients(gradcore.ones(2))
        optimizer.step()
        schedule.step()
    # The first call finds no gradients.
    assert len(gradients.traces) <= 2


@pytest.mark.parametrize("kind, options, schedule, why", [
    # Its update takes the rate as a number.
    ("Adafactor", {}, lambda o: lr_scheduler.ExponentialLR(o, 0.9), "which the function reads"),
    # Another op updates without momentum, at the top of the cycle.
    ("SGD", {"momentum": 0.9}, lambda o: lr_scheduler.OneCycleLR(o, 0.2, 8, pct_start=0.5, base_momentum=0.0),
     "that a program has fixed")])
def test_a_step_of_a_schedule_that_needs_another_program_is_noticed(
        kind: str, options: dict[str, float], schedule: Callable[[Any], Any], why: str) -> None:
    """A guard that looks at the option after the step would let the next call run with the one from before."""
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        p = nn.Parameter(gradcore.ones(2))
        optimizer = getattr(gradcore.optim, kind)([p], lr=0.1, **options)
        stepped = schedule(optimizer)

        def step(x: Any, p: Any = p, optimizer: Any = optimizer, stepped: Any = stepped) -> None:
            optimizer.zero_grad()
            (p * x).square().sum().backward()
            optimizer.step()
            stepped.step()

        run: Any = wrap(step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k in range(7):
                run(gradcore.full((2,), 1.0 + k))
        found.append((p.tolist(), optimizer.param_groups[0]["lr"]))
    assert found[0] == found[1] and any(why in trace for trace in run.traces), run.traces


def test_state_that_a_function_loads_is_loaded_by_each_call() -> None:
    p = nn.Parameter(gradcore.ones(2))
    optimizer = gradcore.optim.SGD([p], lr=0.1)
    saved = optimizer.state_dict()

    @gradcore.compile
    def step(x: Any) -> None:
        (p * x).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(saved)

    for _ in range(4):
        optimizer.param_groups[0]["lr"] = 0.5
        step(gradcore.ones(2))
        assert optimizer.param_groups[0]["lr"] == 0.1
    assert not step.programs and "loads the state of a SGD" in step.traces[0]
