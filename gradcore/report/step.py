"""The report of one step, computed from its log."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradcore import folds
from gradcore.events import Alloc, Launch, Mark, Record, View
from gradcore.report.exported import Exported, exported
from gradcore.report.grouping import by_owner, line_of
from gradcore.report.growth import MADE, Growth, Who, explained, held_by
from gradcore.report.plain import read
from gradcore.units import format_bytes

#: Version of the JSON format, which docs/report-schema.md describes. Readers refuse other versions.
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PeakPoint:
    """The peak of a step in bytes, and the allocation that reached it. ``position`` is an index into the step's records."""

    position: int
    requested: int
    allocated: int
    reserved: int
    op: str
    layer: str
    phase: str
    line: str


@dataclass(frozen=True)
class TopTensor:
    """One of the largest buffers at the peak; sizes in bytes."""

    allocated: int
    requested: int
    role: str
    op: str
    layer: str
    phase: str
    shape: tuple[int, ...] | None
    dtype: str | None
    line: str
    caller: str | None
    node: int
    #: ``node:name`` for each node that keeps it for backward.
    kept_by: tuple[str, ...]
    #: At the level ``stacks``: the callers of ``line``, the nearest first.
    stack: tuple[str, ...] = ()


@dataclass(frozen=True)
class PhaseEnd:
    """Live bytes when a phase of the step ended."""

    phase: str
    requested: int
    allocated: int
    #: Seconds from the start of the step.
    seconds: float


@dataclass(frozen=True)
class KeptTensor:
    """A buffer kept for backward: the node that kept it, the records at which it was kept and dropped, and its bytes."""

    node: int
    name: str
    op: str
    layer: str
    role: str
    line: str
    allocated: int
    kept_at: int
    #: The records at which the node dropped it and the buffer was freed; None if not within the step.
    dropped_at: int | None
    freed_at: int | None
    reason: str | None
    #: The buffer's number in the log: several nodes may keep one. 0 if an earlier version of gradcore wrote the report.
    serial: int = 0


@dataclass(frozen=True)
class PoolFigures:
    """Counts of the pool's work during the step, and its state at the end in bytes (``segments`` is a count)."""

    allocations: int
    hits: int
    segments: int
    reserved: int
    cached: int
    largest_free: int

    @property
    def fragmentation(self) -> float:
        """The share of cached bytes that are not in the largest free block."""
        return 1 - self.largest_free / self.cached if self.cached else 0.0


@dataclass(frozen=True)
class LibraryBytes:
    """Bytes in a library's own pool. ``name`` is the op or library that uses them, or says that they are cached."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class DriverFigures:
    """The driver's figures for the device, in bytes; ``remainder`` is what the other figures do not explain.

    ``source`` says where they come from; a figure is None if the driver does not give it. ``libraries`` adds up to ``library``.
    ``unseen`` describes what a library allocates outside gradcore's pools, and so is in the remainder; "" for nothing.
    """

    used: int | None
    source: str
    context: int | None
    segments: int
    library: int
    remainder: int | None
    libraries: tuple[LibraryBytes, ...] = ()
    unseen: str = ""


@dataclass(frozen=True)
class PinnedFigures:
    """Pinned host memory, in bytes: live at the end of the step, the most live at once during it, and reserved by the pool."""

    allocated: int
    max_allocated: int
    reserved: int


@dataclass(frozen=True)
class Left:
    """Bytes allocated in a step and live at its end, by the line; ``held_by`` is ``graph``, ``outside`` or ``you``."""

    op: str
    layer: str
    line: str
    allocated: int
    held_by: str


@dataclass(frozen=True, repr=False)
class StepReport:
    """Device memory over one step, in bytes and seconds.

    ``by_role``, ``by_layer``, ``by_op`` and ``by_line`` (of source) split the allocated bytes at the peak: each adds up to
    ``peak.allocated``. ``str`` is the report as text; docs/report-schema.md describes the fields.
    """

    device: str
    batch_size: int | None
    seconds: float
    peak: PeakPoint
    by_role: dict[str, int]
    by_layer: dict[str, int]
    by_op: dict[str, int]
    #: The ten largest tensors at the peak, the largest first.
    top: tuple[TopTensor, ...]
    phases: tuple[PhaseEnd, ...]
    kept: tuple[KeptTensor, ...]
    #: Bytes kept for backward when it began, and those of them that were freed by its end.
    residual_bytes: int
    residual_bytes_returned: int
    pool: PoolFigures
    nodes: int
    #: Seconds spent building graph: nodes times the measured cost of one that keeps two operands.
    graph_seconds: float
    records: int
    driver: DriverFigures | None = None
    #: Results of ops that are live at the end: kept by a graph, by an array of another library only, or by the user. The
    #: largest first.
    left: tuple[Left, ...] = ()
    growth: Growth | None = None
    #: None if no memory was pinned in the step.
    pinned: PinnedFigures | None = None
    #: Bytes of other libraries' memory in tensors at the peak, which are in none of the sums.
    outside_bytes: int = 0
    #: Buffers that arrays of other libraries share at the end, the largest first: their bytes are in the sums.
    exported: tuple[Exported, ...] = ()
    #: Empty in a report that an earlier version of gradcore wrote.
    by_line: dict[str, int] = dataclasses.field(default_factory=dict)
    #: ``step``, or ``snapshot`` for a report of a memory snapshot, which has no nodes: their figures are 0 and empty.
    of: str = "step"
    version: int = SCHEMA_VERSION

    @property
    def bytes_per_sample(self) -> float | None:
        """Bytes at the peak per sample, without parameters, buffers, gradients and optimizer state; None if unknown.

        A quotient, which includes what else does not scale with the batch, such as the workspace of an update.
        """
        if not self.batch_size or not self.by_role:
            return None
        fixed = sum(self.by_role.get(r, 0) for r in ("parameter", "optimizer state", "buffer", "gradient"))
        return (self.peak.allocated - fixed) / self.batch_size

    @property
    def graph_share(self) -> float:
        """The share of the step's time that was spent on building graph, by :attr:`graph_seconds`."""
        return min(self.graph_seconds / self.seconds, 1.0) if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, as docs/report-schema.md describes it."""
        return dataclasses.asdict(self)

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML page; a recording's page also has the timeline. Raises OSError."""
        from gradcore.report.html import of_report, save
        save(path, of_report(self))

    def _repr_html_(self) -> str:
        from gradcore.report.html import frame, of_report
        return frame(of_report(self))

    def __repr__(self) -> str:
        return f"<report of a step on {self.device}: peak {format_bytes(self.peak.allocated)}, {self.records:,} records>"

    def __str__(self) -> str:
        from gradcore.report.text import render

        return render(self)


def build_report(records: Sequence[Record], *, device: str, batch_size: int | None, pool: PoolFigures,
                 node_seconds: float = 0.0, driver: DriverFigures | None = None, growth: Growth | None = None,
                 gained: Mapping[int, int] | None = None, pinned: PinnedFigures | None = None,
                 who: Who | None = None) -> StepReport:
    """The report of a step's log, which lasts from the mark ``begin step`` to ``end step``.

    ``gained`` is that of :func:`~gradcore.report.ends.gained`, ``who`` that of :func:`~gradcore.report.growth.explained`.
    """
    start = folds.position_of(records, "begin", "step") or 0
    highest, holders = folds.at_peak(records)
    marks = [(i, r) for i, r in enumerate(records) if isinstance(r, Mark)]
    began = marks[0][1].time if marks else 0
    ended = marks[-1][1].time if marks else 0
    live = list(folds.timeline(records))
    backward = [i for i, m in marks if m.label == "backward"]
    # Of several that began, the first with most; the position before the end, if none did.
    began_backward = [i for i, m in marks if m.label == "backward" and m.what == "begin"]
    kept_before = max(folds.residuals_at(records, began_backward or [len(records) - 1]), key=lambda found: sum(found.values()))
    kept_after = {h.serial for h in folds.live_at(records, backward[-1])} if backward else kept_before.keys()
    at_end = folds.live_at(records, len(records) - 1)
    sums = by_owner(holders)
    return StepReport(
        device=device, batch_size=batch_size, seconds=(ended - began) / 1e9,
        peak=_point(records, highest),
        by_role=sums["role"], by_layer=sums["layer"], by_op=sums["op"], by_line=sums["line"],
        top=tuple(_top(h) for h in holders[:10]),
        phases=tuple(PhaseEnd(label, live[i].requested, live[i].allocated, (time - began) / 1e9)
                     for label, i, time in _phase_ends(marks)),
        kept=tuple(_kept(r) for r in folds.residuals(records)),
        residual_bytes=sum(kept_before.values()),
        residual_bytes_returned=sum(n for s, n in kept_before.items() if s not in kept_after),
        pool=pool, nodes=(nodes := _nodes(records)), graph_seconds=nodes * node_seconds, records=len(records) - start,
        driver=driver, pinned=pinned, left=_left(at_end, records[start:]), exported=exported(at_end),
        growth=None if growth is None else explained(growth, records, start, gained, who), outside_bytes=folds.outside(holders))


def counted_report(*, device: str, batch_size: int | None, seconds: float, peaks: tuple[int, int, int], live: tuple[int, int],
                   pool: PoolFigures, driver: DriverFigures | None, growth: Growth | None,
                   pinned: PinnedFigures | None) -> StepReport:
    """The report of a step at the level ``counts``, without owners.

    ``peaks`` are the highest requested, allocated and reserved bytes, ``live`` the requested and allocated bytes at the end.
    """
    return StepReport(
        device=device, batch_size=batch_size, seconds=seconds, peak=PeakPoint(0, *peaks, "", "", "", ""),
        by_role={}, by_layer={}, by_op={}, top=(), phases=(PhaseEnd("step", *live, seconds),), kept=(), residual_bytes=0,
        residual_bytes_returned=0, pool=pool, nodes=0, graph_seconds=0.0, records=0, driver=driver, growth=growth,
        pinned=pinned)


def _left(at_end: Sequence[folds.Holder], records: Sequence[Record]) -> tuple[Left, ...]:
    """Of the buffers that are live at the end of a step, those of :data:`MADE` roles that it allocated, the largest first."""
    made = {r.serial for r in records if isinstance(r, Alloc)}
    sums: dict[tuple[str, str, str, str], int] = {}
    for h in at_end:
        if h.serial in made and h.role in MADE:
            key = (h.tag.op, h.tag.layer, line_of(h.tag), held_by(h))
            sums[key] = sums.get(key, 0) + h.allocated
    return tuple(Left(*key[:3], nbytes, key[3]) for key, nbytes in sorted(sums.items(), key=lambda item: -item[1]))


def _phase_ends(marks: list[tuple[int, Mark]]) -> list[tuple[str, int, int]]:
    """(phase, position, time): a forward ends where a backward begins, other phases at their own marks."""
    ends: list[tuple[str, int, int]] = []
    before, depth = -1, 0
    for i, mark in marks:
        if mark.label == "backward" and mark.what == "begin" and not depth and i > before + 1:
            ends.append(("forward", i, mark.time))
        if mark.what == "end":
            ends.append((mark.label, i, mark.time))
        depth += (mark.label == "backward") * (1 if mark.what == "begin" else -1)
        before = i
    return ends


def _nodes(records: Sequence[Record]) -> int:
    return len({r.node for r in records if isinstance(r, (Launch, View)) and r.node and r.tag.phase != "backward"})


def _point(records: Sequence[Record], highest: folds.Peak) -> PeakPoint:
    record = records[highest.position] if records else None
    # Nothing reached it if the most was live before the step.
    by = ((record.tag.op, record.tag.layer, record.tag.phase, line_of(record.tag)) if isinstance(record, Alloc)
          else ("", "", "", ""))
    return PeakPoint(highest.position, highest.requested, highest.allocated, highest.reserved, *by)


def _top(holder: folds.Holder) -> TopTensor:
    tag = holder.tag
    return TopTensor(
        holder.allocated, holder.requested, holder.role, tag.op, tag.layer, tag.phase,
        tag.spec.shape if tag.spec else None, tag.spec.dtype.name if tag.spec else None, line_of(tag),
        str(tag.caller) if tag.caller else None, holder.node, tuple(f"{n}:{name}" for n, name in holder.kept_by),
        tuple(f"{s} in {s.function}" for s in tag.site.callers))


def _kept(residual: folds.Residual) -> KeptTensor:
    tag = residual.tag
    return KeptTensor(residual.node, residual.name, tag.op, tag.layer, tag.role, line_of(tag), residual.allocated,
                      residual.kept_at, residual.dropped_at, residual.freed_at, residual.reason, residual.serial)


def load_report(data: dict[str, Any]) -> StepReport:
    """The report that :meth:`StepReport.to_dict` wrote. Raises ValueError for another version or missing fields."""
    if not isinstance(data, dict) or data.get("version") != SCHEMA_VERSION:
        given = data.get("version") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"expected a step report of version {SCHEMA_VERSION}, but got {given!r}")
    return read(StepReport, data)
