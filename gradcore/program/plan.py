"""Where every buffer of a program lies in one arena: lifetimes in, offsets out.

Several orders are tried and the best arena is kept. In order of time buffers come and go on the pool's own free list, as in a
run; otherwise a buffer goes to the lowest gap among those already placed that live at the same time, the largest first
(Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, arXiv:2001.03288).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradcore.memory.freelist import FreeList
from gradcore.program.program import Program
from gradcore.spec import round_up


@dataclass(frozen=True)
class Slot:
    """What has to be placed: rounded bytes, alive from instruction ``first`` to ``last``, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """Offsets of a program's made buffers, by index, in an arena of ``nbytes``; the others have no offset.

    ``bound`` is the most bytes alive at any instruction, which no arena can be smaller than; ``order`` says how it was found.
    ``shared`` names buffers that lie where another one ends its life in the very instruction that makes them.
    """

    offsets: dict[int, int]
    nbytes: int
    bound: int
    order: str
    shared: dict[int, int]


def lower_bound(slots: Sequence[Slot]) -> int:
    """The most bytes alive at one instruction."""
    if not slots:
        return 0
    change = np.zeros(max(s.last for s in slots) + 2, np.int64)
    np.add.at(change, [s.first for s in slots], [s.size for s in slots])
    np.subtract.at(change, [s.last + 1 for s in slots], [s.size for s in slots])
    return int(change.cumsum().max())


def in_time(slots: Sequence[Slot]) -> list[int]:
    """Offsets on the pool's free list, in order of time."""
    free = FreeList()
    top = 1 << 62
    free.add(0, top)
    offsets = [0] * len(slots)
    ending: dict[int, list[int]] = {}
    for k in sorted(range(len(slots)), key=lambda k: (slots[k].first, -slots[k].size)):
        for moment in sorted(m for m in ending if m < slots[k].first):
            for done in ending.pop(moment):
                free.add(offsets[done], slots[done].size)
        found = free.take(slots[k].size)
        assert found is not None
        offsets[k] = found
        ending.setdefault(slots[k].last, []).append(k)
    return offsets


def by_gaps(slots: Sequence[Slot], order: Sequence[int]) -> list[int]:
    """Offsets of slots placed in ``order``, each in the lowest gap that holds it between those alive with it."""
    offsets = np.zeros(len(slots), np.int64)
    firsts, lasts, starts, ends = (np.zeros(len(slots), np.int64) for _ in range(4))
    for placed, k in enumerate(order):
        slot = slots[k]
        together = (firsts[:placed] <= slot.last) & (lasts[:placed] >= slot.first)
        low, high = starts[:placed][together], ends[:placed][together]
        rank = np.argsort(low, kind="stable")
        # Where the gap before each begins: at the highest end of all that lie lower.
        reached = np.maximum.accumulate(np.concatenate(([0], high[rank])))
        room = np.concatenate((low[rank], [1 << 62])) - reached
        at = int(reached[np.argmax(room >= slot.size)])
        offsets[k] = starts[placed] = at
        firsts[placed], lasts[placed], ends[placed] = slot.first, slot.last, at + slot.size
    return [int(x) for x in offsets]


def lay_out(slots: Sequence[Slot]) -> tuple[list[int], int, str]:
    """The best offsets found, the bytes that they take, and the order that found them."""
    bound = lower_bound(slots)
    numbers = range(len(slots))
    orders = {
        "largest first": sorted(numbers, key=lambda k: (-slots[k].size, slots[k].first)),
        "longest first": sorted(numbers, key=lambda k: (slots[k].first - slots[k].last, -slots[k].size)),
        "largest area first": sorted(numbers, key=lambda k: -slots[k].size * (slots[k].last - slots[k].first + 1)),
        "latest first": sorted(numbers, key=lambda k: (-slots[k].last, slots[k].first)),
    }
    best: tuple[list[int], int, str] | None = None
    for name in ("in order of time", *orders):
        offsets = by_gaps(slots, orders[name]) if name in orders else in_time(slots)
        nbytes = max((o + s.size for o, s in zip(offsets, slots, strict=True)), default=0)
        if best is None or nbytes < best[1]:
            best = offsets, nbytes, name
        if nbytes == bound:
            break
    assert best is not None
    return best


def plan(program: Program, shared: dict[int, int] | None = None) -> Plan:
    """Place what a program makes. ``shared`` maps a buffer to the one whose bytes it takes over."""
    shared = {} if shared is None else shared
    homes: dict[int, int] = {}
    spans: dict[int, list[int]] = {}
    for b in program.made():
        home = b.index
        while home in shared:
            home = shared[home]
        homes[b.index] = home
        span = spans.setdefault(home, [0, b.first, b.last])
        span[0], span[1], span[2] = max(span[0], round_up(b.nbytes)), min(span[1], b.first), max(span[2], b.last)
    slots = [Slot(*span) for span in spans.values()]
    offsets, nbytes, order = lay_out(slots)
    at = dict(zip(spans, offsets, strict=True))
    return Plan({index: at[home] for index, home in homes.items()}, nbytes, lower_bound(slots), order, dict(shared))
