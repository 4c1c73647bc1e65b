"""Schedules whose rate is the initial rate times a factor that depends on the epoch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

from gradcore.optim.lr_scheduler.base import LRScheduler, rates_of
from gradcore.optim.optimizer import Optimizer


class _Factor(LRScheduler):
    """rate = floor + (base - floor) * factor(epoch).

    A step multiplies the present rate by the ratio of two factors, so that several schedules of one optimizer multiply.
    """

    #: The limit that the rate falls to.
    _schedule_floor = 0.0
    #: As in PyTorch: does a schedule that is resumed, with a ``last_epoch``, begin with the rate that the optimizer has?
    _schedule_keeps = True

    def _schedule_factor(self, epoch: int) -> float:
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        rates = rates_of(self.optimizer)
        if self._schedule_keeps and self._is_initial and self.last_epoch:
            return rates
        floor, now = self._schedule_floor, self._schedule_factor(self.last_epoch)
        before = 1.0 if not self.last_epoch else self._schedule_factor(self.last_epoch - 1)
        if now == before:
            return rates
        if before == 0:
            return [rate + (base - floor) * now for rate, base in zip(rates, self.base_lrs, strict=True)]
        return [floor + (rate - floor) * (now / before) for rate in rates]

    def _get_closed_form_lr(self) -> list[float]:
        floor = self._schedule_floor
        return [floor + (base - floor) * self._schedule_factor(self.last_epoch) for base in self.base_lrs]


class StepLR(_Factor):
    """base * gamma^(epoch // step_size)."""

    _schedule_keeps = False

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _schedule_factor(self, epoch: int) -> float:
        return self.gamma ** (epoch // self.step_size)


class MultiStepLR(_Factor):
    """base * gamma^(number of ``milestones`` reached); a milestone that is listed twice counts twice."""

    _schedule_keeps = False

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _schedule_factor(self, epoch: int) -> float:
        return self.gamma ** sum(count for at, count in self.milestones.items() if at <= epoch)


class ExponentialLR(_Factor):
    """base * gamma^epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _schedule_factor(self, epoch: int) -> float:
        return self.gamma ** epoch


class ConstantLR(_Factor):
    """base * factor for ``total_iters`` epochs, then base. Raises ValueError for a factor outside [0, 1]."""

    _schedule_keeps = False

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        if not 0 <= factor <= 1:
            raise ValueError(f"Constant multiplicative factor expected to be between 0 and 1, but got {factor}")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _schedule_factor(self, epoch: int) -> float:
        return self.factor if epoch < self.total_iters else 1.0


class LinearLR(_Factor):
    """base times a factor that goes linearly from ``start_factor`` to ``end_factor`` in ``total_iters`` epochs.

    Raises ValueError for a ``start_factor`` outside (0, 1] and an ``end_factor`` outside [0, 1].
    """

    def __init__(self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5,
                 last_epoch: int = -1) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError(f"Starting multiplicative factor expected to be greater than 0 and less or equal to 1, but got "
                             f"{start_factor}")
        if not 0 <= end_factor <= 1:
            raise ValueError(f"Ending multiplicative factor expected to be between 0 and 1, but got {end_factor}")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _schedule_factor(self, epoch: int) -> float:
        done = min(epoch, self.total_iters) / self.total_iters if self.total_iters else 1.0
        return self.start_factor + (self.end_factor - self.start_factor) * done


class PolynomialLR(_Factor):
    """base * (1 - epoch / total_iters)^power, and 0 after ``total_iters`` epochs."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def _schedule_factor(self, epoch: int) -> float:
        return (1 - min(epoch, self.total_iters) / self.total_iters) ** self.power


class CosineAnnealingLR(_Factor):
    """eta_min + (base - eta_min) * (1 + cos(pi * epoch / T_max)) / 2.

    Loshchilov and Hutter, arXiv:1608.03983, without restarts.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    @property
    def _schedule_floor(self) -> float:  # type: ignore[override]
        return self.eta_min

    def _schedule_factor(self, epoch: int) -> float:
        return (1 + math.cos(math.pi * epoch / self.T_max)) / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosine annealing that restarts after ``T_0`` epochs, and then after ``T_mult`` times as many each time.

    Loshchilov and Hutter, arXiv:1608.03983. Raises ValueError for lengths that are not positive ints.
    """

    #: The epochs since the last restart, and those up to the next one.
    T_cur: float
    T_i: int
    _schedule_advances = LRScheduler._schedule_advances | {"T_cur", "T_i"}

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Expected positive integer {name}, but got {value}")
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def step(self, epoch: float | None = None) -> None:
        """Go to the next epoch, or to ``epoch``, which may be a fraction. Raises ValueError for one below 0."""
        if epoch is not None and epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        if epoch is None and self.last_epoch >= 0 and "T_cur" in self.__dict__:
            self.T_cur, self.T_i = self._schedule_place(self.T_cur + 1, self.T_i)
        else:
            self.T_cur, self.T_i = self._schedule_place(self.last_epoch + 1 if epoch is None else epoch, self.T_0)
        super().step(None if epoch is None else math.floor(epoch))

    def _schedule_place(self, at: float, length: int) -> tuple[float, int]:
        """``T_cur`` and ``T_i``, ``at`` epochs after a restart whose run takes ``length``."""
        if self.T_mult == 1:
            at %= length
        while at >= length:
            at -= length
            length *= self.T_mult
        return at, length

    def get_lr(self) -> list[float]:
        share = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class LambdaLR(LRScheduler):
    """base * lr_lambda(epoch), with one function or one per group.

    Of a function that is an object the state dict has the attributes, which loading sets; functions are not part of it.
    """

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
                 last_epoch: int = -1) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise ValueError(f"Expected {count} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * fn(self.last_epoch) for base, fn in zip(self.base_lrs, self.lr_lambdas, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        kept = [None if isinstance(fn, FunctionType) or not hasattr(fn, "__dict__") else dict(fn.__dict__)
                for fn in self.lr_lambdas]
        return {**super().state_dict(), "lr_lambdas": kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "lr_lambdas"})
        for fn, kept in zip(self.lr_lambdas, state_dict.get("lr_lambdas", ()), strict=False):
            if kept is not None:
                fn.__dict__.update(kept)


class MultiplicativeLR(LambdaLR):
    """The rate is multiplied by lr_lambda(epoch) at every step but the first, with one function or one per group."""

    def get_lr(self) -> list[float]:
        return rates_of(self.optimizer) if self._is_initial else self._schedule_from_base()

    def _schedule_from_base(self) -> list[float]:
        # A step to an epoch, as at a milestone of SequentialLR, is no first one.
        return [rate * fn(self.last_epoch) for rate, fn in zip(rates_of(self.optimizer), self.lr_lambdas, strict=True)]
