"""Schedules of learning rates that a compiled function steps itself: each replay steps them, or the function runs eagerly."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn, optim
from gradcore.errors import TraceError
from gradcore.optim import lr_scheduler
from tests.conftest import raises

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5], 0.5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9 if epoch % 2 else 1.05),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.25, 1.0, 6),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 8, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum="momentum" in o.defaults),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, 20),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o, 0.1, 2),
                                                                lr_scheduler.ExponentialLR(o, 0.9)]),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3),
                                                            lr_scheduler.CosineAnnealingLR(o, 6)], [3]),
    "SWALR": lambda o: optim.swa_utils.SWALR(o, 0.05, 4),
}


class Training:
    """A model, an optimizer and a schedule, which the step steps."""

    def __init__(self, schedule: Callable[[Any], Any], kind: str = "SGD", **options: Any) -> None:
        gradcore.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = getattr(optim, kind)(self.model.parameters(), **{"lr": 0.1, **options})
        self.schedule = schedule(self.optimizer)

    def update(self, x: Any) -> Any:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self, x: Any) -> Any:
        loss = self.update(x)
        self.schedule.step()
        return loss


def batch(k: int) -> Any:
    return gradcore.randn(4, 3, generator=gradcore.Generator().manual_seed(k))


def steps_of(t: Any, run: Any, count: int = 12) -> list[Any]:
    """By step: the loss, and the options that a schedule sets."""
    found = []
    for k in range(count):
        loss = run(batch(k)).item()
        group = t.optimizer.param_groups[0]
        found.append((loss, group["lr"], group.get("momentum"), group.get("betas"), t.schedule.get_last_lr()))
    return [*found, t.model.weight.tolist(), t.schedule.state_dict().get("last_epoch")]


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_steps_change_is_declared(name: str) -> None:
    """Also what the traced step happens to leave as it was."""
    t, changed = Training(SCHEDULES[name], momentum=0.9), set()
    for _ in range(12):
        before = {**vars(t.schedule)}
        t.step(batch(0))
        changed |= {name for name, x in vars(t.schedule).items() if x is not before[name]}
    assert changed <= t.schedule._schedule_advances


@pytest.mark.parametrize("kind, options", [("SGD", {"momentum": 0.9}), ("Adam", {})])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_replay_steps_the_schedule(name: str, kind: str, options: dict[str, Any]) -> None:
    eager, t = (Training(SCHEDULES[name], kind, **options) for _ in range(2))
    f = gradcore.compile(t.step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert steps_of(t, f) == steps_of(eager, eager.step)
    # The first makes the optimizer's state.
    assert len(f.traces) == 2 and len(f.programs) == 1


def test_schedules_in_a_list_are_stepped_in_order_and_as_often() -> None:
    def several(o: Any) -> Any:
        return SimpleNamespace(step=lambda: [s.step() for s in (*parts, parts[0])], get_last_lr=parts[-1].get_last_lr,
                               state_dict=parts[0].state_dict) if (parts := [lr_scheduler.ExponentialLR(o, 0.9),
                                                                             lr_scheduler.StepLR(o, 2, 0.5)]) else None

    eager, t = (Training(several) for _ in range(2))
    f = gradcore.compile(t.step)
    assert steps_of(t, f) == steps_of(eager, eager.step)
    assert len(f.traces) == 2 and len(f.programs[0].updates) == 1


def test_a_checked_call_steps_it_once() -> None:
    eager, t = (Training(SCHEDULES["StepLR"], momentum=0.9) for _ in range(2))
    f = gradcore.compile(t.step, check_every=2)
    assert steps_of(t, f) == steps_of(eager, eager.step)
    assert len(f.traces) == 2


def test_a_replay_that_fails_does_not_step_it() -> None:
    t = Training(SCHEDULES["ExponentialLR"])

    def step(x: Any, at: Any) -> None:
        t.optimizer.zero_grad()
        loss = t.model(x)[at].square().mean()
        loss.backward()
        t.optimizer.step()
        t.schedule.step()

    f = gradcore.compile(step)
    good, bad = gradcore.tensor([1, 2]), gradcore.tensor([1, 9])
    for _ in range(3):
        f(batch(0), good)
    before = t.optimizer.param_groups[0]["lr"], t.schedule.last_epoch
    with raises(IndexError, "9"):
        f(batch(0), bad)
    assert (t.optimizer.param_groups[0]["lr"], t.schedule.last_epoch) == before
    f(batch(0), good)
    assert t.schedule.last_epoch == before[1] + 1


def test_the_error_of_a_schedule_that_has_ended_comes_after_the_update() -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        t = Training(lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=3))
        run: Any = wrap(t.step)
        for k in range(3):
            run(batch(k))
        with raises(ValueError, "4"):
            run(batch(3))
        found.append(t.model.weight.tolist())
    assert found[0] == found[1]


def both(make: Callable[[], Training], step: Callable[..., Any], *more: Callable[[Training], Any]) -> Any:
    """The compiled step, which has done what the eager one does; ``more`` make further arguments."""
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        t = make()
        run: Any = wrap(partial(step, t))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = [run(batch(k), *[of(t) for of in more]) for k in range(5)]
        found.append((results, t.optimizer.param_groups[0]["lr"], t.model.weight.tolist()))
    assert found[0] == found[1]
    return run


READS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "its rate": (lambda t: t.schedule.get_last_lr()[0], "which the function reads"),
    "its epoch": (lambda t: t.schedule.last_epoch, "which the function reads"),
    "the options": (lambda t: t.optimizer.param_groups[0]["lr"], "which the function reads"),
    "its attributes": (lambda t: vars(t.schedule)["_step_count"], "which the function reads"),
    "its state": (lambda t: t.schedule.state_dict()["last_epoch"], "calls StepLR.state_dict()"),
    "the optimizer's state": (lambda t: t.optimizer.state_dict()["param_groups"][0]["lr"], "which the function reads"),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", READS)
def test_a_function_that_reads_what_it_changes_runs_eagerly(what: str, when: str) -> None:
    read, why = READS[what]

    def before(t: Any, x: Any) -> Any:
        rate = read(t)
        t.step(x)
        return rate

    def after(t: Any, x: Any) -> Any:
        t.step(x)
        return read(t)

    f = both(lambda: Training(SCHEDULES["StepLR"], momentum=0.9), before if when == "before" else after)
    assert not f.programs and why in f.traces[1], f.traces


def test_of_a_schedule_that_is_an_argument_too() -> None:
    def step(t: Any, x: Any, schedule: Any) -> Any:
        t.update(x)
        schedule.step()
        return schedule.last_epoch

    f = both(lambda: Training(SCHEDULES["StepLR"]), step, lambda t: t.schedule)
    assert not f.programs and "which the function reads" in f.traces[1], f.traces


def test_of_what_only_some_steps_change() -> None:
    def step(t: Any, x: Any) -> Any:
        t.step(x)
        return t.schedule.T_i

    f = both(lambda: Training(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2)), step)
    assert not f.programs and "which the function reads" in f.traces[1], f.traces


def test_other_attributes_of_a_schedule_are_guarded() -> None:
    def step(t: Any, x: Any, schedule: Any) -> Any:
        t.step(x)
        return x[0, 0] * schedule.gamma

    t = Training(SCHEDULES["StepLR"])
    f = gradcore.compile(partial(step, t))
    for gamma in (0.5, 0.5, 0.5, 0.25):
        t.schedule.gamma = gamma
        assert f(gradcore.ones(1, 3), t.schedule).item() == gamma


class Halving(lr_scheduler.LRScheduler):
    """A schedule of the user's."""

    def get_lr(self) -> list[float]:
        return [rate / 2 ** (self.last_epoch % 2) for rate in self.base_lrs]


REFUSED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "an epoch": (SCHEDULES["StepLR"], lambda t: t.schedule.step(2), "is given an epoch"),
    "a metric": (lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0), lambda t: t.schedule.step(1.0), "or a metric"),
    "the user's": (Halving, lambda t: t.schedule.step(), "Halving.get_lr() is not a method of gradcore's"),
    "another update": (SCHEDULES["ExponentialLR"], lambda t: (t.schedule.step(), t.optimizer.step()),
                       "updates parameters after ExponentialLR.step()"),
    "state that it loads": (SCHEDULES["ExponentialLR"], lambda t: t.schedule.load_state_dict({"last_epoch": 0}),
                            "calls ExponentialLR.load_state_dict()"),
    "one that it makes": (SCHEDULES["ExponentialLR"], lambda t: lr_scheduler.StepLR(t.optimizer, 1, 0.5).step(),
                          "makes a StepLR for an optimizer from outside"),
    "one that it copies": (SCHEDULES["ExponentialLR"], lambda t: copy.copy(t.schedule).step(),
                           "makes a ExponentialLR for an optimizer from outside"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_steps_run_eagerly(what: str) -> None:
    make, act, why = REFUSED[what]

    def step(t: Any, x: Any) -> Any:
        t.update(x)
        act(t)

    f = both(lambda: Training(make), step)
    assert not f.programs and why in f.traces[1], f.traces


def test_one_that_resets_the_rate_only_is_noticed() -> None:
    def step(t: Any, x: Any) -> None:
        t.update(x)
        lr_scheduler.SequentialLR(t.optimizer, [t.schedule, t.schedule], [3])

    f = both(lambda: Training(SCHEDULES["ExponentialLR"]), step)
    assert not f.programs and "makes a SequentialLR" in f.traces[1]


def test_another_schedule_in_its_place_is_stepped() -> None:
    t = Training(SCHEDULES["ExponentialLR"])
    f = gradcore.compile(t.step)
    for k in range(3):
        f(batch(k))
    t.schedule = lr_scheduler.ConstantLR(t.optimizer, 0.5)
    for k in range(3):
        f(batch(k))
    assert t.schedule.last_epoch == 3 and "schedule" in f.traces[-1]


def test_functions_that_take_them_as_first_arguments_are_not_methods_of_theirs() -> None:
    def update(optimizer: Any, loss: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def advance(schedule: Any) -> None:
        schedule.step()

    def step(t: Any, x: Any) -> None:
        update(t.optimizer, t.model(x).square().mean())
        advance(t.schedule)

    f = both(lambda: Training(SCHEDULES["ExponentialLR"]), step)
    # The first call finds no gradients.
    assert len(f.programs) == len(f.traces) == 2


def test_a_rate_that_is_scheduled_outside_needs_no_other_trace_where_a_function_takes_the_optimizer_first() -> None:
    def update(optimizer: Any, loss: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    t = Training(SCHEDULES["ExponentialLR"])
    f = gradcore.compile(lambda x: update(t.optimizer, t.model(x).square().mean()))
    for k in range(5):
        f(batch(k))
        t.schedule.step()
    assert len(f.traces) == 2


def test_a_rate_that_is_a_tensor_would_be_read() -> None:
    t = Training(SCHEDULES["StepLR"], lr=gradcore.tensor(0.1))
    with raises(TraceError, "StepLR.step()", "reads a value of a tensor on the host"):
        gradcore.compile(t.step)(batch(0))


def test_one_that_it_makes_for_an_optimizer_of_its_own_is_replayed() -> None:
    p = nn.Parameter(gradcore.ones(2))

    @gradcore.compile
    def f(x: Any) -> None:
        optimizer = optim.SGD([p], lr=0.5)
        schedule = lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(2):
            optimizer.zero_grad()
            (p * x).sum().backward()
            optimizer.step()
            schedule.step()

    for _ in range(4):
        f(gradcore.ones(2))
    assert p.tolist() == [1 - 4 * 0.75] * 2


def test_a_program_that_steps_a_schedule_is_not_saved(tmp_path: Any) -> None:
    t = Training(SCHEDULES["StepLR"])
    f = gradcore.compile(t.step)
    for k in range(2):
        f(batch(k))
    with raises(TraceError, "steps a StepLR"):
        f.save(tmp_path / "program")
