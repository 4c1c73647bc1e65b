"""``with gradcore.step() as s``: records a training step, and reports its memory."""

from __future__ import annotations

import functools
import os
from time import perf_counter, perf_counter_ns
from types import TracebackType
from typing import NamedTuple

import numpy as np

from gradcore._holders import last_node, uncollected
from gradcore._looks import grown_graph, linked, who
from gradcore.devices.device import Device, arrivals, devices, get_device
from gradcore.engine import owners
from gradcore.engine.cost import node_seconds
from gradcore.engine.exports import settle
from gradcore.engine.sites import whole_stacks
from gradcore.engine.state import mark, within_step
from gradcore.errors import require_int
from gradcore.events import LAUNCH, MARK, Raw, Record, Tag
from gradcore.memory.ledger import Ledger
from gradcore.memory.peaks import Measured
from gradcore.reading import read_log
from gradcore.report.built import build_report, counted_report
from gradcore.report.ends import End, Ends, gained
from gradcore.report.growth import Growth
from gradcore.report.recording import Recording
from gradcore.report.step import DriverFigures, PinnedFigures, PoolFigures, StepReport
from gradcore.units import format_bytes

#: By device: the ends of its steps.
_ends: dict[str, Ends] = {}
#: By device: the log of the step that is being recorded.
_recorded: dict[str, list[Raw]] = {}
if hasattr(os, "register_at_fork"):
    # A process that is forked within a step, as a worker may be, is in none of its own.
    os.register_at_fork(after_in_child=_recorded.clear)


#: How much a step records. ``off``: nothing. ``counts``: peaks and the pool's figures. ``events``: every record, so that each
#: byte has an owner. ``stacks``: as ``events``, and for every line of source its callers.
LEVELS = ("off", "counts", "events", "stacks")


class step:
    """A context manager that records everything between entry and exit; afterwards ``report`` has the figures.

    With ``batch_size`` the report has bytes per sample. ``device`` is the device to report on, by default the one with the most
    launches in the step. ``level`` is one of :data:`LEVELS`, by default the environment variable ``GRADCORE_RECORD``, or else
    ``events``; docs/report.md says what each records. Raises RuntimeError if steps that keep a log are nested. After an
    exception inside, the report is of what ran.
    """

    #: Does the report of steps that grow name what in the program holds the bytes? It takes a tenth of a second.
    names_holders = True

    def __init__(self, batch_size: int | None = None, device: str | int | Device | None = None,
                 level: str | None = None) -> None:
        if isinstance(batch_size, np.integer):
            batch_size = int(batch_size)
        if batch_size is not None:
            require_int("batch_size", batch_size, 1)
        self.level = (os.environ.get("GRADCORE_RECORD") or "events") if level is None else level
        if self.level not in LEVELS:
            name = "GRADCORE_RECORD" if level is None else "level"
            raise ValueError(f"{name} must be one of {', '.join(LEVELS)}, but got {self.level!r}")
        self._batch_size = batch_size
        self._wanted = None if device is None else get_device(device)
        self._forget()

    def _forget(self) -> None:
        """Begin without figures, also if the same object records a second time."""
        self.__dict__.pop("report", None)
        self._starts: list[_Start] = []
        # They can be ended again if an interrupt comes at their end.
        self._opened: list[whole_stacks | within_step] = []
        self._raw: list[Raw] = []
        # Pinned memory, if it is not among the recorded devices.
        self._beside: _Start | None = None
        self._ended: _Ended | None = None

    def __enter__(self) -> step:
        if self.level == "off":
            return self
        if any(start.open for start in self._starts):
            raise RuntimeError("this step is already being recorded: the same object cannot be entered again before its end")
        self._forget()
        recorded = [self._wanted] if self._wanted is not None else devices() or [get_device("cpu")]
        logged = self.level != "counts"
        pool = next((d for d in devices() if d.pinned and d not in recorded), None)
        if logged and any(d.name in _recorded for d in recorded):
            raise RuntimeError("a step is already being recorded: gradcore.step() cannot be nested, nor run in two "
                               "threads at once")
        try:
            if self.level == "stacks":
                self._open(whole_stacks())
            settle()
            for name in owners.around_steps:
                name()
            self._began = perf_counter()
            self._starts = [_Start(d) for d in recorded]
            for start in self._starts:
                start.begin(logged)
            if pool is not None:
                self._beside = _Start(pool)
                self._beside.begin(False)
            if self._wanted is None:
                arrivals.append(self._arrived)
            if logged:
                self._open(within_step())
                self._mark("begin")
        except BaseException:
            self._end()
            raise
        return self

    def _arrived(self, device: Device) -> None:
        """A device is used for the first time within the step."""
        start = _Start(device)
        self._starts.append(start)
        start.begin(self.level != "counts")
        if start.log is not None:
            start.log.append((MARK, "begin", "step", perf_counter_ns()))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.level == "off":
            return
        try:
            for name in owners.around_steps:
                name()
            if self.level != "counts":
                self._mark("end")
            seconds = perf_counter() - self._began
            settle()
            self._end()
        except BaseException:
            # After an interrupt, once more, so that no log stays open.
            self._end()
            raise
        pinned = _pinned_figures(self._starts if self._beside is None else [self._beside])
        # Counting the launches of a log takes time, so it is done only where there is a choice.
        most = self._starts[0] if len(self._starts) == 1 else max(self._starts, key=_Start.work)
        # A copy, as a thread that has taken the log may write to it yet.
        device, self._raw, self._starts = most.device, list(most.log or ()), []
        driver = device.driver_figures()
        pool, live, arenas, end = most.figures
        # Steps of the level counts may end in several threads.
        with device.ledger.lock:
            ends = _ends.setdefault(device.name, Ends())
            ends.add(end)
            growth, grew = ends.growth(lambda: {serial: block.requested for serial, block in device.ledger.live.items()})
            built = ends.built
        self._ended = _Ended(device, seconds, most.peaks, live, arenas, pool, driver, growth, grew, built, most.node, pinned)

    def _mark(self, what: str) -> None:
        """Only where it records: on another device, another step may."""
        mark(what, "step", [start.device for start in self._starts])

    def _open(self, context: whole_stacks | within_step) -> None:
        self._opened.append(context)
        context.__enter__()

    def _end(self) -> None:
        """End whatever has begun and not ended."""
        for context in reversed(self._opened):
            context.__exit__()
        if self._arrived in arrivals:
            arrivals.remove(self._arrived)
        for start in self._starts if self._beside is None else (self._beside, *self._starts):
            start.end()

    def __repr__(self) -> str:
        if self._ended is not None:
            return f"<step on {self._ended.device.name}: peak {format_bytes(self._ended.peaks[1])}>"
        return f"<step at the level {self.level}, {'being recorded' if self._starts else 'not recorded'}>"

    @property
    def log(self) -> list[Record]:
        """The step's records, as named tuples. The first ones describe the state when it began."""
        return read_log(self._raw)

    @property
    def raw_log(self) -> list[Raw]:
        """The step's records as plain tuples."""
        return self._raw

    @functools.cached_property
    def report(self) -> StepReport:
        """The report. Raises RuntimeError before the end of the step, and at level ``off``."""
        ended = self._ended
        if ended is None:
            raise RuntimeError("a step with level='off' has no report" if self.level == "off" else
                               "the report is available after the end of the step")
        if self.level == "counts":
            return counted_report(device=ended.device.name, batch_size=self._batch_size, seconds=ended.seconds,
                                  peaks=ended.peaks, live=ended.live, pool=ended.pool, driver=ended.driver, growth=ended.growth,
                                  pinned=ended.pinned)
        # Freed by the collector while the report is made, what only a cycle holds would grow without a word of why.
        with uncollected():
            return build_report(self.log, device=ended.device.name, batch_size=self._batch_size, pool=ended.pool,
                                node_seconds=node_seconds(), driver=ended.driver, growth=ended.growth,
                                gained=gained(ended.grew, self._raw) if ended.grew else None, pinned=ended.pinned,
                                arenas=ended.arenas, who=functools.partial(who, ended.device) if self.names_holders else None,
                                graph=functools.partial(grown_graph, ended.device, ended.built),
                                linked=functools.partial(linked, ended.device, ended.before) if self.names_holders else None)

    @property
    def recording(self) -> Recording:
        """The report with the step's records, which can be exported. Raises RuntimeError as ``report`` does."""
        return Recording(self.report, tuple(self.log))


def peaks_of(ended: step) -> tuple[int, int, int]:
    """The peaks of a step that has ended, of requested, allocated and reserved bytes, for which no report need be made."""
    assert ended._ended is not None
    return ended._ended.peaks


class _Ended(NamedTuple):
    """What is known of a step's device at its end."""

    device: Device
    seconds: float
    peaks: tuple[int, int, int]
    live: tuple[int, int]
    #: Of compiled functions: serial, segment, offset and bytes of each.
    arenas: list[tuple[int, int, int, int]]
    pool: PoolFigures
    driver: DriverFigures | None
    growth: Growth | None
    #: The ends of the steps over which it has grown, as far as they are kept, and the one before them.
    grew: list[End]
    #: The numbers of the last nodes at the ends of steps, as far as these are kept.
    built: list[int]
    #: The number of the last node before the step.
    before: int
    pinned: PinnedFigures | None


class _Start:
    """The state of a device when a step began, and its peaks and log since."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.misses, self.allocations = device.ledger.pool.misses, device.ledger.allocations
        self._measured: Measured | None = None
        self.peaks = (0, 0, 0)
        self.log: list[Raw] | None = None
        self.node = last_node()

    def begin(self, logged: bool) -> None:
        ledger = self.device.ledger
        # Known before it begins: an interrupt may come at its end. In one piece: other threads may allocate meanwhile.
        self._measured = Measured(ledger)
        with ledger.lock:
            self._measured.begin()
            if logged:
                self.log = _recorded[self.device.name] = []
                ledger.begin_log(self.log)
            self.misses, self.allocations = ledger.pool.misses, ledger.allocations

    @property
    def open(self) -> bool:
        """Has it begun, and not ended?"""
        return self._measured is not None

    def end(self) -> None:
        ledger = self.device.ledger
        with ledger.lock:
            if self._measured is not None:
                self.peaks = self._measured.end()
            # From here on nothing is drained: the log would not have it, and the figures would.
            if self.log is not None:
                ledger.end_log(self.log)
            if self._measured is not None:
                pool, live = pool_figures(ledger, self.allocations, self.misses), ledger.present[:2]
                self.figures = (pool, live, [(b.serial, b.segment.index, b.offset, b.requested) for b in ledger.arenas],
                                End(live[0], ledger.pool.serial, None if self.log is None else _owned(ledger), last_node()))
                self._measured = None
        if self.log is not None and self.log is _recorded.get(self.device.name):
            del _recorded[self.device.name]

    def work(self) -> int:
        """The number of launches, or of allocations if there is no log."""
        if self.log is None:
            return self.device.ledger.allocations - self.allocations
        return [r[0] for r in self.log].count(LAUNCH)


def _pinned_figures(starts: list[_Start]) -> PinnedFigures | None:
    """The figures of the pinned pool, or None if it was not used; it may have been created within the step."""
    # Lists, for an interrupt is lost that comes when a generator goes which has not ended.
    for pool in [d for d in devices() if d.pinned]:
        peak, *_ = *[start.peaks[1] for start in starts if start.device is pool], pool.ledger.peaks[1]
        return PinnedFigures(pool.ledger.allocated, peak, pool.ledger.reserved) if peak else None
    return None


def _owned(ledger: Ledger) -> dict[Tag, int]:
    """Live requested bytes by tag. The caller holds the ledger's lock."""
    owned: dict[Tag, int] = {}
    for block in (*(ledger.pool.blocks - ledger.arenas.keys()), *ledger.ranges):
        if block.serial:
            owned[block.tag] = owned.get(block.tag, 0) + block.requested
    return owned


def pool_figures(ledger: Ledger, allocations: int, misses: int) -> PoolFigures:
    """The pool's figures as of the last drain, since it had made ``allocations`` allocations with ``misses`` misses."""
    with ledger.lock:
        pool, made = ledger.pool, ledger.allocations - allocations
        return PoolFigures(made, made - (pool.misses - misses), len(pool.segments), pool.reserved, pool.cached,
                           pool.largest_free)
