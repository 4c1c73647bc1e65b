"""Learning rate schedules: PyTorch's rates, step for step, and resumed states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import optim
from tests.conftest import raises

S = optim.lr_scheduler

#: PyTorch expects a step of the optimizer before each step of a schedule.
WARNS = pytest.mark.filterwarnings("ignore:Detected call of")

#: Creates a schedule for an optimizer, given the module of schedules.
Make = Callable[[Any, Any], Any]

CASES: dict[str, Make] = {
    "step": lambda s, o: s.StepLR(o, 7, 0.5),
    "milestones": lambda s, o: s.MultiStepLR(o, [3, 11, 11, 25], 0.3),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.93),
    "constant": lambda s, o: s.ConstantLR(o, 0.25, 9),
    "constant zero": lambda s, o: s.LinearLR(o, 0.5, 0.0, 6),
    "linear": lambda s, o: s.LinearLR(o, 0.1, 0.9, 12),
    "polynomial": lambda s, o: s.PolynomialLR(o, 20, 1.5),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, 12, 0.01),
    "cosine to zero": lambda s, o: s.CosineAnnealingLR(o, 7),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 5, 2, 0.02),
    "even restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 7),
    "lambda": lambda s, o: s.LambdaLR(o, lambda epoch: 0.9 ** (epoch // 3)),
    "lambdas": lambda s, o: s.LambdaLR(o, [lambda epoch: 1 / (epoch + 1), lambda epoch: 0.5]),
    "one cycle": lambda s, o: s.OneCycleLR(o, 0.7, 41),
    "one cycle linear": lambda s, o: s.OneCycleLR(o, [0.7, 0.2], epochs=6, steps_per_epoch=7, anneal_strategy="linear",
                                                  pct_start=0.4),
    "three phases": lambda s, o: s.OneCycleLR(o, 0.7, 45, three_phase=True, base_momentum=0.6, final_div_factor=10),
    "cyclic": lambda s, o: s.CyclicLR(o, 0.1, [0.7, 0.3], 5),
    "cyclic halved": lambda s, o: s.CyclicLR(o, [0.1, 0.02], 0.7, 3, 8, mode="triangular2", max_momentum=0.99),
    "cyclic shrinking": lambda s, o: s.CyclicLR(o, 0.1, 0.7, 4, mode="exp_range", gamma=0.95, base_momentum=0.5),
    "cyclic by a function": lambda s, o: s.CyclicLR(o, 0.1, 0.7, 4, scale_fn=lambda k: 1 / k, cycle_momentum=False),
    "sequence": lambda s, o: s.SequentialLR(o, [s.LinearLR(o, 0.1, 1.0, 5), s.CosineAnnealingLR(o, 20),
                                                s.ExponentialLR(o, 0.8)], [5, 25]),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda epoch: 0.9 if epoch % 3 else 0.8),
    "multiplicative from a milestone on": lambda s, o: s.SequentialLR(o, [s.StepLR(o, 2), s.MultiplicativeLR(o, lambda e: 0.9)],
                                                                      [4]),
    "chained": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 4), s.ExponentialLR(o, 0.9)]),
    "nested": lambda s, o: s.SequentialLR(o, [s.SequentialLR(o, [s.ConstantLR(o, 0.1, 3), s.StepLR(o, 2)], [4]),
                                              s.MultiStepLR(o, [2, 6])], [12]),
}


def optimizer(library: Any, name: str = "SGD", **options: Any) -> Any:
    p, q = library.zeros(2, requires_grad=True), library.zeros(3, requires_grad=True)
    return getattr(library.optim, name)([{"params": [p]}, {"params": [q], "lr": 0.05}], lr=0.4, **options)


def figures(group: Any) -> tuple[float, ...]:
    return (group["lr"], group.get("momentum", 0), *group.get("betas", ()))


@pytest.mark.oracle
@WARNS
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_forty_steps_are_pytorchs(torch: Any, name: str, kind: str) -> None:
    options = {"momentum": 0.9} if kind == "SGD" else {}
    ours, theirs = optimizer(gradcore, kind, **options), optimizer(torch, kind, **options)
    a, b = CASES[name](S, ours), CASES[name](torch.optim.lr_scheduler, theirs)
    theirs.step()
    for step in range(41):
        assert a.get_last_lr() == pytest.approx(b.get_last_lr(), rel=1e-12, abs=1e-15)
        for own, other in zip(ours.param_groups, theirs.param_groups, strict=True):
            assert figures(own) == pytest.approx(figures(other), rel=1e-12, abs=1e-15)
        assert name == "chained" or a.last_epoch == b.last_epoch
        if step < 40:
            a.step()
            b.step()


@pytest.mark.oracle
@WARNS
@pytest.mark.parametrize("options", [{}, {"mode": "max"}, {"threshold_mode": "abs", "threshold": 0.1},
                                     {"patience": 2, "cooldown": 3, "min_lr": 0.01, "factor": 0.3},
                                     {"mode": "max", "threshold_mode": "abs", "patience": 0, "min_lr": [0.1, 0.2]}], ids=str)
def test_a_plateau_is_pytorchs(torch: Any, options: dict[str, Any]) -> None:
    ours, theirs = optimizer(gradcore), optimizer(torch)
    a = S.ReduceLROnPlateau(ours, **{"patience": 3, **options})
    b = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, **{"patience": 3, **options})
    for step in range(40):
        figure = [3.0, 2.5, 2.45, 2.45, 2.6, 2.0][step % 6] / (1 + step // 12)
        a.step(gradcore.tensor(figure) if step % 2 else figure)
        b.step(torch.tensor(figure) if step % 2 else figure)
        assert a.get_last_lr() == pytest.approx(b.get_last_lr(), rel=1e-12)
        assert (a.num_bad_epochs, a.cooldown_counter, a.best) == (b.num_bad_epochs, b.cooldown_counter, b.best)


def test_a_plateau_lowers_groups_that_came_later() -> None:
    def plateau(**options: Any) -> tuple[Any, Any]:
        o = gradcore.optim.SGD([gradcore.ones(2, requires_grad=True)], lr=0.1)
        schedule = S.ReduceLROnPlateau(o, patience=0, **options)
        schedule.step(1.0)
        o.add_param_group({"params": [gradcore.ones(2, requires_grad=True)], "lr": 0.2})
        return o, schedule

    o, schedule = plateau()
    schedule.step(1.0)
    assert [group["lr"] for group in o.param_groups] == pytest.approx([0.01, 0.02])
    _, schedule = plateau(min_lr=[0.0])
    with raises(RuntimeError, "The number of param groups in the `optimizer` (2) differs from when", "was initialized (1)"):
        schedule.step(1.0)


@pytest.mark.oracle
@WARNS
def test_two_schedules_of_one_optimizer_multiply(torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        o = optimizer(library)
        s = library.optim.lr_scheduler
        both = [s.LinearLR(o, 0.1, 1.0, 6), s.ExponentialLR(o, 0.9), s.StepLR(o, 4)]
        o.step()
        rates = []
        for _ in range(10):
            for schedule in both:
                schedule.step()
            rates.append(both[-1].get_last_lr())
        found.append(rates)
    for ours, theirs in zip(*found, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_schedule_goes_on_as_the_saved_one(name: str) -> None:
    options = {"momentum": 0.9}
    first, second = optimizer(gradcore, **options), optimizer(gradcore, **options)
    a, b = CASES[name](S, first), CASES[name](S, second)
    first.step()
    second.step()
    for _ in range(9):
        a.step()
    b.load_state_dict(a.state_dict())
    second.load_state_dict(first.state_dict())
    assert "optimizer" not in a.state_dict()
    for _ in range(20):
        a.step()
        b.step()
        assert a.get_last_lr() == b.get_last_lr() and first.param_groups[0]["lr"] == second.param_groups[0]["lr"]


@pytest.mark.oracle
@WARNS
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("name", ["step", "milestones", "cosine", "restarts", "even restarts", "lambdas", "multiplicative",
                                  "sequence", "cyclic"])
def test_a_state_is_taken_over_from_pytorch_and_by_it(torch: Any, name: str, back: bool) -> None:
    libraries = (gradcore, torch)[::-1 if back else 1]
    ours, theirs = (optimizer(library, momentum=0.9) for library in libraries)
    a, b = (CASES[name](library.optim.lr_scheduler, o) for library, o in zip(libraries, (ours, theirs), strict=True))
    ours.step()
    theirs.step()
    for _ in range(8):
        b.step()
    ours.load_state_dict({"state": {}, "param_groups": theirs.state_dict()["param_groups"]})
    a.load_state_dict(b.state_dict())
    for _ in range(8):
        a.step()
        b.step()
        assert a.get_last_lr() == pytest.approx(b.get_last_lr(), rel=1e-12)


@pytest.mark.oracle
@WARNS
def test_the_state_of_a_function_that_is_an_object_is_saved(torch: Any) -> None:
    class Warming:
        def __init__(self, steps: int) -> None:
            self.steps = steps

        def __call__(self, epoch: int) -> float:
            return min(1.0, (epoch + 1) / self.steps)

    found = []
    for library in (gradcore, torch):
        o, other = optimizer(library), optimizer(library)
        s = library.optim.lr_scheduler
        a, b = s.LambdaLR(o, [Warming(10), lambda epoch: 0.5]), s.LambdaLR(other, [Warming(3), lambda epoch: 0.5])
        b.load_state_dict(a.state_dict())
        b.step()
        found.append((a.state_dict()["lr_lambdas"], b.get_last_lr()))
    assert found[0] == found[1] and found[0][0] == [{"steps": 10}, None]


def test_a_schedule_of_ones_own_and_a_rate_in_a_tensor() -> None:
    class Half(S.LRScheduler):
        def get_lr(self) -> list[float]:
            return [base / 2 ** self.last_epoch for base in self.base_lrs]

    o = optim.SGD([gradcore.ones(2, requires_grad=True)], lr=gradcore.tensor(0.5))
    rate = o.param_groups[0]["lr"]
    half = Half(o)
    o.step()
    half.step()
    assert o.param_groups[0]["lr"] is rate and rate.item() == 0.25 and half.get_last_lr() == [0.25]
    half.step(4)
    assert rate.item() == 0.5 / 16


def test_going_on_after_an_epoch_needs_the_first_rate() -> None:
    o = optimizer(gradcore)
    with raises(KeyError, "'initial_lr' is not specified in param_groups[0]", "last_epoch=-1 instead of 3"):
        S.StepLR(o, 2, last_epoch=3)
    a = S.StepLR(o, 2)
    o.step()
    for _ in range(3):
        a.step()
    b = S.StepLR(o, 2, last_epoch=3)
    assert b.last_epoch == 4 and b.get_last_lr() == pytest.approx([0.004, 0.0005])


def test_errors_say_what_was_given() -> None:
    o, other = optimizer(gradcore), optim.Optimizer([gradcore.ones(2, requires_grad=True)], {"lr": 0.1})
    for make, kind, *texts in (
            (lambda: S.StepLR(3, 1), TypeError, "int is not an Optimizer"),
            (lambda: S.LambdaLR(o, [lambda _: 1.0]), ValueError, "Expected 2 lr_lambdas, but got 1"),
            (lambda: S.ConstantLR(o, 2.0), ValueError, "between 0 and 1, but got 2.0"),
            (lambda: S.LinearLR(o, 0.0), ValueError, "greater than 0 and less or equal to 1, but got 0.0"),
            (lambda: S.LinearLR(o, 1.0, 1.5), ValueError, "between 0 and 1, but got 1.5"),
            (lambda: S.CosineAnnealingWarmRestarts(o, 0), ValueError, "Expected positive integer T_0, but got 0"),
            (lambda: S.OneCycleLR(o, 0.1), ValueError, "either total_steps OR (epochs AND steps_per_epoch)"),
            (lambda: S.OneCycleLR(o, 0.1, -3), ValueError, "positive integer total_steps, but got -3"),
            (lambda: S.OneCycleLR(o, 0.1, 9, pct_start=2), ValueError, "between 0 and 1 pct_start, but got 2"),
            (lambda: S.OneCycleLR(o, 0.1, 9, anneal_strategy="no"), ValueError, "instead got no"),
            (lambda: S.OneCycleLR(o, [0.1], 9), ValueError, "expected 2 values for max_lr, got 1"),
            (lambda: S.OneCycleLR(other, 0.1, 9), ValueError, "optimizer must support momentum or beta1"),
            (lambda: S.CyclicLR(o, 0.1, 1, mode="round"), ValueError, "mode is invalid and scale_fn is None", "'round'"),
            (lambda: S.CyclicLR(other, 0.1, 1), ValueError, "optimizer must support momentum or beta1"),
            (lambda: S.SequentialLR(o, [S.StepLR(o, 1)], [3]), ValueError, "number of schedulers 1", "equal to 1"),
            (lambda: S.ChainedScheduler([]), ValueError, "at least one scheduler to be chained"),
            (lambda: S.ChainedScheduler([S.StepLR(o, 1), S.StepLR(other, 1)]), ValueError, "the one at index 1 belongs to"),
            (lambda: S.SequentialLR(o, [], []), ValueError, "at least one scheduler"),
            (lambda: S.SequentialLR(o, [S.StepLR(other, 1)], []), ValueError, "the one at index 0 belongs to another"),
            (lambda: S.SequentialLR(o, [S.ReduceLROnPlateau(o)], []), ValueError, "does not support `ReduceLROnPlateau`"),
            (lambda: S.ReduceLROnPlateau(o, "least"), ValueError, "mode least is unknown"),
            (lambda: S.ReduceLROnPlateau(o, factor=1.0), ValueError, "Factor should be < 1.0, but got 1.0"),
            (lambda: S.ReduceLROnPlateau(o, min_lr=[1]), ValueError, "expected 2 min_lrs, got 1"),
            (lambda: S.LRScheduler(o), NotImplementedError, "LRScheduler has no get_lr()")):
        with raises(kind, *texts):
            make()
    cycle = S.OneCycleLR(o, 0.1, 2, cycle_momentum=False)
    o.step()
    cycle.step()
    cycle.step()
    with raises(ValueError, "Tried to step 3 times. The specified number of total steps is 2"):
        cycle.step()
