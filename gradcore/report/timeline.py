"""Computes live bytes over a step by owner, the data of the plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gradcore import folds
from gradcore.events import HELD_OUTSIDE, Alloc, Drop, Free, Keep, Mark, Record, Retag
from gradcore.grouping import BY, Key

#: Roles from the bottom of a stack to its top: those that live longest are lowest.
ROLE_ORDER = ("parameter", "buffer", "optimizer state", "gradient", "input", "residual", "output", "temporary", "workspace",
              "communication", HELD_OUTSIDE)
#: Colors that the color-blind can tell apart: those of Okabe and Ito, "Color universal design" (2008), three greys, and wine.
COLORS = dict(zip(ROLE_ORDER, (
    "#0072B2", "#BBBBBB", "#CC79A7", "#E69F00", "#777777", "#D55E00", "#56B4E9", "#F0E442", "#009E73", "#444444",
    "#882255"), strict=True))


def breakdown(records: Iterable[Record], key: Key) -> Iterator[dict[str, int]]:
    """Allocated bytes live after each record, by ``key``: one dict, changed in place, in which keys stay at 0."""
    sums: dict[str, int] = {}
    books = folds.Books()

    def add(serial: int, sign: int) -> None:
        block = books.blocks.get(serial)
        if block is not None:
            name = key(block.tag, folds.role_of(block.tag, serial in books.kept))
            sums[name] = sums.get(name, 0) + sign * block.allocated

    for r in records:
        if isinstance(r, (Alloc, Free, Retag, Keep, Drop)):
            add(r.serial, -1)
            books.enter(r)
            add(r.serial, 1)
        yield sums


@dataclass(frozen=True)
class Column:
    """A range of records, represented by the one after which most bytes were live, whose ``sums`` these are."""

    position: int
    allocated: int
    sums: dict[str, int]
    #: Is the record the one after which the step's peak was reached?
    peak: bool = False


def columns(records: Sequence[Record], by: str, count: int) -> list[Column]:
    """At most ``count`` columns over the step, from its mark ``begin step`` on, each with the peak of its range.

    Raises ValueError for another grouping than those of :data:`BY`.
    """
    if by not in BY:
        raise ValueError(f"owners are grouped by {', '.join(BY)}, but got {by!r}")
    start = folds.start_of_step(records)
    live = list(folds.timeline(records))
    peak = folds.peak_of_step(records, live).position
    length = len(live) - start
    count = min(count, length)
    edges = [start + length * i // count for i in range(count + 1)] if count else []
    highest = [max(range(a, b), key=lambda p: (live[p].allocated, p == peak, -p)) for a, b in pairwise(edges)]
    found: list[Column] = []
    for position, sums in enumerate(breakdown(records, BY[by])):
        if len(found) < count and position == highest[len(found)]:
            there = {name: n for name, n in sums.items() if n}
            found.append(Column(position, live[position].allocated, there, position == peak))
    return found


def stacking(shown: Sequence[Column], by: str) -> list[str]:
    """Names from the bottom of the stack to its top: roles in their fixed order, others in order of appearance."""
    names = list(dict.fromkeys(name for c in shown for name in c.sums))
    return sorted(names, key=ROLE_ORDER.index) if by == "role" and set(names) <= set(ROLE_ORDER) else names


def phases(records: Sequence[Record]) -> Iterator[tuple[str, int]]:
    """The name of each phase of a step, and the position of the record with which it begins."""
    for position, record in enumerate(records):
        if isinstance(record, Mark) and record.what == "begin":
            label = "forward" if record.label == "step" else record.label
            if label in ("forward", "backward", "optimizer"):
                yield label, position
