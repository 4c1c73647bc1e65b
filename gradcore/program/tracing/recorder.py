"""Records a run for a trace: its log, the updates of optimizers, and the gradients that leaves had when it began.

During the run a trace has only weak references to storages of before, since what the engine does with a gradient depends on
what else refers to it. From the end of the run on the references are strong.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from gradcore._random import default_generator
from gradcore.devices.device import Device
from gradcore.devices.storage import Storage
from gradcore.engine.leaf import Leaf, all_leaves
from gradcore.engine.plans import Call
from gradcore.events import ALLOC, MARK, Raw
from gradcore.optim import optimizer as optimizers
from gradcore.program.tracing.escapes import gradient_serial
from gradcore.program.tracing.trace_log import TraceLog

#: An update of an optimizer: how many launches came before it; the optimizer, its group, and the parameters; and their numbers.
_Update = tuple[int, Any, dict[str, Any], list[Any], dict[str, Any]]


class _Busy(threading.local):
    """A context that traces and recordings run in. ``depth`` says how many are open in this thread."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *exc: object) -> None:
        self.depth -= 1


busy = _Busy()


def _every_leaf() -> list[Leaf]:
    while True:
        try:
            return list(all_leaves)
        except RuntimeError:
            # Another thread created a leaf during the iteration.
            continue


@dataclass
class Recorded:
    """What a recorder has recorded, or several one after the other: all that a trace is made of."""

    device: Device
    #: The records with which the log opens, with allocations of other threads; and those of the run.
    opening: list[Raw]
    records: list[Raw]
    #: As in :class:`TraceLog`.
    launches: list[tuple[Call, list[Any]]]
    leaves: Mapping[Leaf, int]
    constants: Mapping[int, Storage]
    reasons: Mapping[str, str]
    #: As :attr:`Recorder.before`, and :attr:`Recorder.updates`.
    slots: dict[Leaf, int]
    updates: list[_Update]


class Recorder:
    """A context manager that records a run on one device."""

    def __init__(self, device: Device, log: TraceLog | None = None, fresh: Container[int] = ()) -> None:
        self.device = device
        self.log = TraceLog() if log is None else log
        #: Of each leaf that exists when the run begins: the serial of its gradient, or 0.
        self.before = {leaf: gradient_serial(leaf) for leaf in _every_leaf() if leaf.device is device}
        # Another thread may have dropped its gradients by now.
        self.specs = {leaf: grad.spec for leaf in self.before if (grad := leaf.grad) is not None}
        #: The updates of optimizers.
        self.updates: list[_Update] = []
        #: The number of records with which the log opens.
        self._opening = 0
        self._fresh = fresh

    def __enter__(self) -> Recorder:
        # The first random op would create the generator from host data, which a trace refuses.
        default_generator(self.device)
        # The log tells by the collector's generations what the run makes.
        gc.collect(0)
        try:
            self._opening = len(self.device.ledger.begin_log(self.log))
            optimizers.watchers.append(self._watch)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        # Either may be missing, or stay to be done, after an interrupt.
        try:
            if self._watch in optimizers.watchers:
                optimizers.watchers.remove(self._watch)
        finally:
            self.device.ledger.end_log(self.log)

    def _watch(self, optimizer: Any, group: dict[str, Any], params: list[Any], numbers: dict[str, Any]) -> None:
        # One that each run makes anew counts from the same numbers each time.
        if self.log.is_elsewhere() or id(optimizer) in self._fresh:
            return
        kept = {name: optimizer.state[params[0]][name] for name in numbers}
        self.updates.append((len(self.log.launches), optimizer, group, list(params), kept))

    def recorded(self) -> Recorded:
        """What has been recorded. Ask inside the context, at the end."""
        log = self.log
        # Leaves that the run read come first, in order.
        slots = {leaf: self.before[leaf] for leaf in log.leaves if leaf in self.before} | self.before
        # Of a copy, to which no other thread adds.
        opening = [*log[:self._opening], *(r for r in log.foreign.copy().values() if r[0] == ALLOC)]
        return Recorded(self.device, opening, self.records(), log.launches, log.leaves, log.constants,
                        log.reasons, slots, self.updates)

    def records(self) -> list[Raw]:
        """The records of the run, without the allocations, launches and marks of other threads."""
        return [r for r in self.log[self._opening:] if id(r) not in self.log.foreign]

    def ran_backward(self) -> bool:
        """Did a backward run?"""
        return any(r[0] == MARK and r[2] == "backward" for r in self.records())
