"""Live bytes over a step by owner: what the plots draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradcore import folds
from gradcore.events import Alloc, Drop, Free, Keep, Record, Retag
from gradcore.folds import Holder

#: Roles from the bottom of a stack to its top: what lives longest lies lowest.
ROLE_ORDER = ("parameter", "buffer", "optimizer state", "gradient", "input", "residual", "output", "temporary", "workspace",
              "communication")
#: Colours that the colour-blind can tell apart: those of Okabe and Ito, "Color universal design" (2008), and three greys.
COLOURS = dict(zip(ROLE_ORDER, (
    "#0072B2", "#BBBBBB", "#CC79A7", "#E69F00", "#777777", "#D55E00", "#56B4E9", "#F0E442", "#009E73", "#444444"), strict=True))

#: The ways to group owners, by the name that users give.
BY: dict[str, Callable[[Holder], str]] = {
    "role": lambda h: h.role, "layer": lambda h: h.tag.layer, "op": lambda h: h.tag.op}


def grouping(by: str) -> Callable[[Holder], str]:
    """The key of :data:`BY`. Raises ValueError for another name."""
    if by not in BY:
        raise ValueError(f"owners are grouped by {', '.join(BY)}, but got {by!r}")
    return BY[by]


def breakdown(records: Iterable[Record], key: Callable[[Holder], str]) -> Iterator[dict[str, int]]:
    """Allocated bytes live after each record, by ``key``: one dict, changed in place. Keys whose bytes are gone stay, at 0."""
    sums: dict[str, int] = {}
    holders: dict[int, Holder] = {}

    def put(serial: int, new: Holder | None) -> None:
        old = holders.pop(serial, None)
        if old is not None:
            sums[key(old)] -= old.allocated
        if new is not None:
            holders[serial] = new
            sums[key(new)] = sums.get(key(new), 0) + new.allocated

    for r in records:
        if isinstance(r, Alloc):
            put(r.serial, Holder(r.serial, r.requested, r.allocated, r.tag, r.node))
        elif isinstance(r, Free):
            put(r.serial, None)
        elif isinstance(r, Retag):
            put(r.serial, replace(holders[r.serial], tag=r.tag))
        elif isinstance(r, Keep):
            held = holders[r.serial]
            put(r.serial, replace(held, kept_by=(*held.kept_by, (r.node, r.name))))
        elif isinstance(r, Drop) and r.serial in holders:
            held = holders[r.serial]
            put(r.serial, replace(held, kept_by=folds.without(held.kept_by, r.node)))
        yield sums


@dataclass(frozen=True)
class Column:
    """A stretch of records, shown by the one of them after which most bytes were live: ``sums`` are of that one."""

    position: int
    allocated: int
    sums: dict[str, int]


def columns(records: Sequence[Record], by: str, count: int) -> list[Column]:
    """At most ``count`` columns over the step, from its mark ``begin step`` on, so that each contains its stretch's peak."""
    key = grouping(by)
    start = folds.position_of(records, "begin", "step") or 0
    live = [x.allocated for x in folds.timeline(records)]
    length = len(live) - start
    count = min(count, length)
    edges = [start + length * i // count for i in range(count + 1)] if count else []
    highest = [max(range(a, b), key=lambda p: (live[p], -p)) for a, b in zip(edges, edges[1:], strict=False)]
    found: list[Column] = []
    for position, sums in enumerate(breakdown(records, key)):
        if len(found) < count and position == highest[len(found)]:
            found.append(Column(position, live[position], {name: n for name, n in sums.items() if n}))
    return found


def stacking(shown: Sequence[Column], by: str) -> list[str]:
    """Names from the bottom of the stack to its top: roles in their order, others as they came."""
    names = list(dict.fromkeys(name for c in shown for name in c.sums))
    return sorted(names, key=ROLE_ORDER.index) if by == "role" and set(names) <= set(ROLE_ORDER) else names
