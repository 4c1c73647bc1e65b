"""The schedules of learning rates that a traced function steps. A replay steps them again, once its calls have run.

It can do so where the function takes no notice of the new rates: they reach the next run as operands of its updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from types import FrameType
from typing import Any

from gradcore.engine.sites import is_inside
from gradcore.optim import Optimizer
from gradcore.optim.lr_scheduler import LRScheduler
from gradcore.program.guarding.frames import is_method, upwards, users_line
from gradcore.program.guarding.names import Names

#: How a schedule tells rates, besides its attributes.
_TELL = frozenset(("get_last_lr", "get_lr", "_get_closed_form_lr"))


class Schedules:
    """Records the steps of schedules, in order; reasons against a replay go to ``drawn``."""

    def __init__(self, drawn: list[str]) -> None:
        self._drawn = drawn
        self.stepped: list[LRScheduler] = []
        #: By id of an optimizer: it, and what it fixed before the first step. Guards see that as it is after the run.
        self._fixed: dict[int, tuple[Optimizer, Any]] = {}

    def saw(self, frame: FrameType, schedule: LRScheduler, is_new: bool, is_older: Callable[[Any], bool]) -> None:
        """Take note of a method of a schedule that begins; ``is_older`` tells whether an object is from before the run."""
        kind, code, refuse = type(schedule).__name__, frame.f_code, self._drawn.append
        if is_new:
            # A copy comes with its optimizer.
            optimizer = frame.f_locals.get("optimizer") or vars(schedule).get("optimizer")
            if isinstance(optimizer, Optimizer) and is_older(optimizer):
                refuse(f"{users_line(frame)} makes a {kind} for an optimizer from outside: make it there, too")
        elif not is_inside(code):
            if is_method(code, schedule):
                refuse(f"{kind}.{code.co_name}() is not a method of gradcore's: call schedule.step() after the function")
        elif code.co_name in ("state_dict", "load_state_dict"):
            refuse(f"{users_line(frame)} calls {kind}.{code.co_name}(), with what each step changes: call it outside")
        elif code.co_name == "step":
            if any(map(_steps, upwards(frame.f_back))):
                return
            if any(frame.f_locals.get(name) is not None for name in ("epoch", "metrics")):
                refuse(f"{kind}.step() is given an epoch or a metric: call it after the function")
            self.stepped.append(schedule)
            self._fixed.setdefault(id(schedule.optimizer), (schedule.optimizer, _fixed(schedule.optimizer)))

    def updates(self, frame: FrameType, optimizer: Optimizer) -> None:
        """Take note of an update, which a replay runs with the rate that the optimizer has before the run."""
        for kind in (type(s).__name__ for s in self.stepped if s.optimizer is optimizer):
            self._drawn.append(f"{users_line(frame)} updates parameters after {kind}.step(): call that after the function")

    def sets(self, key: tuple[Any, ...]) -> bool:
        """Is it the key of an attribute that steps change? Once the run has ended."""
        return len(key) > 2 and key[0] == "attribute" and key[2] in self._advances.get(key[1], ())

    @cached_property
    def _advances(self) -> dict[int, frozenset[str]]:
        """By id, of schedules that others consist of too: the attributes that steps change."""
        return {id(part): part._schedule_advances for schedule in self.stepped for part in _parts(schedule)}

    def changes(self, names: Names, reads_rates: Callable[[Any], bool]) -> Iterator[str]:
        """More reasons, once the run has ended. ``names`` are those that the function names, ``reads_rates`` tells whether it
        may read the learning rates of an optimizer."""
        told = _TELL.union(*self._advances.values())
        for schedule in dict.fromkeys(self.stepped):
            if names.whole or reads_rates(schedule.optimizer) or not told.isdisjoint(names.read | names.called):
                yield (f"{type(schedule).__name__}.step() changes the learning rate, which the function reads: call it after "
                       "the function")
        for optimizer, before in self._fixed.values():
            if before != _fixed(optimizer):
                yield f"a schedule changes an option of the optimizer {type(optimizer).__name__} that a program has fixed"


def _parts(schedule: LRScheduler) -> Iterator[LRScheduler]:
    """A schedule, and those that it consists of."""
    yield schedule
    for part in getattr(schedule, "_schedulers", ()):
        yield from _parts(part)


def _fixed(optimizer: Optimizer) -> list[Any]:
    """Of each group, what a program of its updates has fixed: the options that are no operands, and what the others decide."""
    free = {"params", *optimizer._optim_free}
    return [({k: x for k, x in group.items() if k not in free}, optimizer._optim_decisive(group))
            for group in optimizer.param_groups]


def _steps(frame: FrameType) -> bool:
    """Is it the step of a schedule, which may consist of others?"""
    return frame.f_code.co_name == "step" and isinstance(frame.f_locals.get("self"), LRScheduler)
