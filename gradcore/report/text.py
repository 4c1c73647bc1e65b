"""Renders a step report as text for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gradcore.folds import summed
from gradcore.grouping import alike
from gradcore.reading import short_path
from gradcore.report.growth import NAMED, Grown, Growth
from gradcore.report.step import RETAINED, Exported, KeptTensor, Left, PeakPoint, StepReport
from gradcore.units import count_of, format_bytes, format_seconds

_BAR = 24
#: From nothing to seven eighths of a column.
_PARTS = " ▏▎▍▌▋▊▉"
_WHO = {"graph": "kept by the graph", "outside": "held by another library's array", "program": "a compiled function's own",
        "you": "referenced by your code"}
#: The most lines of a stack.
_CALLERS = 6
#: The most rows of a table at the peak.
_ROWS = 12
#: The most rows of what is live at the end.
_LEFT = 8
#: The most rows of what was kept for backward.
_KEPT = 16
#: The most phases at the beginning, and at the end, of their list.
_PHASES = 8


def short_sums(report: StepReport) -> dict[str, dict[str, int]]:
    """The sums at the peak by role, layer, op and line. Paths of lines are shortened; two may be one line then."""
    lines = summed((short_path(line), nbytes) for line, nbytes in report.by_line.items())
    return {"role": report.by_role, "layer": report.by_layer, "op": report.by_op, "line": lines}


def bar(share: float, width: int = _BAR) -> str:
    """A bar of block characters, in eighths: ``share`` (0 to 1) of ``width`` columns.

    It is of ``#`` if standard output lacks the blocks: nobody can say where a text goes, and most are printed.
    """
    eighths = round(max(min(share, 1.0), 0.0) * width * 8)
    full, part = divmod(eighths, 8)
    if not has_blocks():
        return "#" * round(eighths / 8)
    return "█" * full + (_PARTS[part] if part else "")


def has_blocks() -> bool:
    """Can standard output show the characters of a bar? What has no encoding takes any text."""
    try:
        f"█{_PARTS}".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def axis(named: Iterable[tuple[str, int]], columns: int, floor: str, tick: str) -> tuple[str, str]:
    """The line below a plot, with a tick where each named phase after the first begins, and the line of their names.

    A name is where its phase begins, or further left: beyond the last column it would be wrapped on a terminal. One that has no
    room behind the name before is left out, and its tick, too.
    """
    line, begins = "", set()
    for name, column in named:
        start = max(min(column, columns - len(name)), 0)
        if start >= len(line):
            begins |= {column} if line else set()
            line = f"{line:{start}}{name} "
    return "".join(tick if column in begins else floor for column in range(columns)), line.rstrip()


def reached_by(peak: PeakPoint) -> str:
    """What allocated the last bytes of a peak: op, layer, phase and line; empty if the step allocated nothing."""
    return f"{peak.op} in layer {peak.layer or '(root)'}, phase {peak.phase}, {short_path(peak.line)}" if peak.op else ""


def render(report: StepReport) -> str:
    """The report for a terminal."""
    peak = report.peak
    batch = f", batch {report.batch_size:,}" if report.batch_size else ""
    lines = [
        f"Device memory of one step on {report.device}{batch}: peak {format_bytes(peak.allocated)}",
        f"  requested {peak.requested:,}  allocated {peak.allocated:,}  reserved {peak.reserved:,} bytes",
    ]
    if not report.records:
        lines.append("  recorded at the level counts, which says nothing of owners; the level events does")
        return "\n".join([*lines, *_growth(report.growth), *_tail(report)])
    if not (peak.allocated or report.outside_bytes):
        return "\n".join([*lines, f"  nothing was live on {report.device}, and nothing was allocated there", *_tail(report)])
    reached = reached_by(peak)
    lines.append(f"  reached by {reached}" if reached else "  live when the step began, and not reached again")
    if report.bytes_per_sample is not None:
        each = f"{report.bytes_per_sample:,.0f} bytes per sample"
        lines.append(f"  {each}, not counting parameters, buffers, gradients and optimizer state")
    for title, sums in short_sums(report).items():
        if sums or title != "line":
            rows = [(name, nbytes) for name, nbytes in sums.items() if nbytes]
            if title == "layer":
                rows = sorted(((name, nbytes * len(places)) for name, nbytes, places in alike(rows, _ROWS)),
                              key=lambda row: -row[1])
            lines += ["", f"At the peak, by {title}:", *_bars(rows, peak.allocated)]
    if report.outside_bytes:
        lines += ["", "Memory of other libraries that tensors share: "
                  f"{report.outside_bytes:,} bytes, not included in these sums."]
    lines += ["", "Largest tensors at the peak:"]
    top = [(t, shown_shape(t.shape, t.count)) for t in report.top if t.allocated]
    ops, shapes, layers = (max([least, *map(len, cells)]) for least, cells in (
        (18, (t.op for t, _ in top)), (14, (shape for _, shape in top)), (14, (t.layer for t, _ in top))))
    for t, shape in top:
        kept = f"  {'each ' * (t.count > 1)}kept by {count_of(len(t.kept_by), 'node')}" if t.kept_by else ""
        lines.append(f"  {format_bytes(t.allocated * t.count):>10}  {t.role:15} {t.op:{ops}} {shape:>{shapes}} "
                     f"{t.dtype or '':8} {t.layer or '(root)':{layers}} {short_path(t.line)}{kept}")
        lines += [f"{'':14}called from {short_path(line)}" for line in t.stack[:_CALLERS]]
    lines += ["", "Live at the end of each phase:"]
    phases = [f"  {p.phase:10} {p.allocated:>15,} bytes  after {format_seconds(p.seconds)}" for p in report.phases]
    # A step of many calls and backwards, as of gradients by sample, has hundreds.
    between = len(phases) - 2 * _PHASES
    lines += phases if between < 2 else [*phases[:_PHASES], f"  and {between} more", *phases[-_PHASES:]]
    lines += ["", *_kept(report)]
    return "\n".join([*lines, *_left(report), *_exported(report), *_growth(report.growth), *_tail(report)])


def shown_shape(shape: Sequence[int] | None, count: int) -> str:
    """``64x128`` or ``scalar``, ``bytes`` for what has no shape; of several tensors ``12 of 64x128``."""
    text = "bytes" if shape is None else "x".join(map(str, shape)) or "scalar"
    return f"{count:,} of {text}" if count > 1 else text


def _tail(report: StepReport) -> Iterable[str]:
    pool = report.pool
    yield ""
    beyond = report.peak.reserved - report.peak.allocated
    # A snapshot of another program may not have all segments.
    more = f"; reserved beyond the peak: {format_bytes(beyond)}" if beyond >= 0 else ""
    yield f"Pool: {count_of(pool.allocations, 'allocation')}, {pool.hits:,} served without the driver{more}"
    yield (f"  at the end {count_of(pool.segments, 'segment')}, {format_bytes(pool.cached)} cached, "
           f"fragmentation {pool.fragmentation:.1%}")
    if report.records and report.of != "snapshot":
        yield (f"Graph: {count_of(report.nodes, 'node')}, {report.graph_share:.1%} of the step's "
               f"{format_seconds(report.seconds)}; {count_of(report.records, 'record')}")
    if report.planned is not None:
        plan = report.planned
        yield (f"Compiled functions: {format_bytes(plan.planned)} planned in {count_of(plan.arenas, 'arena')}, of which "
               f"{format_bytes(plan.live_at_peak)} were live at the peak, and {format_bytes(plan.max_live)} at most")
    if report.pinned is not None:
        p = report.pinned
        yield (f"Pinned host memory: {p.allocated:,} bytes live, at most {p.max_allocated:,} in this step; {p.reserved:,} held "
               "by its pool")
    if report.driver is not None:
        d = report.driver
        used, context, remainder = ("N/A" if n is None else f"{n:,}" for n in (d.used, d.context, d.remainder))
        share = f" ({d.remainder / d.used:.1%}: what the driver and libraries take for themselves)" if (
            d.used and d.remainder is not None) else ""
        yield f"Driver ({d.source}):"
        yield (f"  {used} bytes used = context {context} + segments {d.segments:,} + libraries {d.library:,} + "
               f"remainder {remainder}{share}")
        yield from (f"  {x.nbytes:>15,} bytes for {x.name}" for x in d.libraries)
        if d.unseen:
            yield f"  the remainder includes {d.unseen}"


def _left(report: StepReport) -> Iterable[str]:
    if report.left:
        yield ""
        yield "Results made in this step and live at its end (memory_summary() names what holds them):"
        rows = [replace(x, layer=layer, allocated=x.allocated * len(places)) for layer, x, places in
                alike([(x.layer, replace(x, layer="")) for x in report.left], _LEFT)]
        yield from _first(_LEFT, [f"  {x.allocated:>15,} bytes of {_made_by(x)}: {_WHO[x.held_by]}"
                                  for x in sorted(rows, key=lambda x: -x.allocated)])


def _exported(report: StepReport) -> Iterable[str]:
    if report.exported:
        yield ""
        yield "Shared by arrays of other libraries at the end:"
        lines = []
        for x in report.exported:
            how = "held only by" if x.alone else "held by its tensor, and shared by"
            many = f" in {x.count} buffers" if x.count > 1 else ""
            lines.append(f"  {x.allocated:>15,} bytes{many} of {_made_by(x)}: {how} {x.form}, {short_path(x.exported_at)}")
        yield from _first(_LEFT, lines)


def _made_by(x: Left | Exported | Grown) -> str:
    return f"{x.op} in {x.layer or '(root)'}, {short_path(x.line)}"


def _first(most: int, lines: Sequence[str]) -> Iterable[str]:
    yield from lines[:most]
    if len(lines) > most:
        yield f"  and {len(lines) - most} more"


def has_grown(growth: Growth) -> str:
    """By how much live bytes or the graph have grown, as a sentence without its full stop."""
    if growth.nodes:
        nodes = count_of(growth.nodes, "node")
        return f"The graph has grown for {growth.steps} steps, typically by {nodes} per step, without device bytes"
    often = "per step" if growth.every == 1 else f"every {growth.every:,} steps"
    return f"Live bytes have grown for {growth.steps} steps, typically by {growth.requested:,} requested bytes {often}"


def _growth(growth: Growth | None) -> Iterable[str]:
    if growth is None:
        return
    yield ""
    yield str(growth)


def why_grown(growth: Growth) -> Iterable[str]:
    """What has grown and what holds it, and what links the steps, in lines that are indented."""
    for x in growth.grown[:NAMED]:
        who = _WHO[x.held_by] + (f" for {_op_line(x.keeper)}" if x.held_by == "graph" else "")
        who += ", which backward ran with retain_graph" * x.retained
        yield f"  {x.allocated:>15,} bytes in {count_of(x.count, 'result')} of {_made_by(x)}: {who}"
        if x.holder:
            yield f"{'':25}held by {x.holder}"
    if more := growth.grown[NAMED:]:
        yield f"  and {len(more)} more, {sum(x.allocated for x in more):,} bytes"
    for c in growth.carried[:NAMED]:
        yield f"  {c.reader}, {short_path(c.reader_line)}, reads a result of the previous step: {c.op},"
        yield f"  {short_path(c.line)}. Did you mean loss.item() or detach()?"


def _op_line(keeper: str) -> str:
    op, comma, line = keeper.partition(", ")
    return op + comma + short_path(line) if comma else keeper or "a node of an earlier step"


def _bars(sums: Iterable[tuple[str, int]], whole: int) -> Iterable[str]:
    rows = [(name or "(root)", nbytes) for name, nbytes in sums]
    width = max([22, *(len(name) for name, _ in rows[:_ROWS])])
    for name, nbytes in rows[:_ROWS]:
        share = nbytes / whole
        yield f"  {name:{width}} {nbytes:>15,}  {share:6.1%}  {bar(share)}".rstrip()
    if len(rows) > _ROWS:
        yield f"  and {len(rows) - _ROWS} more, {sum(nbytes for _, nbytes in rows[_ROWS:]):,} bytes"


def _kept(report: StepReport) -> Iterable[str]:
    rows = [k for k in report.kept if k.role in ("output", "temporary")]
    kept = sum({k.serial or -k.kept_at: k.allocated for k in rows if k.node}.values())
    if report.of == "snapshot":
        yield "A snapshot does not tell what was kept for backward."
    elif kept and not report.residual_bytes_returned and all(p.phase != "backward" for p in report.phases):
        yield (f"Kept for backward: {kept:,} bytes by a step without a backward, {report.residual_bytes:,} at its end: under "
               "no_grad() nothing is kept.")
    else:
        retained = ", as one ran with retain_graph" * any(k.reason == RETAINED for k in rows)
        yield (f"Kept for backward: {report.residual_bytes:,} bytes; freed by the end of backward: "
               f"{report.residual_bytes_returned:,}{retained}.")
    yield from _kept_before([k for k in rows if not k.node])
    yield from _kept_by_nodes([k for k in rows if k.node])


def _kept_by_nodes(rows: Sequence[KeptTensor]) -> Iterable[str]:
    """A line for each buffer and node; where they are many, one for those of equal blocks."""
    first: dict[int, KeptTensor] = {}
    # The node that kept the same buffer before.
    others = [first.setdefault(k.serial, k) if k.serial else k for k in rows]

    def merged(where: Callable[[KeptTensor, KeptTensor], int]) -> list[Any]:
        return alike([(k.layer, (k.name, k.op, k.allocated, None if other is k else (other.name, where(k, other)),
                                 k.dropped_at is None, k.freed_at is None)) for k, other in zip(rows, others, strict=True)],
                     _KEPT)

    # The other of several is as far from each of them; or it is one for all, such as what each step of a loop reads.
    found = min(merged(lambda k, other: k.node - other.node), merged(lambda k, other: other.node), key=len)
    found = sorted(found, key=lambda row: -row[1][2] * len(row[2]))
    for layer, (name, op, nbytes, shared, kept_on, live), places in sorted(found[:_KEPT], key=lambda row: row[2]):
        equal = [rows[place] for place in places]
        gone = "still kept" if kept_on else f"released at {_span(k.dropped_at for k in equal)}"
        freed = "" if live else f", freed at {_span(k.freed_at for k in equal)}"
        what = (f"{nbytes * len(equal):,} bytes of {op} in {layer or '(root)'}" if shared is None else
                f"the same bytes as {shared[0]!r} of {_nodes(others[place] for place in places)}")
        yield (f"  {_nodes(equal)}{f' ({len(equal):,})' * (len(equal) > 1)}: {name!r}, {what}, kept at "
               f"record{'s' * (len(equal) > 1)} {_span(k.kept_at for k in equal)}, {gone}{freed}")
    if len(found) > _KEPT:
        yield f"  and {len(found) - _KEPT} more"


def _span(numbers: Iterable[int | None]) -> str:
    known = [n for n in numbers if n is not None]
    return f"{min(known)}-{max(known)}" if min(known) < max(known) else f"{known[0]}"


def _nodes(rows: Iterable[KeptTensor]) -> str:
    span = _span(k.node for k in rows)
    return f"node{'s' * ('-' in span)} {span}"


def _kept_before(rows: Sequence[KeptTensor]) -> Iterable[str]:
    """A line for each line of source whose results graphs of before the step keep, the most bytes first."""
    sums: dict[tuple[str, str, str], dict[int, int]] = {}
    for k in rows:
        # Several nodes may keep one buffer; a report of before serials cannot tell.
        sums.setdefault((k.op, k.layer, k.line), {})[k.serial or -k.kept_at] = k.allocated
    found = sorted(((sum(buffers.values()), len(buffers), key) for key, buffers in sums.items()), reverse=True)
    for nbytes, count, (op, layer, line) in found[:4]:
        yield (f"  since before this step: {nbytes:,} bytes in {count_of(count, 'result')} of {op} in "
               f"{layer or '(root)'}, {short_path(line)}")
    if len(found) > 4:
        yield f"  and {sum(n for n, *_ in found[4:]):,} bytes of {count_of(len(found) - 4, 'more line')} since before this step"
