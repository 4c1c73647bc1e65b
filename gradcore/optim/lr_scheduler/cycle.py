"""Cyclic schedules: ``OneCycleLR`` and ``CyclicLR``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gradcore.optim.lr_scheduler.base import LRScheduler, need_optimizer, set_rate
from gradcore.optim.optimizer import Group, Optimizer


class OneCycleLR(LRScheduler):
    """Up to ``max_lr`` and down to almost 0, with momentum in the opposite direction. Smith and Topin, arXiv:1708.07120.

    The cycle takes ``total_steps`` steps, or ``epochs * steps_per_epoch``; with ``three_phase``, the fall first mirrors the
    rise. Raises ValueError for invalid lengths, fractions and strategies, and for a step after the last.
    """

    def __init__(self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None,
                 epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
                 anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: float | Sequence[float] = 0.85,
                 max_momentum: float | Sequence[float] = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
                 three_phase: bool = False, last_epoch: int = -1) -> None:
        groups = need_optimizer(optimizer).param_groups
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
            total_steps = epochs * steps_per_epoch
        for name, value in (("total_steps", total_steps), ("epochs", epochs), ("steps_per_epoch", steps_per_epoch)):
            if value is not None and (not isinstance(value, int) or value <= 0):
                raise ValueError(f"Expected positive integer {name}, but got {value}")
        if not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self.total_steps = total_steps
        self._anneal_func_type = anneal_strategy
        self.cycle_momentum = cycle_momentum
        #: The last step of each phase; then for each phase the keys of the groups for the values at its two ends.
        self._schedule_ends = [pct_start * total_steps - 1.0, total_steps - 1.0]
        self._schedule_marks = [("initial_lr", "max_lr", "max_momentum", "base_momentum"),
                       ("max_lr", "min_lr", "base_momentum", "max_momentum")]
        if three_phase:
            self._schedule_ends.insert(1, 2 * pct_start * total_steps - 2.0)
            self._schedule_marks[1:] = [("max_lr", "initial_lr", "base_momentum", "max_momentum"),
                               ("initial_lr", "min_lr", "max_momentum", "max_momentum")]
        tops = each("max_lr", groups, max_lr)
        if last_epoch == -1:
            for group, top in zip(groups, tops, strict=True):
                group["initial_lr"] = top / div_factor
                group["max_lr"] = top
                group["min_lr"] = top / div_factor / final_div_factor
        if cycle_momentum:
            _need_momentum(groups)
            if last_epoch == -1:
                for group, low, high in zip(groups, each("base_momentum", groups, base_momentum),
                                            each("max_momentum", groups, max_momentum), strict=True):
                    group["base_momentum"], group["max_momentum"] = low, high
                    _set_momentum(group, high)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"Tried to step {step} times. The specified number of total steps is {self.total_steps}")
        part = next((k for k, end in enumerate(self._schedule_ends) if step <= end), len(self._schedule_ends) - 1)
        start = self._schedule_ends[part - 1] if part else 0.0
        done = (step - start) / (self._schedule_ends[part] - start)
        first, last, momentum, next_momentum = self._schedule_marks[part]
        for group in self.optimizer.param_groups if self.cycle_momentum else ():
            _set_momentum(group, self._schedule_between(group[momentum], group[next_momentum], done))
        return [self._schedule_between(group[first], group[last], done) for group in self.optimizer.param_groups]

    def _schedule_between(self, start: float, end: float, done: float) -> float:
        if self._anneal_func_type == "linear":
            return start + (end - start) * done
        return end + (start - end) / 2 * (1 + math.cos(math.pi * done))


class CyclicLR(LRScheduler):
    """From ``base_lr`` up to ``max_lr`` in ``step_size_up`` steps and back, repeatedly. Smith, arXiv:1506.01186.

    The height of the cycles is constant with ``mode="triangular"``, halves every cycle with ``"triangular2"``, and is
    multiplied by ``gamma`` every step with ``"exp_range"``. Otherwise ``scale_fn`` gives the factor, for the number of the
    cycle, from 1 on, or of the step with ``scale_mode="iterations"``; it is not part of the state dict. Momentum goes in the
    opposite direction. Raises ValueError for another mode, lists of the wrong length, and an optimizer without momentum.
    """

    def __init__(self, optimizer: Optimizer, base_lr: float | Sequence[float], max_lr: float | Sequence[float],
                 step_size_up: int = 2000, step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
                 scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle", cycle_momentum: bool = True,
                 base_momentum: float | Sequence[float] = 0.8, max_momentum: float | Sequence[float] = 0.9,
                 last_epoch: int = -1) -> None:
        groups = need_optimizer(optimizer).param_groups
        lows = each("base_lr", groups, base_lr)
        self.max_lrs = each("max_lr", groups, max_lr)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(f"mode is invalid and scale_fn is None: expected 'triangular', 'triangular2' or 'exp_range', but "
                             f"got {mode!r}")
        self.mode = mode
        self.gamma = gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            _need_momentum(groups)
            self.base_momentums = each("base_momentum", groups, base_momentum)
            self.max_momentums = each("max_momentum", groups, max_momentum)
        if last_epoch == -1:
            for k, group in enumerate(groups):
                set_rate(group, lows[k])
                if cycle_momentum:
                    group["base_momentum"], group["max_momentum"] = self.base_momentums[k], self.max_momentums[k]
                    _set_momentum(group, self.max_momentums[k])
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lows

    def scale_fn(self, x: float) -> float:
        """The height of a cycle relative to the first, by its number or that of the step."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return float(0.5 ** (x - 1) if self.mode == "triangular2" else self.gamma ** x)

    def get_lr(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1 + self.last_epoch / self.total_size - cycle
        share = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        share *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True):
                _set_momentum(group, high - (high - low) * share)
        return [low + (high - low) * share for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_scale_fn_custom": None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_scale_fn_custom"})


def each(name: str, groups: Sequence[Group], value: Any) -> list[float]:
    """A value for each group, from one for all or a list. Raises ValueError for a list of another length."""
    values = list(value) if isinstance(value, Sequence) else [value] * len(groups)
    if len(values) != len(groups):
        raise ValueError(f"expected {len(groups)} values for {name}, got {len(values)}")
    return values


def _need_momentum(groups: Sequence[Group]) -> None:
    if not any(key in groups[0] for key in ("momentum", "betas")):
        raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")


def _set_momentum(group: Group, value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value
