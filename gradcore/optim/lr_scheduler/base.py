"""The base class of learning rate schedules."""

from __future__ import annotations

from typing import Any

from gradcore._tensor import Tensor
from gradcore.arguments import warn
from gradcore.optim.optimizer import Group, Optimizer


def rate_of(group: Group, key: str = "lr") -> float:
    """The learning rate of a group as a number, also if it is a tensor."""
    return float(group[key])


def rates_of(optimizer: Optimizer) -> list[float]:
    return [rate_of(group) for group in optimizer.param_groups]


def set_rate(group: Group, rate: float) -> None:
    """Set the learning rate of a group; a tensor is written in place, since a captured program keeps reading it."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(float(rate))
    else:
        group["lr"] = rate


def need_optimizer(optimizer: Any) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
    return optimizer


class LRScheduler:
    """Sets the learning rate of every group, first on construction and then at each :meth:`step`.

    Subclasses define ``get_lr()``, which returns the rates for ``last_epoch``, one per group; they may depend on ``base_lrs``
    and on the present rates. A ``last_epoch`` of -1 starts a schedule; another one resumes after that epoch, for which each
    group needs an ``initial_lr``. Raises TypeError if ``optimizer`` is not one, KeyError for a group without ``initial_lr``.
    """

    _last_lr: list[float]
    #: Attributes that steps change: a compiled function that steps a schedule and reads one of them is not replayed.
    _schedule_advances = frozenset(("last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial"))
    #: By PyTorch's names, which get_lr() of a program's schedule reads: is it called by step(), and by the first one?
    _get_lr_called_within_step = False
    _is_initial = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = need_optimizer(optimizer)
        for k, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", rate_of(group))
            elif "initial_lr" not in group:
                raise KeyError(f"param 'initial_lr' is not specified in param_groups[{k}] when resuming an optimizer: load "
                               f"the optimizer's state first, or begin with last_epoch=-1 instead of {last_epoch}")
        self.base_lrs = [rate_of(group, "initial_lr") for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        """Take the first step, which sets the first rates."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[float]:
        """The rates of the present epoch, one per group: subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr(), which must return the learning rates")

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, or to ``epoch``, with rates computed from ``base_lrs`` if the schedule has a closed form."""
        if self._step_count == 1 and not getattr(self.optimizer, "_opt_called", True):
            warn("Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call `optimizer.step()` first: otherwise "
                 "the first value of the schedule is skipped.")
        # Counted first, as in PyTorch: a program's get_lr() may compute the rates from it.
        self._step_count += 1
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._get_lr_called_within_step = True
        try:
            rates = self.get_lr() if epoch is None else self._schedule_from_base()
        finally:
            self._get_lr_called_within_step = False
        self._schedule_set(rates)

    def _schedule_from_base(self) -> list[float]:
        # By PyTorch's name, a subclass of a program's has a closed form.
        rates: list[float] = getattr(self, "_get_closed_form_lr", self.get_lr)()
        return rates

    def _schedule_set(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            set_rate(group, rate)
        self._last_lr = rates_of(self.optimizer)

    def get_last_lr(self) -> list[float]:
        """The rates that were set last, one per group."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """The state without the optimizer, under PyTorch's names."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a :meth:`state_dict`. The rates themselves are part of the optimizer's state."""
        self.__dict__.update(state_dict)
