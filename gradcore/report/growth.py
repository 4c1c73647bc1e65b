"""Memory that grows from step to step: how much, what accumulates, and what connects the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain

from gradcore import folds
from gradcore.events import HELD_OUTSIDE, PROGRAM, Alloc, Keep, Launch, Record, Site, Tag, View
from gradcore.grouping import Who, alike

#: Roles of results of ops, which should not accumulate. Parameters, optimizer state and inputs may live on from before a step.
MADE = frozenset(("output", "temporary", "residual", HELD_OUTSIDE))
#: The most lines whose holders are named.
NAMED = 4


@dataclass(frozen=True)
class Grown:
    """Live buffers that one line allocated, in this step or before. ``allocated`` is in bytes.

    ``held_by`` is that of :func:`held_by`; ``keeper`` is the op and line whose gradient keeps the newest of them, or what a
    node without an op calls them, such as ``an argument of checkpoint``; "" if unknown.
    ``holder`` is what holds the oldest of them: names in the program as they were when the report was made; "" if unknown.
    ``retained`` says that backward has run the keeper with ``retain_graph``, which it keeps them for.
    """

    op: str
    layer: str
    line: str
    count: int
    allocated: int
    held_by: str
    keeper: str
    holder: str = ""
    retained: bool = False


@dataclass(frozen=True)
class Carried:
    """A tensor of an earlier step that this step's graph continues from: the op and line that made it, and that read it."""

    op: str
    line: str
    reader: str
    reader_line: str


#: Of tensors, each with the nodes that may link the last step to it: those of which one is alive, and continues from a node of
#: before the step. Others were detached.
Linked = Callable[[Mapping[Carried, Iterable[int]]], AbstractSet[Carried]]


@dataclass(frozen=True)
class Growth:
    """At the end of each of the last ``steps`` steps more bytes were live than before, typically by ``requested`` bytes: the
    median of the last sixty gains, so that what was made once and lives on does not count as growth of every step.

    Each step is compared with the one before it, or, if up to :data:`~gradcore.report.trend.TURNS` kinds of steps alternate,
    with the last of its kind. If only some of the steps added to the live bytes, typically one in ``every``, and no two in a
    row ended with fewer than before, then ``requested`` is what such a step added. If ends go up and down, it is by how much
    the lowest of ``every`` steps has risen.

    If the graph has grown and no bytes, ``requested`` is 0, and ``nodes`` is how many of each step are typically alive.
    """

    steps: int
    requested: int
    #: What has gained most first.
    grown: tuple[Grown, ...] = ()
    carried: tuple[Carried, ...] = ()
    every: int = 1
    nodes: int = 0

    def __str__(self) -> str:
        """What the text of a report says of it."""
        from gradcore.report.text import has_grown, why_grown

        return "\n".join((has_grown(self) + (":" if self.grown or self.carried else "."), *why_grown(self)))


def of_the_graph(records: Sequence[Record], start: int, ask: Callable[[], Growth | None], who: Who | None,
                 linked: Linked | None = None) -> Growth | None:
    """Growth of the graph without bytes, with its causes as in :func:`explained`.

    ``ask`` is called if an op of the step reads a result of an earlier one, as it takes time.
    """
    reads = _reads_of_before(records, start)
    growth = ask() if any(read for _, read in reads) else None
    if growth is None:
        return None
    carried, led = _linking(reads, linked), set[int]()
    for run, read in reads:
        if not (led.isdisjoint(run.inputs) and read.keys().isdisjoint(carried)):
            led.update(run.outputs or run.inputs[:1])
    found = [(h.serial, Grown(h.tag.op, h.tag.layer, h.tag.site.full, 1, h.allocated, held_by(h), ""))
             for h in folds.live_at(records, len(records) - 1) if h.serial in led]
    return replace(growth, carried=carried, grown=_named(found, who))


def explained(growth: Growth, records: Sequence[Record], start: int, gained: Mapping[int, int] | None = None,
              who: Who | None = None, linked: Linked | None = None) -> Growth:
    """The growth with its causes, from the log of the last step, which begins at position ``start``.

    ``who`` tells by serial what in the program holds buffers, and is asked for those of the lines that gained most. Without
    ``linked`` every result that is read again is taken for one that was not detached.
    ``gained`` has what lines have gained, by serial of their buffers: :func:`~gradcore.report.ends.gained`. Without it, lines
    with more than one live buffer are taken for those.
    """
    grown = _grown(records, start, gained, who)
    # A state that goes from step to step without its graph is no cause.
    kept = any(g.held_by == "graph" for g in grown)
    return replace(growth, grown=grown, carried=_linking(_reads_of_before(records, start), linked) if kept else ())


def held_by(holder: folds.Holder) -> str:
    """``graph``: a node keeps it; ``outside``: only an array of another library holds it; ``program``: a compiled function's
    program owns it; else ``you``."""
    return ("graph" if holder.kept_by else "outside" if holder.role == HELD_OUTSIDE else
            "program" if holder.tag.op == PROGRAM else "you")


def kind_of(role: str) -> str:
    """What tells the buffers of a line apart: "" for results, else the role."""
    return "" if role in MADE else role


def _grown(records: Sequence[Record], start: int, gained: Mapping[int, int] | None,
           who: Who | None) -> tuple[Grown, ...]:
    runs: dict[int, Tag] = {}
    for r in records:
        # Launches of a compiled function have no node, though what they allocate has.
        if isinstance(r, (Launch, Alloc)) and r.node:
            # The first is the op's own: later ones are its gradient's, in a backward that retains the graph.
            runs.setdefault(r.node, r.tag)
    new = {r.serial for r in records[start:] if isinstance(r, Alloc)}
    alive: dict[tuple[str, str, Site, str, str], list[folds.Holder]] = {}
    for holder in folds.live_at(records, len(records) - 1):
        tag = holder.tag
        alive.setdefault((tag.op, tag.layer, tag.site, held_by(holder), kind_of(holder.role)), []).append(holder)
    found, run = [], folds.run_backward(records)
    for (op, layer, _, held, _), holders in alive.items():
        if gained is None:
            # Other roles count where the step has added to what a line had allocated before.
            added = len({h.serial in new for h in holders}) == 2
            gain = int(len(holders) > 1 and (added or all(h.role in MADE for h in holders)))
        else:
            gain = max(gained.get(h.serial, 0) for h in holders)
        if gain:
            keepers = [kept for h in reversed(holders) for kept in h.kept_by if kept[0]]
            ops = (f"{runs[n].op}, {runs[n].site.full}" for n, _ in keepers if n in runs)
            found.append((gain, min(h.serial for h in holders), Grown(
                op, layer, holders[0].tag.site.full, len(holders), sum(h.allocated for h in holders), held,
                next(chain(ops, (name for _, name in keepers)), ""), retained=any(n in run for n, _ in keepers))))
    found.sort(key=lambda row: (-row[0], -row[2].allocated))
    rows = alike([(g.layer, (gain, replace(g, layer=""))) for gain, _, g in found], NAMED)
    rows.sort(key=lambda row: -row[1][0] * len(row[2]))
    return _named([(min(found[place][1] for place in places),
                    replace(g, layer=layer, count=g.count * len(places), allocated=g.allocated * len(places)))
                   for layer, (_, g), places in rows], who)


def _named(found: Sequence[tuple[int, Grown]], who: Who | None) -> tuple[Grown, ...]:
    """With what holds the buffers of these serials, of the first few."""
    names = {} if who is None else who([serial for serial, g in found[:NAMED] if g.held_by != "outside"])
    return tuple(replace(g, holder=names.get(serial, "")) for serial, g in found)


#: An op with what it reads of before its step, and the nodes by which it may continue from that.
_Read = tuple[Launch, dict[Carried, list[int]]]


def _reads_of_before(records: Sequence[Record], start: int) -> list[_Read]:
    """The ops of the step's graph with what they read that a line made before which runs again in the step."""
    before = {r.serial: r.tag for r in records[:start] if isinstance(r, Alloc)}
    made: dict[int, int] = {}
    views: dict[int, list[int]] = {}
    keepers: dict[int, list[int]] = {}
    runs: list[Launch] = []
    for r in records[start:]:
        if isinstance(r, Alloc):
            made[r.serial] = r.node
        elif isinstance(r, Keep):
            keepers.setdefault(r.serial, []).append(r.node)
        elif isinstance(r, View) and r.node and r.tag.phase == "forward":
            views.setdefault(r.serial, []).append(r.node)
        # In a compiled function, whose one node is known by what it keeps, only results have nodes: those of the traced run.
        elif isinstance(r, Launch) and r.tag.phase == "forward" and (r.node or any(made.get(o) for o in r.outputs)):
            runs.append(r)
    again = {(r.tag.op, r.tag.site) for r in runs}
    found: list[_Read] = []
    for run in runs:
        read: dict[Carried, list[int]] = {}
        for serial in run.inputs:
            tag = before.get(serial)
            # An op without outputs writes in place.
            if tag is not None and tag.role in (*MADE, "buffer") and ((tag.op, tag.site) in again or not run.outputs):
                read[Carried(tag.op, tag.site.full, run.tag.op, run.tag.site.full)] = (
                    [run.node, *views.get(serial, ())] if run.node else keepers.get(serial, []))
        found.append((run, read))
    return found


def _linking(reads: Sequence[_Read], linked: Linked | None) -> tuple[Carried, ...]:
    """What is read of before, and links the step to an earlier one as far as ``linked`` tells."""
    nodes: dict[Carried, list[int]] = {}
    for _, read in reads:
        for carried, numbers in read.items():
            nodes.setdefault(carried, []).extend(numbers)
    found = nodes.keys() if linked is None or not nodes else linked(nodes)
    return tuple(carried for carried in nodes if carried in found)
