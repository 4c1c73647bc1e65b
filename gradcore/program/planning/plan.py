"""The planner: gives every buffer of a program an offset in one arena, from the buffers' lifetimes.

Several orders are tried and the smallest arena is kept. In order of time buffers are allocated and freed on the pool's own
free list, as in a run; in the other orders a buffer goes to the lowest gap among those already placed that live at the same
time (largest first: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, arXiv:2001.03288). If none
reaches the lower bound, buffers above it eject others.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from gradcore.memory.freelist import FreeList
from gradcore.program.planning.fusion import made_early, touched_together
from gradcore.program.planning.sharing import Lane, lanes, shared_places
from gradcore.program.program import Operand, Program
from gradcore.spec import round_up

_ENDLESS = 1 << 62
#: After so many placements in fixed orders no further order is tried; and the number of tries by ejection after that.
_PLACEMENTS, _TRIES = 15_000, 13


class Slot(NamedTuple):
    """A block to place: ``size`` bytes, rounded, alive from instruction ``first`` to ``last``, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """Offsets (bytes) of a program's made buffers, by index, in an arena of ``nbytes``; other buffers have no offset.

    ``bound`` is the most bytes alive at any instruction, a lower bound of the arena; ``order`` says how the plan was found.
    ``shared`` maps a buffer to the one whose place it takes at the instruction that makes it and reads the other last: only the
    new one counts as alive there. ``apart`` is what the bound would be if both did. ``lanes`` are of operands of a ``cat`` that
    are made in its result, which takes their places in the same way.
    """

    offsets: dict[int, int]
    nbytes: int
    bound: int
    order: str
    shared: dict[int, int]
    apart: int
    lanes: dict[int, Lane] = field(default_factory=dict)

    @cached_property
    def wholes(self) -> frozenset[int]:
        """The buffers that other buffers are made in: nothing is left for the instruction that makes one of them."""
        return frozenset(lane.whole for lane in self.lanes.values())

    def overwritten(self) -> dict[int, list[int]]:
        """Maps each buffer that takes places of others to these."""
        found: dict[int, list[int]] = {b: [place] for b, place in self.shared.items()}
        for b, lane in self.lanes.items():
            found.setdefault(lane.whole, []).append(b)
        return found

    def seen(self, x: Operand) -> Operand:
        """The operand as a view of the buffer whose bytes it shows."""
        lane = self.lanes.get(x.buffer)
        return x if lane is None else lane.operand(x)


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


def plan(program: Program, renewed: Container[int] = ()) -> Plan:
    """The plan of a program, with results in the place of operands where possible, unless that makes the arena larger.

    Places of ``renewed`` buffers are free for no other from the beginning on: what the last run left there is read first.
    """
    shared = {b: over for b, over in shared_places(program).items() if b not in renewed}
    beside = lanes(program, renewed)
    found = planned(program, shared, renewed)
    if beside:
        inside = planned(program, {b: over for b, over in shared.items() if b not in beside}, renewed, beside)
        found = min(inside, found, key=lambda p: p.nbytes)
    if found.nbytes > found.apart:
        # Buffers that share a place must be placed together, which can need a larger arena.
        found = min(found, planned(program, {}, renewed), key=lambda p: p.nbytes)
    held = touched_together(program)
    if held:
        # A group whose results lie where it still reads would not be fused. The kernels of some read an operand to the end.
        early, sooner, tried = [*made_early(program)], dict[int, int](), list[Plan]()
        for ends in ((held, sooner), (held,), (sooner,)):
            fewer = _without_early(program, found, renewed, early, ends)
            tried.append(planned(program, fewer, renewed, found.lanes, ends[0], found.nbytes))
            if tried[-1].nbytes <= found.nbytes:
                return tried[-1]
        # No more is alive at once than in the other, but gaps between buffers differ.
        longer = min(tried, key=lambda p: p.nbytes)
        if longer.nbytes <= found.nbytes + found.nbytes // 200:
            return longer
    return found


def planned(program: Program, shared: dict[int, int], renewed: Container[int] = (), beside: dict[int, Lane] | None = None,
            held: dict[int, int] | None = None, limit: int = 0) -> Plan:
    """The plan of a program for given sharing: ``shared`` maps a buffer to the one whose place it takes. Places of buffers in
    ``held``, which may die before, go to no other until the given instruction, as far as ``limit`` bytes have room for that."""
    beside = beside or {}
    own = _own(program, renewed)
    homes, slots = _places(own, shared, beside)
    #: Where each lane begins in its whole: the log shows them one after the other.
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for index, lane in beside.items():
        starts[index] = ends.get(lane.whole, 0)
        ends[lane.whole] = starts[index] + program.buffers[index].nbytes
    bound = lower_bound([*slots.values()])
    if held:
        room = _Room([*slots.values()], len(program.instructions), limit)
        for b, home in homes.items():
            slot, until = slots[home], held.get(b, 0)
            if room.takes(slot.size, slot.last + 1, until):
                slots[home] = slot._replace(last=until)
    offsets, nbytes, order = lay_out([*slots.values()])
    at = dict(zip(slots, offsets, strict=True))
    return Plan({b: at[home] + starts.get(b, 0) for b, home in homes.items()}, nbytes, bound, order, dict(shared),
                lower_bound([*own.values()]), beside)


def _own(program: Program, renewed: Container[int]) -> dict[int, Slot]:
    """What each made buffer takes if it lies in no other's place."""
    return {b.index: Slot(round_up(b.nbytes), 0 if b.index in renewed else b.first, b.last) for b in program.made()}


def _places(own: dict[int, Slot], shared: dict[int, int], lanes: dict[int, Lane]) -> tuple[dict[int, int], dict[int, Slot]]:
    """By buffer the one in whose place it lies, itself or another; and what each such place takes."""
    homes: dict[int, int] = {}
    slots: dict[int, Slot] = {}
    for index, slot in own.items():
        home = index
        while home in shared or home in lanes:
            home = lanes[home].whole if home in lanes else shared[home]
        homes[index] = home
        there = slots.get(home, slot)
        slots[home] = Slot(max(there.size, slot.size), min(there.first, slot.first), max(there.last, slot.last))
    return homes, slots


class _Room:
    """The bytes that may be alive at each instruction beside those of ``slots``, below a limit."""

    def __init__(self, slots: Sequence[Slot], instructions: int, limit: int) -> None:
        self._left = limit - alive(slots, instructions)

    def takes(self, size: int, first: int, last: int) -> bool:
        """Are so many bytes left at each instruction from ``first`` to ``last``? Then they are taken."""
        during = self._left[first:last + 1]
        if not during.size or during.min() < size:
            return False
        during -= size
        return True


def _without_early(program: Program, found: Plan, renewed: Container[int], early: Sequence[int],
                   ends: Sequence[dict[int, int]]) -> dict[int, int]:
    """Which buffers share places in a plan, less those of the ``early`` ones that have room below the peak to lie apart: until
    the operand whose place they take is read last, or until one of the given ends, whichever is tried first and has it."""
    _, slots = _places(_own(program, renewed), found.shared, found.lanes)
    requested = [slot._replace(size=program.buffers[home].nbytes) for home, slot in slots.items()]
    rooms = [_Room(of, len(program.instructions), lower_bound(of)) for of in ([*slots.values()], requested)]

    def lies_apart(b: int, end: dict[int, int]) -> bool:
        over = program.buffers[found.shared[b]]
        span = program.buffers[b].first, max(over.last, end.get(over.index, 0))
        return all(room.takes(size, *span) for room, size in zip(rooms, (round_up(over.nbytes), over.nbytes), strict=True))

    apart = {b for b in early if b in found.shared and any(lies_apart(b, end) for end in ends)}
    return {b: over for b, over in found.shared.items() if b not in apart}
