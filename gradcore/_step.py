"""``with gradcore.step() as s``: record a training step, and report its memory."""

from __future__ import annotations

import functools
from collections import deque
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np

from gradcore.devices.device import Device, devices, get_device
from gradcore.devices.meta import make_meta
from gradcore.engine import owners
from gradcore.engine.node import Leaf, build_node
from gradcore.engine.state import SCOPES, local, mark
from gradcore.events import LAUNCH, Raw, Record, Scope, typed
from gradcore.report.growth import Growth, growth_of
from gradcore.report.recording import Recording
from gradcore.report.step import DriverFigures, PoolFigures, StepReport, build_report

#: Live bytes, as requested, at the ends of a device's last steps.
_ends: dict[str, deque[int]] = {}


class step:
    """Record everything between entry and exit; ``report`` is there afterwards.

    ``batch_size`` gives bytes a sample. ``device`` names the device to report on; without it, it is the one that the
    step launched most on. Steps do not nest: RuntimeError. An exception inside leaves a report of what ran.
    """

    def __init__(self, batch_size: int | None = None, device: str | Device | None = None) -> None:
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise ValueError(f"batch_size must be an int of at least 1, but got {batch_size!r}")
        self._batch_size = batch_size
        self._wanted = None if device is None else get_device(device)
        self._logs: list[tuple[Device, list[Raw]]] = []
        self._scope = 0
        self._raw: list[Raw] = []
        self._starts: dict[str, tuple[int, int]] = {}
        self._pool: PoolFigures | None = None
        self._driver: DriverFigures | None = None
        self._device: Device | None = None
        self._growth: Growth | None = None

    def __enter__(self) -> step:
        recorded = [self._wanted] if self._wanted is not None else devices() or [get_device("cpu")]
        if any(d.ledger.log is not None for d in recorded):
            raise RuntimeError("a step is being recorded already: steps do not nest")
        state = local.state
        self._scope = state.scope
        scope = SCOPES[state.scope]
        self._starts = {d.name: (d.ledger.pool.misses, d.ledger.allocations) for d in recorded}
        self._logs = [(d, d.ledger.begin_log()) for d in recorded]
        state.scope = SCOPES.index(Scope(scope.layer, "forward", scope.caller, scope.role))
        mark("begin", "step")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        mark("end", "step")
        local.state.scope = self._scope
        for device, _ in self._logs:
            device.ledger.end_log()
        self._device, self._raw = max(self._logs, key=lambda pair: sum(r[0] == LAUNCH for r in pair[1]))
        self._logs = []
        ledger = self._device.ledger
        misses, allocations = self._starts[self._device.name]
        with ledger.settled():
            pool = ledger.pool
            made = ledger.allocations - allocations
            self._pool = PoolFigures(made, made - (pool.misses - misses), len(pool.segments), pool.reserved, pool.cached,
                                     pool.largest_free)
        self._driver = self._device.driver_figures()
        ends = _ends.setdefault(self._device.name, deque(maxlen=16))
        ends.append(ledger.requested)
        self._growth = growth_of(ends)

    @property
    def log(self) -> list[Record]:
        """The step's records, in their named form. The first ones say what was there when it began."""
        return [typed(r) for r in self._raw]

    @property
    def raw_log(self) -> list[Raw]:
        """The step's records as they were written."""
        return self._raw

    @functools.cached_property
    def report(self) -> StepReport:
        """The report. Raises RuntimeError while the step is being recorded."""
        if self._pool is None or self._device is None:
            raise RuntimeError("the report of a step is there when the step has ended")
        return build_report(self.log, device=self._device.name, batch_size=self._batch_size, pool=self._pool,
                            node_seconds=node_seconds(), driver=self._driver, growth=self._growth)

    @property
    def recording(self) -> Recording:
        """The report with the step's records: what can be written to a file. Raises RuntimeError as ``report`` does."""
        return Recording(self.report, tuple(self.log))


@functools.cache
def node_seconds(count: int = 500) -> float:
    """The measured cost of building one node of a binary op, in seconds: the best of five rounds."""
    # A device of its own: the pools that are being measured must not see this.
    device = make_meta()
    was, local.state.grad = local.state.grad, True
    try:
        x: Any = owners.upload(np.ones(1, np.float32), device)
        x.edge = (Leaf(x), 0)
        y = x + x
        edges = [x.edge, x.edge]
        node = y.edge[0]
        best = float("inf")
        for _ in range(5):
            start = perf_counter()
            for _ in range(count):
                build_node(node.call, node.plan, (x, x), (y,), (), edges, 0, 0, 0)
            best = min(best, perf_counter() - start)
        return best / count
    finally:
        local.state.grad = was

