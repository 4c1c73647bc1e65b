"""What changed between two steps: which role, layer, op and line the peak gained and lost."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradcore import folds
from gradcore.report.growth import line_of
from gradcore.report.recording import Recording
from gradcore.report.step import StepReport
from gradcore.report.text import short_path
from gradcore.units import format_bytes, parse_bytes

#: Rows of a table of the text form.
_ROWS = 12


class Place(NamedTuple):
    """What two versions of a program have in common where lines have moved: the file's name, the function, and what ran."""

    file: str
    function: str
    op: str
    layer: str


class Held(NamedTuple):
    """Allocated bytes of a place, and the line of its largest buffer."""

    nbytes: int
    line: str


@dataclass(frozen=True)
class Change:
    """Allocated bytes that an owner held at the peak, before and after. ``line`` is "" but for places in the source."""

    name: str
    before: int
    after: int
    line: str = ""

    @property
    def gained(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class Side:
    """One of the two steps: bytes of its peak, and where that stands."""

    device: str
    batch_size: int | None
    requested: int
    allocated: int
    reserved: int
    reached_by: str


@dataclass(frozen=True)
class Diff:
    """Two steps' peaks, and every owner that holds more or less at the second one's, the largest change first.

    Each of the tables' changes adds up to the change of the peak; ``by_line``'s only if not ``partial``: of a report without
    its records, the lines of the largest tensors alone are known.
    """

    before: Side
    after: Side
    by_role: tuple[Change, ...]
    by_layer: tuple[Change, ...]
    by_op: tuple[Change, ...]
    by_line: tuple[Change, ...]
    partial: bool

    @property
    def gained(self) -> int:
        """Allocated bytes that the peak grew by; negative where it fell."""
        return self.after.allocated - self.before.allocated

    def exceeds(self, allowed: str) -> bool:
        """Has the peak grown by more than ``allowed``, ``"1%"`` of what it was or a size such as ``"64 KiB"``?

        Raises ValueError for anything else.
        """
        share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", allowed)
        return self.gained > (self.before.allocated * float(share[1]) / 100 if share else parse_bytes(allowed))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the change of the peak and of each owner as ``gained``. Bytes."""
        data = {"version": 1, "gained": self.gained, **dataclasses.asdict(self)}
        for name in ("by_role", "by_layer", "by_op", "by_line"):
            data[name] = [{**dataclasses.asdict(c), "gained": c.gained} for c in getattr(self, name)]
        return data

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        a, b = self.before, self.after
        share = f", {self.gained / a.allocated:+.2%}" if a.allocated else ""
        lines = [f"Peak {format_bytes(a.allocated)} -> {format_bytes(b.allocated)}: {self.gained:+,} bytes{share}",
                 f"  before: {a.allocated:,} bytes, {a.device}, batch {a.batch_size}, reached by {a.reached_by}",
                 f"  after:  {b.allocated:,} bytes, {b.device}, batch {b.batch_size}, reached by {b.reached_by}"]
        for title, changes in (("role", self.by_role), ("layer", self.by_layer), ("op", self.by_op)):
            lines += table(f"By {title}:", changes)
        of = " (of the largest tensors: there are no records)" if self.partial else ""
        return "\n".join([*lines, *table(f"By line{of}:", self.by_line)])


def table(title: str, changes: tuple[Change, ...]) -> list[str]:
    """Lines of text: what was gained, from what to what, by whom. No lines where nothing changed."""
    if not changes:
        return []
    rows = [f"  {c.gained:>+15,}  {c.before:>15,} -> {c.after:>15,}  {c.name}" + (f", {short_path(c.line)}" if c.line else "")
            for c in changes[:_ROWS]]
    more = [f"  {sum(c.gained for c in changes[_ROWS:]):>+15,}  {len(changes) - _ROWS} more"] if len(changes) > _ROWS else []
    return ["", title, *rows, *more]


def diff(before: Recording, after: Recording) -> Diff:
    """What the peak of ``after`` has gained and lost beside that of ``before``."""
    a, b = before.report, after.report
    partial = not (before.records and after.records)
    return Diff(_side(a), _side(b), changes(a.by_role, b.by_role), changes(a.by_layer, b.by_layer), changes(a.by_op, b.by_op),
                moved(_of_top(a), _of_top(b)) if partial else moved(_at_peak(before), _at_peak(after)), partial)


def changes(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[Change, ...]:
    """The names whose bytes differ, the largest change first."""
    found = [Change(name or "(root)", before.get(name, 0), after.get(name, 0)) for name in {**before, **after}]
    return tuple(sorted((c for c in found if c.gained), key=lambda c: (-abs(c.gained), c.name)))


def moved(before: Mapping[Place, Held], after: Mapping[Place, Held]) -> tuple[Change, ...]:
    """As :func:`changes`, for places: a line that only moved within its function is no change."""
    nothing = Held(0, "")
    found = []
    for place in {**before, **after}:
        a, b = before.get(place, nothing), after.get(place, nothing)
        found.append(Change(f"{place.op} in {place.layer or '(root)'}", a.nbytes, b.nbytes, b.line or a.line))
    return tuple(sorted((c for c in found if c.gained), key=lambda c: (-abs(c.gained), c.name, c.line)))


def places(held: Iterable[tuple[int, str, str, str]]) -> dict[Place, Held]:
    """Bytes by place, of (bytes, op, layer, line)s; a line is ``file:number in function``."""
    sums: dict[Place, Held] = {}
    # The largest first, so that a place is named by its largest buffer's line.
    for nbytes, op, layer, line in sorted(held, key=lambda row: -row[0]):
        where, _, function = line.partition(" in ")
        place = Place(os.path.basename(where.rpartition(":")[0]), function, op, layer)
        old = sums.get(place)
        sums[place] = Held(nbytes, line) if old is None else old._replace(nbytes=old.nbytes + nbytes)
    return sums


def _side(report: StepReport) -> Side:
    p = report.peak
    return Side(report.device, report.batch_size, p.requested, p.allocated, p.reserved,
                f"{p.op} in {p.layer or '(root)'}, phase {p.phase}, {short_path(p.line)}")


def _of_top(report: StepReport) -> dict[Place, Held]:
    return places((t.allocated, t.op, t.layer, t.line) for t in report.top)


def _at_peak(recording: Recording) -> dict[Place, Held]:
    return places((h.allocated, h.tag.op, h.tag.layer, line_of(h.tag))
                  for h in folds.live_at(recording.records, recording.report.peak.position))
