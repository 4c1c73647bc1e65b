"""Packing: gives blocks whose lifetimes are known offsets in one arena, as small a one as is found.

Several orders are tried and the smallest arena is kept. In order of time blocks are allocated and freed on the pool's own
free list, as in a run; in the other orders a block goes to the lowest gap among those already placed that live at the same
time (largest first: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, arXiv:2001.03288). If none
reaches the lower bound, blocks above it eject others.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from gradcore.memory.freelist import FreeList
from gradcore.spec import round_up

_ENDLESS = 1 << 62
#: After so many placements in fixed orders no further order is tried; and the number of tries by ejection after that.
_PLACEMENTS, _TRIES = 15_000, 13


class Slot(NamedTuple):
    """A block to place: ``size`` bytes, rounded, alive from instruction ``first`` to ``last``, both included."""

    size: int
    first: int
    last: int


def alive(slots: Sequence[Slot], instructions: int = 0) -> Any:
    """The bytes that are alive at each instruction."""
    change = np.zeros(max([instructions, *[s.last + 1 for s in slots]]) + 1, np.int64)
    np.add.at(change, [s.first for s in slots], [s.size for s in slots])
    np.subtract.at(change, [s.last + 1 for s in slots], [s.size for s in slots])
    return change.cumsum()


def lower_bound(slots: Sequence[Slot]) -> int:
    """The most bytes that are alive at any one instruction."""
    return int(alive(slots).max())


def in_time(slots: Sequence[Slot]) -> list[int]:
    """Offsets that the pool's free list gives, in order of time."""
    free = FreeList()
    free.add(0, _ENDLESS)
    offsets = [0] * len(slots)
    live: list[tuple[int, int]] = []
    for k in sorted(range(len(slots)), key=lambda k: (slots[k].first, -slots[k].size)):
        while live and live[0][0] < slots[k].first:
            done = heappop(live)[1]
            free.add(offsets[done], slots[done].size)
        found = free.take(slots[k].size)
        assert found is not None
        offsets[k] = found
        heappush(live, (slots[k].last, k))
    return offsets


def by_gaps(slots: Sequence[Slot], order: Sequence[int]) -> list[int]:
    """Offsets of slots placed in ``order``, each in the lowest gap that is large enough between those alive with it."""
    offsets = [0] * len(slots)
    # The placed slots, by address.
    table = np.zeros((4, len(slots)), np.int64)
    starts, ends, firsts, lasts = table
    for placed, k in enumerate(order):
        slot = slots[k]
        together = (firsts[:placed] <= slot.last) & (lasts[:placed] >= slot.first)
        low, high = starts[:placed][together], ends[:placed][together]
        # The gap before each begins at the highest end of all lower ones.
        reached = np.maximum.accumulate(np.concatenate(([0], high)))
        room = np.concatenate((low, [_ENDLESS])) - reached
        at = int(reached[np.argmax(room >= slot.size)])
        rank = int(starts[:placed].searchsorted(at))
        table[:, rank + 1:placed + 1] = table[:, rank:placed]
        table[:, rank] = at, at + slot.size, slot.first, slot.last
        offsets[k] = at
    return offsets


def by_ejection(slots: Sequence[Slot], offsets: Sequence[int], height: int, steps: int) -> list[int] | None:
    """Improve ``offsets`` until all slots lie below ``height``; None if that takes more than so many ``steps``.

    A slot that reaches above goes where the cheapest others have to move, and these look for a place in turn. The price of
    moving a slot grows with each placement, so that no two displace each other for ever (ejection chains: Glover, Discrete
    Applied Mathematics 65, 1996).
    """
    sizes, firsts, lasts = np.array([(s.size, s.first, s.last) for s in slots], np.int64).T.copy()
    starts = np.array(offsets, np.int64)
    ends = starts + sizes
    placed = ends <= height
    prices = sizes.copy()
    waiting = [(-slots[k].size, k) for k in np.flatnonzero(~placed).tolist()]
    heapify(waiting)
    for _ in range(steps):
        if not waiting:
            found: list[int] = starts.tolist()
            return found
        k = heappop(waiting)[1]
        slot = slots[k]
        others = np.flatnonzero(placed & (firsts <= slot.last) & (lasts >= slot.first))
        low, high, price = starts[others], ends[others], prices[others]
        by_low, by_high = low.argsort(), high.argsort()
        lows, highs = low[by_low], high[by_high]
        seats = np.concatenate(([0], highs[:highs.searchsorted(height - slot.size)], [height - slot.size]))
        # The slots in the way of a seat: those that begin below its end, less those that end below its start.
        begun, over = (np.concatenate(([0], price[rank].cumsum())) for rank in (by_low, by_high))
        seat = seats[(begun[lows.searchsorted(seats + slot.size)] - over[highs.searchsorted(seats, "right")]).argmin()]
        for j in others[(low < seat + slot.size) & (high > seat)].tolist():
            placed[j] = False
            heappush(waiting, (-slots[j].size, j))
        starts[k], ends[k], placed[k] = seat, seat + slot.size, True
        prices[k] += slot.size
    return None


def lay_out(slots: Sequence[Slot]) -> tuple[list[int], int, str]:
    """The best offsets found, the size of their arena in bytes, and the order that found them."""
    bound = lower_bound(slots)
    numbers = range(len(slots))
    orders = {
        "in order of time": None,
        "largest first": lambda k: (-slots[k].size, slots[k].first),
        "longest first": lambda k: (slots[k].first - slots[k].last, -slots[k].size),
        "largest area first": lambda k: -slots[k].size * (slots[k].last - slots[k].first + 1),
        "latest first": lambda k: (-slots[k].last, slots[k].first),
    }
    found: list[tuple[int, str, list[int]]] = []
    for name, key in orders.items():
        offsets = in_time(slots) if key is None else by_gaps(slots, sorted(numbers, key=key))
        found.append((_top(slots, offsets), name, offsets))
        if found[-1][0] == bound or len(found) * len(slots) > _PLACEMENTS:
            break
    found.sort(key=lambda x: x[0])
    best, failed, goal, tries = found[0], bound, bound, 0
    # A step looks at every buffer: fewer steps for many buffers.
    steps = min(8_000, 2_500_000 // max(len(slots), 1)) // _TRIES
    while tries < _TRIES and best[0] > bound and (goal == bound or best[0] - failed > max(bound // 500, 512)):
        for _, name, offsets in found:
            tries += 1
            better = by_ejection(slots, offsets, goal, steps)
            if better is not None:
                best = _top(slots, better), f"{name}, then by ejection", better
                break
        else:
            failed = goal
        goal = round_up((failed + best[0]) // 2)
    return best[2], best[0], best[1]


def _top(slots: Sequence[Slot], offsets: Sequence[int]) -> int:
    return max((o + s.size for o, s in zip(offsets, slots, strict=True)), default=0)
