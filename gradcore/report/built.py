"""Computes the report of one step from its log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from gradcore import folds
from gradcore.events import HELD_OUTSIDE, Alloc, Free, Launch, Mark, Record, View
from gradcore.grouping import Who, alike, by_owner
from gradcore.report.growth import MADE, Growth, Linked, explained, held_by, of_the_graph
from gradcore.report.step import (
    RETAINED,
    DriverFigures,
    Exported,
    KeptTensor,
    Left,
    PeakPoint,
    PhaseEnd,
    PinnedFigures,
    PlannedFigures,
    PoolFigures,
    StepReport,
    TopTensor,
)

#: The most tensors in :attr:`~gradcore.report.step.StepReport.top`.
_TOP = 10


def build_report(records: Sequence[Record], *, device: str, batch_size: int | None, pool: PoolFigures,
                 node_seconds: float = 0.0, driver: DriverFigures | None = None, growth: Growth | None = None,
                 gained: Mapping[int, int] | None = None, pinned: PinnedFigures | None = None,
                 arenas: Sequence[tuple[int, int, int, int]] = (), who: Who | None = None,
                 graph: Callable[[], Growth | None] = lambda: None, linked: Linked | None = None) -> StepReport:
    """The report of a step's log, which lasts from the mark ``begin step`` to ``end step``.

    ``arenas`` are those of compiled functions, each as its serial, its segment, its offset there, and its bytes.
    ``gained`` is that of :func:`~gradcore.report.ends.gained`, ``who`` and ``linked`` those of
    :func:`~gradcore.report.growth.explained`, and ``graph`` is ``ask`` of :func:`~gradcore.report.growth.of_the_graph`.
    """
    start = folds.start_of_step(records)
    live = list(folds.timeline(records))
    highest, last = folds.peak_of_step(records, live), len(records) - 1
    marks = [(i, r) for i, r in enumerate(records) if isinstance(r, Mark)]
    began = marks[0][1].time if marks else 0
    ended = marks[-1][1].time if marks else 0
    backward = [(i, m.what) for i, m in marks if m.label == "backward"]
    # Of several that began, the first with most; the end, if none did.
    before = [i for i, what in backward if what == "begin"] or [last]
    after = backward[-1][0] if backward else last
    moments = sorted({highest.position, after, last, *before})
    holders, kept = {}, {}
    for at, books in zip(moments, folds.books_at(records, moments), strict=True):
        if at in (highest.position, after, last):
            holders[at] = books.holders()
        if at in before:
            kept[at] = books.residuals()
    kept_before = max((kept[at] for at in before), key=lambda found: sum(found.values()))
    kept_after = {h.serial for h in holders[after]}
    at_peak, at_end = folds.largest_first(holders[highest.position]), holders[last]
    sums, run = by_owner(at_peak), folds.run_backward(records)
    nodes = len({r.node for r in records if isinstance(r, (Launch, View)) and r.node and r.tag.phase != "backward"})
    return StepReport(
        device=device, batch_size=batch_size, seconds=(ended - began) / 1e9,
        peak=_point(records, highest),
        by_role=sums["role"], by_layer=sums["layer"], by_op=sums["op"], by_line=sums["line"],
        top=_largest(at_peak),
        phases=tuple(PhaseEnd(label, live[i].requested, live[i].allocated, (time - began) / 1e9)
                     for label, i, time in _phase_ends(marks)),
        kept=tuple(_kept(r, run) for r in folds.residuals(records)),
        residual_bytes=sum(kept_before.values()),
        residual_bytes_returned=sum(n for s, n in kept_before.items() if s not in kept_after),
        pool=pool, nodes=nodes, graph_seconds=nodes * node_seconds, records=len(records) - start,
        driver=driver, pinned=pinned, planned=_planned(records, highest.position, arenas),
        left=_left(at_end, records[start:]), exported=_exported(at_end),
        growth=of_the_graph(records, start, graph, who, linked) if growth is None else
        explained(growth, records, start, gained, who, linked),
        outside_bytes=folds.outside(at_peak))


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


def _planned(records: Sequence[Record], peak: int, arenas: Iterable[tuple[int, int, int, int]]) -> PlannedFigures | None:
    """What lay in the arenas; ``peak`` is the position of the peak."""
    live, used = {}, set()
    now = most = at_peak = 0
    for position, record in enumerate(records if arenas else ()):
        if isinstance(record, Alloc):
            for arena in arenas:
                made, segment, offset, nbytes = arena
                # What lay there before is no part of it.
                if record.serial > made and record.segment == segment and offset <= record.offset < offset + nbytes:
                    used.add(arena)
                    live[record.serial] = record.allocated
                    now += record.allocated
                    most = max(most, now)
        elif isinstance(record, Free):
            now -= live.pop(record.serial, 0)
        if position == peak:
            at_peak = now
    return PlannedFigures(len(used), sum(nbytes for *_, nbytes in used), most, at_peak) if used else None


def _exported(holders: Iterable[folds.Holder]) -> tuple[Exported, ...]:
    """Those of the holders that other libraries share, summed; the largest first."""
    sums: dict[tuple[str, str, str, str, str, bool], tuple[int, int]] = {}
    for h in holders:
        if h.tag.export is not None:
            export = h.tag.export
            key = h.tag.op, h.tag.layer, h.tag.site.full, export.form, export.site.full, h.role == HELD_OUTSIDE
            count, allocated = sums.get(key, (0, 0))
            sums[key] = count + 1, allocated + h.allocated
    return tuple(Exported(*key, *sums[key]) for key in sorted(sums, key=lambda k: (-sums[k][1], k)))


def _left(at_end: Sequence[folds.Holder], records: Sequence[Record]) -> tuple[Left, ...]:
    """Of the buffers that are live at the end of a step, those of :data:`MADE` roles that it allocated, the largest first."""
    made = {r.serial for r in records if isinstance(r, Alloc)}
    sums = folds.summed(((h.tag.op, h.tag.layer, h.tag.site.full, held_by(h)), h.allocated)
                        for h in at_end if h.serial in made and h.role in MADE)
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


def _point(records: Sequence[Record], highest: folds.Peak) -> PeakPoint:
    record = records[highest.position] if records else None
    # Nothing reached it if the most was live before the step.
    by = ((record.tag.op, record.tag.layer, record.tag.phase, record.tag.site.full) if isinstance(record, Alloc)
          else ("", "", "", ""))
    return PeakPoint(highest.position, highest.requested, highest.allocated, highest.reserved, *by)


def _largest(holders: Sequence[folds.Holder]) -> tuple[TopTensor, ...]:
    """The :data:`_TOP` with most bytes; where there are more, equal ones in equal blocks count as one."""
    rows = alike([(h.tag.layer, (h.allocated, h.requested, h.role, h.tag.op, h.tag.phase, h.tag.spec, h.tag.site,
                                 len(h.kept_by))) for h in holders], _TOP)
    largest = sorted(rows, key=lambda row: (-row[1][0] * len(row[2]), row[2][0]))[:_TOP]
    return tuple(replace(_top(holders[places[0]]), layer=layer, count=len(places)) for layer, _, places in largest)


def _top(holder: folds.Holder) -> TopTensor:
    tag = holder.tag
    return TopTensor(
        holder.allocated, holder.requested, holder.role, tag.op, tag.layer, tag.phase,
        tag.spec.shape if tag.spec else None, tag.spec.dtype.name if tag.spec else None, tag.site.full,
        str(tag.caller) if tag.caller else None, holder.node, tuple(f"{n}:{name}" for n, name in holder.kept_by),
        tuple(s.full for s in tag.site.callers))


def _kept(residual: folds.Residual, run: AbstractSet[int]) -> KeptTensor:
    tag = residual.tag
    reason = RETAINED if residual.dropped_at is None and residual.node in run else residual.reason
    return KeptTensor(residual.node, residual.name, tag.op, tag.layer, tag.role, tag.site.full, residual.allocated,
                      residual.kept_at, residual.dropped_at, residual.freed_at, reason, residual.serial)
