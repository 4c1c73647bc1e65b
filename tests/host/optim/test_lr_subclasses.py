"""Schedules of a program's own, which derive from those of the library, and fractions of epochs: as in PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import gradcore


def overridden(library: Any) -> list[Any]:
    """What subclasses for PyTorch override, and what they look at."""
    schedules = library.optim.lr_scheduler

    class Jumps(schedules.LRScheduler):  # type: ignore[misc,name-defined]
        def get_lr(self) -> list[float]:
            return [group["lr"] / 2 for group in self.optimizer.param_groups]

        def _get_closed_form_lr(self) -> list[float]:
            return [base * 0.25 ** self.last_epoch for base in self.base_lrs]

    class Counts(schedules.ReduceLROnPlateau):  # type: ignore[misc,name-defined]
        def _is_better(self, a: float, best: float) -> bool:
            return a < best - 1

        def _reduce_lr(self, epoch: int) -> None:
            reduced.append((epoch, self.in_cooldown))
            super()._reduce_lr(epoch)

    class Twice(schedules.StepLR):  # type: ignore[misc,name-defined]
        def _get_closed_form_lr(self) -> list[float]:
            return [2 * rate for rate in super()._get_closed_form_lr()]

    reduced: list[Any] = []
    optimizer = library.optim.SGD([library.ones(1, requires_grad=True)], lr=1.0)
    optimizer.step()
    jumps = Jumps(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jumps.step(3)
        twice = Twice(optimizer, step_size=2)
        twice.step(2)
    found = [jumps.get_last_lr(), twice.get_last_lr()]
    jumps.step()
    plateau = Counts(optimizer, patience=0, cooldown=1, factor=0.5)
    for metric in (5.0, 4.5, 4.2, 2.0, 1.5):
        plateau.step(metric)
        found.append([plateau.best, plateau.in_cooldown, optimizer.param_groups[0]["lr"]])
    return [*found, reduced]


def told(library: Any) -> list[Any]:
    """What get_lr() of a subclass for PyTorch finds in its attributes."""
    found: list[Any] = []

    class Noam(library.optim.lr_scheduler.LRScheduler):  # type: ignore[misc,name-defined]
        def get_lr(self) -> list[float]:
            found.append((self._step_count, self.last_epoch, self._is_initial, self._get_lr_called_within_step))
            return [base * min(self._step_count ** -0.5, self._step_count * 4 ** -1.5) for base in self.base_lrs]

    class Begins(library.optim.lr_scheduler.ExponentialLR):  # type: ignore[misc,name-defined]
        def _initial_step(self) -> None:
            found.append("begins")
            super()._initial_step()

    optimizer = library.optim.SGD([library.ones(1, requires_grad=True)], lr=1.0)
    schedule = Noam(optimizer)
    for _ in range(5):
        optimizer.step()
        schedule.step()
        found.append(schedule.get_last_lr())
    found.append(schedule._get_lr_called_within_step)
    Begins(optimizer, 0.5)
    return found


@pytest.mark.oracle
def test_get_lr_of_a_subclass_finds_the_counts_and_flags_of_pytorch(torch: Any) -> None:
    assert told(gradcore) == told(torch)


def test_get_lr_may_compute_rates_from_the_count_of_steps() -> None:
    assert told(gradcore)[-3:] == [[pytest.approx(6 ** -0.5)], False, "begins"]


def restarted(library: Any) -> list[Any]:
    """Rates of a schedule that goes to fractions of epochs, back and on by itself."""
    optimizer = library.optim.SGD([library.ones(1, requires_grad=True)], lr=1.0)
    schedule = library.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3, 2, 0.01)
    found = []
    optimizer.step()
    for epoch in (0, 0.5, None, 2.75, None, None, 8.9, None, 9, 0.2, None, None, None, 21):
        schedule.step(epoch)
        found.append([schedule.last_epoch, schedule.T_i, *(round(x, 12) for x in (schedule.T_cur, *schedule.get_last_lr()))])
    with pytest.raises(ValueError, match="Expected non-negative epoch, but got -1"):
        schedule.step(-1)
    return found


@pytest.mark.oracle
def test_restarts_take_fractions_of_epochs(torch: Any) -> None:
    assert restarted(gradcore) == restarted(torch)


@pytest.mark.oracle
def test_subclasses_override_what_they_do_in_pytorch(torch: Any) -> None:
    assert overridden(gradcore) == overridden(torch)


def test_a_plateau_tells_of_its_cooldown() -> None:
    assert overridden(gradcore)[-1] == [(2, False), (5, False)]
