"""Compares two peaks by role, layer, op and line of source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gradcore import folds
from gradcore.grouping import BY, alike, by_owner
from gradcore.reading import short_path
from gradcore.report.matching import followed, in_networks_of
from gradcore.report.recording import Recorded, Recording
from gradcore.report.step import StepReport
from gradcore.report.text import short_sums
from gradcore.units import format_bytes, parse_bytes

#: What :attr:`Diff.end` compares.
AT_END = "Live at the end of the step"
#: The most rows of a table in text.
_ROWS = 12


@dataclass(frozen=True)
class Owners:
    """Allocated bytes by owner, at a peak or at a step's end: each table of ``by`` adds up to ``peak``.

    Raises ValueError for one that does not.

    Unknown tables are missing from ``by``: ``line`` without records, and all of them for a step at the level ``counts``.
    """

    peak: int
    by: dict[str, dict[str, int]]

    def __post_init__(self) -> None:
        for group, sums in self.by.items():
            whole = sum(sums.values())
            if whole != self.peak:
                raise ValueError(f"the bytes by {group} add up to {whole:,}, not to the peak of {self.peak:,}")


@dataclass(frozen=True)
class Change:
    """One owner's bytes at two peaks."""

    name: str
    before: int
    after: int

    @property
    def change(self) -> int:
        """By how many bytes it has grown."""
        return self.after - self.before


@dataclass(frozen=True)
class Diff:
    """Two peaks in allocated bytes, and what changed between them, the largest change first.

    The changes in each table of ``by`` add up to ``change``. Owners with as many bytes as before are left out. ``end`` is the
    same of what is live at the ends of the two steps, or None if that is not known.
    """

    before: int
    after: int
    by: dict[str, tuple[Change, ...]]
    end: Diff | None = None

    @property
    def change(self) -> int:
        """By how many bytes the peak has grown."""
        return self.after - self.before

    def __repr__(self) -> str:
        return f"<difference of two peaks: {format_bytes(self.before)} before, {format_bytes(self.after)} after>"

    def to_dict(self) -> dict[str, Any]:
        """The diff as plain data, in bytes."""
        return {**self._plain(), "end": None if self.end is None else self.end._plain()}

    def _plain(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after, "change": self.change,
                "by": {group: [{"name": c.name, "before": c.before, "after": c.after, "change": c.change} for c in changes]
                       for group, changes in self.by.items()}}

    def __str__(self) -> str:
        lines = [summary(self)]
        for group, changes in self.by.items():
            if changes:
                lines += ["", *table(group, changes)]
        if equal := [group for group, changes in self.by.items() if not changes]:
            lines += ["", f"By {', '.join(equal)}: no change"]
        if self.end is not None:
            lines += ["", summary(self.end, AT_END)]
            for group in ("role", "line"):
                if self.end.by.get(group):
                    lines += table(f"{group}, at the end", self.end.by[group])
        return "\n".join(lines)


def owners_of(recording: Recording) -> Owners:
    """The owners of the bytes at a step's peak. Raises ValueError for a report whose sums are not equal to its peak."""
    report, records = recording.report, recording.records
    if records:
        highest, holders = folds.at_peak(records)
        return Owners(highest.allocated, by_owner(holders, short_path))
    # A step at the level ``counts`` has totals without owners.
    return Owners(report.peak.allocated,
                  {group: sums for group, sums in short_sums(report).items() if sums or not report.peak.allocated})


def _recording_of(x: Recorded | StepReport) -> Recording:
    if isinstance(x, StepReport):
        return Recording(x, ())
    # Of a step it is made when it is asked for, and not there before the step has ended.
    if not hasattr(type(x), "recording"):
        raise TypeError(f"expected steps, recordings or reports to compare, but got {type(x).__name__}")
    return x.recording


def _owners_at_end(recording: Recording) -> Owners | None:
    """The owners of what is live at a step's end, None if not even the bytes are known."""
    records, phases = recording.records, recording.report.phases
    if records:
        holders = folds.live_at(records, len(records) - 1)
        return Owners(sum(h.allocated for h in holders), by_owner(holders, short_path))
    return Owners(phases[-1].allocated, {}) if phases else None


def compare(before: Recorded | StepReport | Owners, after: Recorded | StepReport | Owners) -> Diff:
    """The change of the peak from ``before`` to ``after``, and of what is live at the end, by each grouping known for both.

    Raises TypeError for what is no step, recording or report.
    """
    given = [x if isinstance(x, Owners) else _recording_of(x) for x in (before, after)]
    ends = [None if isinstance(x, Owners) else _owners_at_end(x) for x in given]
    a, b = (x if isinstance(x, Owners) else owners_of(x) for x in given)
    return _compared(a, b, None if ends[0] is None or ends[1] is None else _compared(ends[0], ends[1]))


def _compared(a: Owners, b: Owners, end: Diff | None = None) -> Diff:
    return Diff(a.peak, b.peak, {group: _changes(group, a.by[group], b.by[group])
                                 for group in BY if group in a.by and group in b.by}, end)


def _changes(group: str, before: dict[str, int], after: dict[str, int]) -> tuple[Change, ...]:
    if group == "layer":
        before = in_networks_of(after, before)
    rows = {name: Change(name, before.get(name, 0), after.get(name, 0)) for name in {**before, **after}}
    if group == "line":
        rows = {}
        for name, was, now in followed(before, after):
            if was != now:
                # A line may be lost where another one comes.
                here = rows.get(name, Change(name, 0, 0))
                rows[name] = Change(name, here.before + was, here.after + now)
    return tuple(sorted((r for r in rows.values() if r.change), key=lambda r: (-abs(r.change), r.name)))


def allowance(text: str) -> Callable[[int], Fraction]:
    """A function from a peak to the bytes it may grow by: ``"1%"`` of it, or a size. Raises ValueError for other texts."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if match:
        share = Fraction(match[1]) / 100
        return lambda before: share * before
    try:
        size = Fraction(parse_bytes(text))
    except ValueError:
        raise ValueError(f"expected a share such as '1%' or a size such as '64 KiB', but got {text!r}") from None
    return lambda before: size


# -- as text -----------------------------------------------------------------------------------------------------------


def summary(diff: Diff, what: str = "Peak") -> str:
    """The two peaks, or what else is compared, and their difference, on one line."""
    share = f", {diff.change / diff.before:+.2%}" if diff.before else ""
    return (f"{what}: {format_bytes(diff.before)} before, {format_bytes(diff.after)} after: {diff.change:+,} bytes{share}")


def table(group: str, changes: Iterable[Change], rows: int = _ROWS) -> list[str]:
    """The largest changes, a line each, and the sum of the others. Of many layers, those that changed alike share a line."""
    listed = list(changes)
    if group == "layer":
        listed = sorted((Change(name, before * len(all_), after * len(all_)) for name, (before, after), all_ in
                         alike([(c.name, (c.before, c.after)) for c in listed], rows)),
                        key=lambda c: (-abs(c.change), c.name))
    lines = [f"By {group}:" if listed else f"By {group}: no change"]
    shown = [(f"{c.change:+,}", c.name or "(root)", f"{c.before:,}", f"{c.after:,}") for c in listed[:rows]]
    name, before, after = (max([least, *(len(row[column]) for row in shown)]) for column, least in ((1, 22), (2, 0), (3, 0)))
    lines += [f"  {change:>15}  {who:{name}}  {was:>{before}} -> {now:>{after}}" for change, who, was, now in shown]
    if len(listed) > rows:
        lines.append(f"  {sum(c.change for c in listed[rows:]):>+15,}  in {len(listed) - rows} more")
    return lines
