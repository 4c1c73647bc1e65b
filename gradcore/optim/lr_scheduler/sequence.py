"""Combinations of schedules: ``ChainedScheduler`` and ``SequentialLR``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from gradcore.optim.lr_scheduler.base import LRScheduler, need_optimizer, rates_of, set_rate
from gradcore.optim.lr_scheduler.plateau import ReduceLROnPlateau
from gradcore.optim.optimizer import Optimizer


class _Several(LRScheduler):
    """Several schedules of one optimizer; their states are the list ``_schedulers`` in the state dict, as in PyTorch."""

    _schedulers: list[LRScheduler]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


def _checked(name: str, schedulers: Sequence[LRScheduler], optimizer: Optimizer) -> list[LRScheduler]:
    """The schedules. Raises ValueError for one of another optimizer, and for one that needs a metric."""
    for k, scheduler in enumerate(schedulers):
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ValueError(f"{name} does not support `ReduceLROnPlateau`, whose step() needs a metric, but got one at index "
                             f"{k}")
        if scheduler.optimizer is not optimizer:
            raise ValueError(f"{name} expects all schedulers to belong to the same optimizer, but the one at index {k} belongs "
                             "to another")
    return list(schedulers)


class ChainedScheduler(_Several):
    """Steps all schedules at every step. Raises ValueError for none, for another optimizer's, and one that needs a metric."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler expects at least one scheduler to be chained, but got none")
        self.optimizer = need_optimizer(optimizer or schedulers[0].optimizer)
        self._schedulers = _checked("ChainedScheduler", schedulers, self.optimizer)
        self._last_lr = rates_of(self.optimizer)

    def step(self, epoch: int | None = None) -> None:
        for scheduler in self._schedulers:
            scheduler.step(epoch)
        self._last_lr = rates_of(self.optimizer)


class SequentialLR(_Several):
    """The first schedule up to the first milestone, then the next one from its own epoch 0, and so on.

    Raises ValueError if milestones and schedules do not match, for a schedule of another optimizer, and for
    :class:`ReduceLROnPlateau`, whose step needs a metric.
    """

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int],
                 last_epoch: int = -1) -> None:
        if not schedulers:
            raise ValueError("SequentialLR expects at least one scheduler, but got none")
        if len(milestones) != len(schedulers) - 1:
            raise ValueError("Sequential Schedulers expects number of schedulers provided to be one more than the number of "
                             f"milestone points, but got number of schedulers {len(schedulers)} and the number of milestones "
                             f"to be equal to {len(milestones)}")
        self.optimizer = need_optimizer(optimizer)
        self._schedulers = _checked("SequentialLR", schedulers, optimizer)
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            set_rate(group, group["initial_lr"])
        _take_back(self._schedulers)
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        if epoch is not None:
            raise ValueError(f"SequentialLR.step() takes no epoch, but got {epoch}")
        self.last_epoch += 1
        at = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[at]
        scheduler.step(0 if at and self._milestones[at - 1] == self.last_epoch else None)
        self._last_lr = scheduler.get_last_lr()


def _take_back(schedulers: Sequence[LRScheduler]) -> None:
    """Undo the first step of each schedule, taken on construction."""
    for scheduler in schedulers:
        if isinstance(scheduler, _Several):
            _take_back(scheduler._schedulers)
        else:
            scheduler.last_epoch -= 1
            scheduler._step_count = 0
