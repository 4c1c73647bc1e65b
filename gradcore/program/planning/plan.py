"""The planner: gives every buffer of a program an offset in one arena, from the buffers' lifetimes.

Results take the places of operands, and operands of a ``cat`` are made in its result, unless that makes the arena larger, or
keeps neighboring instructions from being fused.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from gradcore.program.planning.fusion import made_early, touched_together
from gradcore.program.planning.packing import Slot, alive, lay_out, lower_bound
from gradcore.program.planning.sharing import Lane, lanes, shared_places
from gradcore.program.program import Operand, Program
from gradcore.spec import round_up
from gradcore.units import count_of


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

    def __repr__(self) -> str:
        return f"<plan of {count_of(len(self.offsets), 'buffer')}: arena {self.nbytes:,} bytes, lower bound {self.bound:,}>"

    @cached_property
    def wholes(self) -> frozenset[int]:
        """The buffers that other buffers are made in: nothing is left for the instruction that makes one of them."""
        return frozenset(lane.whole for lane in self.lanes.values())

    @cached_property
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

    def most_live(self, program: Program, start: int, stop: int, dropped: Mapping[int, int]) -> tuple[int, int]:
        """The most requested and the most allocated bytes of live made buffers at any instruction from ``start`` to ``stop``.

        What a buffer overwrites is no longer live at the instruction that makes it. Buffers of before the run that it drops
        count until the instruction that ``dropped`` names.
        """
        taken = {*chain(*self.overwritten.values())}
        # In a part of a longer program some buffers were made before it, and some are made behind it.
        lives = [(b.nbytes, max(b.first, 0), b.last - (b.index in taken)) for b in program.made()
                 if b.first < stop and b.last >= 0]
        lives += [(program.buffers[buffer].nbytes, 0, at - 1) for buffer, at in dropped.items()]
        requested, allocated = (alive([Slot(size(nbytes), first, last) for nbytes, first, last in lives], stop)[start:stop]
                                for size in (int, round_up))
        return int(requested.max(initial=0)), int(allocated.max(initial=0))


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
