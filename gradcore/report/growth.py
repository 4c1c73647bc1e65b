"""Memory that grows from step to step: how much, what accumulates, and what connects the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradcore import folds
from gradcore.events import HELD_OUTSIDE, Alloc, Export, Launch, Record, Site, Tag

#: Roles of what an op made and a graph, a user or an array holds; parameters, state and inputs live on by right.
MADE = frozenset(("output", "temporary", "residual", HELD_OUTSIDE))
#: The most kinds of steps that are seen to take turns.
TURNS = 4


@dataclass(frozen=True)
class Grown:
    """Buffers that one line made, in this step and before, and that are all alive. Bytes.

    ``held_by`` is ``graph``, ``outside`` or ``you``; ``keeper`` is the op and line whose gradient keeps the newest of them.
    """

    op: str
    layer: str
    line: str
    count: int
    allocated: int
    held_by: str
    keeper: str


@dataclass(frozen=True)
class Carried:
    """A tensor of an earlier step that this step's graph goes on from: who made it, and who read it."""

    op: str
    line: str
    reader: str
    reader_line: str


@dataclass(frozen=True)
class Growth:
    """Live bytes at the end of each of the last ``steps`` steps were more than before: by ``requested`` a step, on average.

    Before is the step before, or where up to :data:`TURNS` kinds of steps take turns, the last of its kind.
    """

    steps: int
    requested: int
    #: The largest first.
    grown: tuple[Grown, ...] = ()
    carried: tuple[Carried, ...] = ()


def growth_of(ends: Sequence[int]) -> Growth | None:
    """Growth over the ends of steps, requested bytes each, the last one last: None for fewer than three steps of it.

    Where steps of several kinds take turns, as training and evaluation do, each is compared with the last of its kind: every
    kind must have grown three times, so that ends which merely go up and down are no growth.
    """
    for turns in range(1, TURNS + 1):
        steps = 0
        while steps + turns < len(ends) and ends[-1 - steps] > ends[-1 - turns - steps]:
            steps += 1
        # Whole rounds, so that the last step is compared with one of its kind.
        steps -= steps % turns
        if steps >= 3 * turns:
            return Growth(steps, (ends[-1] - ends[-1 - steps]) // steps)
    return None


def explained(growth: Growth, records: Sequence[Record], start: int) -> Growth:
    """With what piles up and what ties the steps together, from the log of the last of them, which begins at ``start``."""
    return replace(growth, grown=_grown(records), carried=_carried(records, start))


def line_of(tag: Tag | Export) -> str:
    """``file:line in function``, the path as the interpreter has it."""
    return f"{tag.site.file}:{tag.site.line} in {tag.site.function}"


def held_by(holder: folds.Holder) -> str:
    """``graph``: a node keeps it; ``outside``: only an array of another library holds it; else ``you``."""
    return "graph" if holder.kept_by else "outside" if holder.role == HELD_OUTSIDE else "you"


def _grown(records: Sequence[Record]) -> tuple[Grown, ...]:
    runs = {r.node: r for r in records if isinstance(r, Launch) and r.node}
    alive: dict[tuple[str, str, Site, str], list[folds.Holder]] = {}
    for holder in folds.live_at(records, len(records) - 1):
        if holder.role in MADE:
            tag = holder.tag
            alive.setdefault((tag.op, tag.layer, tag.site, held_by(holder)), []).append(holder)
    found = []
    for (op, layer, _, who), holders in alive.items():
        if len(holders) > 1:
            keeper = next((runs[n].tag for h in reversed(holders) for n, _ in h.kept_by if n in runs), None)
            found.append(Grown(op, layer, line_of(holders[0].tag), len(holders), sum(h.allocated for h in holders),
                               who, f"{keeper.op}, {line_of(keeper)}" if keeper else ""))
    return tuple(sorted(found, key=lambda g: -g.allocated))


def _carried(records: Sequence[Record], start: int) -> tuple[Carried, ...]:
    """What was there when the step began, was made by a line that runs again in it, and has joined the step's graph."""
    runs = [r for r in records[start:] if isinstance(r, Launch) and r.node and r.tag.phase == "forward"]
    again = {(r.tag.op, r.tag.site) for r in runs}
    before = {r.serial: r.tag for r in records[:start] if isinstance(r, Alloc)}
    found: dict[Carried, None] = {}
    for run in runs:
        for serial in run.inputs:
            tag = before.get(serial)
            # An op without an output writes in place.
            if tag is not None and tag.role in MADE and ((tag.op, tag.site) in again or not run.outputs):
                found[Carried(tag.op, line_of(tag), run.tag.op, line_of(run.tag))] = None
    return tuple(found)
