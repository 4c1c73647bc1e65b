"""Stochastic weight averaging: averages of a model's weights over training, and the learning rate schedule for it.

Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, arXiv:1803.05407.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gradcore import functional
from gradcore.engine.modes import no_grad
from gradcore.nn import paths
from gradcore.nn.module import Module
from gradcore.nn.norm import _BatchNorm
from gradcore.optim.lr_scheduler.base import LRScheduler, need_optimizer, rate_of
from gradcore.optim.lr_scheduler.cycle import each
from gradcore.optim.optimizer import Group, Optimizer

Tensor = Any
#: (average so far, the model's tensor, number of models averaged) -> the new average.
Average = Callable[[Tensor, Tensor, Tensor], Tensor]
#: As :data:`Average`, for lists of tensors of one device and dtype, in place.
Averages = Callable[[list[Tensor], list[Tensor], Tensor], None]


def get_swa_avg_fn() -> Average:
    """A function that computes the equally weighted mean."""
    return lambda averaged, current, count: averaged + (current - averaged) / (count + 1)


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """A function that computes decay * average + (1 - decay) * tensor. Raises ValueError for a ``decay`` outside [0, 1]."""
    _check_decay(decay)
    return lambda averaged, current, count: decay * averaged + (1 - decay) * current


def get_swa_multi_avg_fn() -> Averages:
    """As :func:`get_swa_avg_fn`, for lists of tensors, in place."""
    # A share of float32 would take half of a float64 model's digits.
    return _in_place(lambda count: 1 / ((count.double() if hasattr(count, "double") else count) + 1))


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """As :func:`get_ema_avg_fn`, for lists of tensors, in place. Raises ValueError for a ``decay`` outside [0, 1]."""
    _check_decay(decay)
    return _in_place(lambda count: 1 - decay)


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")


def _in_place(share_of: Callable[[Tensor], Any]) -> Averages:
    """A function that moves averages towards the tensors by a fraction of the difference."""

    @no_grad()
    def update(averaged: list[Tensor], current: list[Tensor], count: Tensor) -> None:
        share = share_of(count)
        pairs = list(zip(averaged, current, strict=True))
        # What takes memory comes first, so that averages are updated together or not at all.
        rounded = [(mine, mine + (given - mine) * share) for mine, given in pairs if not mine.is_floating_point()]
        for mine, given in pairs:
            if mine.is_floating_point():
                mine.lerp_(given, share)
        for mine, average in rounded:
            mine.copy_(average)

    return update


class AveragedModel(Module):
    """A copy of ``model`` with averaged parameters, by default their equally weighted mean over all updates.

    ``avg_fn(averaged, current, n_averaged)`` returns another average; all of them are made before the first is stored, so that
    an update that runs out of memory changes nothing. ``multi_avg_fn`` takes lists of one device and dtype, and updates the
    first in place, as the mean does, which takes no such memory. Buffers are copied from the model, or averaged with
    ``use_buffers``. Calls go to the copy, which is ``module``, on ``device`` if one is given. Raises ValueError if both
    functions are given.
    """

    n_averaged: Tensor

    def __init__(self, model: Module, device: Any = None, avg_fn: Average | None = None, multi_avg_fn: Averages | None = None,
                 use_buffers: bool = False) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", functional.zeros((), dtype=np.int64, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers
        paths.copied(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @no_grad()
    def update_parameters(self, model: Module) -> None:
        """Add the model's parameters to the average; the first time, copy them. Reads one number on the host."""
        # Copies from another device are made first: an update that runs out of memory changes nothing.
        pairs, buffers = ([(mine.detach(), given.detach().to(mine.device)) for mine, given in zip(own, others, strict=True)]
                          for own, others in ((self.module.parameters(), model.parameters()),
                                              (self.module.buffers(), model.buffers())))
        averaged, copied = (pairs + buffers, []) if self.use_buffers else (pairs, buffers)
        # Without values, an average is taken to be one of several: it takes more memory than a copy.
        if self.n_averaged.device.type != "meta" and self.n_averaged.item() == 0:
            copied = averaged + copied
        else:
            self._module_average(averaged)
        for mine, given in copied:
            mine.copy_(given)
        self.n_averaged.add_(1)

    def _module_average(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        counts = {mine.device: self.n_averaged.to(mine.device) for mine, _ in pairs}
        if self.avg_fn is not None:
            averages = [self.avg_fn(mine, given, counts[mine.device]) for mine, given in pairs]
            for (mine, _), average in zip(pairs, averages, strict=True):
                mine.copy_(average)
            return
        groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for mine, given in pairs:
            lists = groups.setdefault((mine.device, self.multi_avg_fn and mine.dtype), ([], []))
            lists[0].append(mine)
            lists[1].append(given)
        average_all = self.multi_avg_fn or get_swa_multi_avg_fn()
        for (device, _), (mines, givens) in groups.items():
            average_all(mines, givens, counts[device])


@no_grad()
def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Recompute the running statistics of the model's batch norms, as means over the batches of ``loader``.

    A batch is a tensor, or a list or tuple whose first element is the input.
    """
    momenta = {m: m.momentum for m in model.modules() if isinstance(m, _BatchNorm)}
    if not momenta:
        return
    training = model.training
    try:
        model.train()
        for module in momenta:
            module.reset_running_stats()
            module.momentum = None
        for batch in loader:
            given = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(given if device is None else given.to(device))
    finally:
        # Also after an error or an interrupt, since a momentum of None would change how the model is trained.
        for module, momentum in momenta.items():
            module.momentum = momentum
        model.train(training)


class SWALR(LRScheduler):
    """Anneals the present rates to ``swa_lr`` in ``anneal_epochs`` steps, and then keeps that rate.

    ``anneal_strategy`` is ``"cos"`` or ``"linear"``. Raises ValueError for another one, for a negative number of epochs, and
    for a list without one rate per group.
    """

    def __init__(self, optimizer: Optimizer, swa_lr: float | Sequence[float], anneal_epochs: int = 10,
                 anneal_strategy: str = "cos", last_epoch: int = -1) -> None:
        groups = need_optimizer(optimizer).param_groups
        for group, rate in zip(groups, each("swa_lr", groups, swa_lr), strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        done = self._step_count - 1
        step = done if self.anneal_epochs else max(1, done)
        before, now = self._schedule_share(step - 1), self._schedule_share(step)
        return [self._schedule_rate(group, before, now) for group in self.optimizer.param_groups]

    def _schedule_share(self, step: int) -> float:
        """The fraction of the annealing that is done after ``step`` steps."""
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * t)) / 2 if self._anneal_strategy == "cos" else t

    @staticmethod
    def _schedule_rate(group: Group, before: float, now: float) -> float:
        # The initial rate is derived from the present one, which another schedule may have changed.
        last: float = group["swa_lr"]
        first = last if before == 1 else (rate_of(group) - before * last) / (1 - before)
        return last * now + first * (1 - now)
