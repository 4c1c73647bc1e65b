"""Measures device memory over a stretch of a test, from a log around it."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from time import perf_counter_ns

from gradcore import folds
from gradcore._random import default_generator
from gradcore._step import pool_figures
from gradcore.devices.device import Device, devices, get_device
from gradcore.engine.cost import node_seconds
from gradcore.engine.exports import settle
from gradcore.events import MARK, Alloc, Raw, Record, Tag
from gradcore.grouping import Buffer, Who, by_owner, largest
from gradcore.reading import below, read_log
from gradcore.report.built import build_report
from gradcore.report.diff import Owners
from gradcore.report.recording import Recording
from gradcore.report.step import StepReport


@dataclass(frozen=True)
class Moment:
    """The beginning of a stretch: position in the log, time in nanoseconds, and the pool's allocations and misses until then.

    ``elsewhere`` has the number of allocations until then on each other device, by name.
    """

    position: int
    time: int
    allocations: int
    misses: int
    elsewhere: dict[str, int]


@dataclass(frozen=True)
class Stretch:
    """The records of a stretch, which begins at ``start``, and those before. Figures are allocated bytes."""

    records: tuple[Record, ...]
    start: int

    @cached_property
    def _live(self) -> list[folds.Live]:
        return list(folds.timeline(self.records))

    @cached_property
    def highest(self) -> folds.Peak:
        """The highest figures, which include what was live before."""
        return folds.peak(self.records, self.start)

    @property
    def before(self) -> folds.Live:
        """The bytes live when the stretch began."""
        return self._live[self.start]

    @property
    def peak(self) -> int:
        """The most bytes live at once, less those live before."""
        return self.highest.allocated - self.before.allocated

    @property
    def left(self) -> int:
        """Bytes live at the end, less those live before: negative if more was freed than allocated."""
        return self._live[-1].allocated - self.before.allocated

    @property
    def empty(self) -> bool:
        """Was nothing allocated? Memory of other libraries that a tensor shows does not count."""
        return not any(isinstance(r, Alloc) and r.allocated for r in self.records[self.start:])

    @property
    def reached_by(self) -> Tag | None:
        """The tag of the allocation that reached the peak; None if the stretch allocated nothing."""
        return next((r.tag for r in reversed(self.records[self.start:self.highest.position + 1]) if isinstance(r, Alloc)), None)

    def made_at_peak(self) -> list[folds.Holder]:
        """The buffers that the stretch allocated and that are live at its peak."""
        return self._made(self.highest.position)

    def made_at_end(self) -> list[folds.Holder]:
        """The buffers that the stretch allocated and that are live at its end."""
        return self._made(len(self.records) - 1)

    def _made(self, position: int) -> list[folds.Holder]:
        made = {r.serial for r in self.records[self.start:position + 1] if isinstance(r, Alloc)}
        return [h for h in folds.live_at(self.records, position) if h.serial in made]

    def owners(self, root: str | os.PathLike[str]) -> Owners:
        """The owners of the bytes of :attr:`peak`, with paths relative to ``root``: live there, less live before.

        Owners of bytes that were freed since the beginning are negative, so that each table adds up to the peak. What was live
        all the while is left out: a fixture's parameters have no layer before the test calls them.
        """
        there = {h.serial: h for h in folds.live_at(self.records, self.highest.position)}
        before = {h.serial: h for h in folds.live_at(self.records, self.start)}
        made, freed = (by_owner((h for serial, h in a.items() if serial not in b), lambda line: below(root, line))
                       for a, b in ((there, before), (before, there)))
        by = {}
        for group, sums in made.items():
            for name, nbytes in freed[group].items():
                sums[name] = sums.get(name, 0) - nbytes
            by[group] = {name: n for name, n in sorted(sums.items(), key=lambda item: (-item[1], item[0])) if n}
        return Owners(self.peak, by)


class Account:
    """Keeps a device's log until :meth:`close`; steps may be recorded inside it and around it.

    Garbage is collected first: freed later, it would lower the figures.
    """

    def __init__(self, device: str | Device) -> None:
        self.device = get_device(device)
        _collect()
        # Created here, since it lives as long as the process and must not count as a test's.
        default_generator(self.device)
        self._log = self.device.ledger.begin_log()

    def now(self) -> Moment:
        settle()
        ledger = self.device.ledger
        return Moment(len(ledger.so_far(self._log)), perf_counter_ns(), ledger.allocations, ledger.pool.misses,
                      self._elsewhere())

    def _elsewhere(self) -> dict[str, int]:
        return {d.name: d.ledger.allocations for d in devices() if d is not self.device}

    def elsewhere(self, moment: Moment) -> list[str]:
        """The names of other devices with allocations since ``moment``."""
        return [name for name, count in self._elsewhere().items() if count > moment.elsewhere.get(name, 0)]

    def since(self, moment: Moment) -> Stretch:
        """The stretch from ``moment`` to now. Networks that are not used in it, such as other tests', name no layers."""
        before, after = self.parts(moment)
        return Stretch((*read_log(before), *read_log(after)), len(before))

    def parts(self, moment: Moment) -> tuple[list[Raw], list[Raw]]:
        """The log until ``moment``, and since, with the stretch as its only step."""
        settle()
        raw = self.device.ledger.so_far(self._log)
        before, after = ([r for r in part if r[0] != MARK or r[2] != "step"]
                         for part in (raw[:moment.position], raw[moment.position:]))
        return before, [(MARK, "begin", "step", moment.time), *after, (MARK, "end", "step", perf_counter_ns())]

    def close(self) -> None:
        self.device.ledger.end_log(self._log)


def _collect() -> None:
    """Free unreachable objects of earlier tests, which also resets the counts of the garbage collector."""
    # These hold the frames of the last failed test; pytest drops them only when it calls the next test.
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    gc.collect()


class DeviceMemory:
    """Device memory of a test in bytes, from the start of the fixture or :meth:`reset` to now."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._moment = account.now()

    def __repr__(self) -> str:
        """What a failed ``assert device_memory.peak_allocated < 512`` shows."""
        return (f"<device memory on {self.device}: peak {self.peak_allocated:,}, live {self.live_allocated:,} bytes more than "
                "at the beginning>")

    @property
    def device(self) -> Device:
        return self._account.device

    def reset(self) -> None:
        """Begin again: what is live now counts as live before."""
        self._moment = self._account.now()

    @property
    def stretch(self) -> Stretch:
        """The records since the beginning, with figures computed from them."""
        return self._account.since(self._moment)

    @property
    def peak_allocated(self) -> int:
        """The most allocated bytes live at once, less those live at the beginning."""
        return self.stretch.peak

    @property
    def peak_requested(self) -> int:
        """The most requested bytes live at once, less those live at the beginning."""
        stretch = self.stretch
        return stretch.highest.requested - stretch.before.requested

    @property
    def live_allocated(self) -> int:
        """Allocated bytes live now, less those live at the beginning."""
        return self.stretch.left

    @property
    def report(self) -> StepReport:
        """A step report on what ran since the beginning; its figures include what was live before."""
        return self.recording.report

    @property
    def recording(self) -> Recording:
        """The report with its records: ``recording.save_html(path)`` writes the page."""
        ledger, moment = self.device.ledger, self._moment
        # As one, so that a layer has one name.
        records = tuple(read_log(chain(*self._account.parts(moment))))
        return Recording(build_report(records, device=self.device.name, batch_size=None,
                                      pool=pool_figures(ledger, moment.allocations, moment.misses), node_seconds=node_seconds(),
                                      driver=self.device.driver_figures()), records)


def held(holders: Sequence[folds.Holder], above: int, root: str | os.PathLike[str], who: Who | None = None) -> list[str]:
    """Lines for the eight largest owners, as in :func:`~gradcore.grouping.largest`, and for all others, in all ``above``."""
    _, lines = largest((_said(h, root) for h in holders), 8, who)
    freed = above - sum(h.allocated for h in holders)
    return [*lines, f"  {freed:>15,} bytes  that were live before and have been freed"] if freed else lines


def _said(holder: folds.Holder, root: str | os.PathLike[str]) -> Buffer:
    tag, kept = holder.tag, ", kept by the graph" if holder.kept_by else ""
    shown = f", shared by {tag.export.form}, {below(root, tag.export.site.full)}" if tag.export else ""
    where = f"{below(root, tag.site.full)}{kept}{shown}"
    return tag.layer, f"{holder.role} of {tag.op} in", where, holder.allocated, holder.serial
