"""Pure functions over a log: live bytes, the peak and its holders, and what was kept for backward and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeVar

from gradcore.events import BORROW, Alloc, Drop, Free, Keep, Launch, Mark, Record, Reserve, Retag, Tag, Unreserve

K = TypeVar("K")

#: Roles that become "residual" while a node keeps the buffer; a kept parameter stays a parameter, a kept input an input.
_KEEPABLE = frozenset(("output", "temporary"))


class Live(NamedTuple):
    """Bytes live after a record."""

    requested: int = 0
    allocated: int = 0
    reserved: int = 0


class Peak(NamedTuple):
    """The largest of each figure, in bytes; ``position`` is the record after which ``allocated`` was first reached."""

    position: int
    requested: int
    allocated: int
    reserved: int


class Holder(NamedTuple):
    """One live buffer; sizes in bytes. ``kept_by`` lists the nodes that keep it for backward, as (node, name in its rules)."""

    serial: int
    requested: int
    allocated: int
    tag: Tag
    node: int
    kept_by: tuple[tuple[int, str], ...] = ()

    @property
    def role(self) -> str:
        return role_of(self.tag, bool(self.kept_by))


def role_of(tag: Tag, kept: bool) -> str:
    """The role of a buffer with this tag; ``kept`` says whether some node keeps it for backward."""
    return "residual" if kept and tag.role in _KEEPABLE else tag.role


class Residual(NamedTuple):
    """A buffer that a node kept, with the positions in the log where it was kept, dropped and freed (None: not yet)."""

    serial: int
    node: int
    name: str
    allocated: int
    requested: int
    tag: Tag
    kept_at: int
    dropped_at: int | None = None
    freed_at: int | None = None
    reason: str | None = None


def timeline(records: Iterable[Record]) -> Iterator[Live]:
    """The live figures after each record."""
    sizes: dict[int, tuple[int, int]] = {}
    live = Live()
    for record in records:
        requested, allocated, reserved = live
        if isinstance(record, Alloc):
            sizes[record.serial] = record.requested, record.allocated
            live = Live(requested + record.requested, allocated + record.allocated, reserved)
        elif isinstance(record, Free):
            r, a = sizes.pop(record.serial)
            live = Live(requested - r, allocated - a, reserved)
        elif isinstance(record, Reserve):
            live = Live(requested, allocated, reserved + record.nbytes)
        elif isinstance(record, Unreserve):
            live = Live(requested, allocated, reserved - record.nbytes)
        yield live


def peak(records: Sequence[Record], start: int = 0) -> Peak:
    """The largest figures at and after position ``start``."""
    return _highest(list(timeline(records)), start)


def _highest(live: Sequence[Live], start: int) -> Peak:
    there = live[start:]
    most = Live(*(max(map(itemgetter(figure), there), default=0) for figure in range(3)))
    return Peak(next((i for i, x in enumerate(there, start) if x.allocated == most.allocated), start), *most)


def peak_of_step(records: Sequence[Record], live: Sequence[Live]) -> Peak:
    """A step's peak, from its mark ``begin step`` on; ``live`` is the :func:`timeline` of the records.

    If as much was live at its beginning already, the peak is where an allocation reached it again, if any did.
    """
    start = start_of_step(records)
    highest = _highest(live, start)
    if records and highest.position == start and not isinstance(records[start], Alloc):
        reached = (i for i, (x, r) in enumerate(zip(live, records, strict=True))
                   if i > start and x.allocated == highest.allocated and isinstance(r, Alloc) and r.allocated)
        highest = highest._replace(position=next(reached, start))
    return highest


def at_peak(records: Sequence[Record]) -> tuple[Peak, list[Holder]]:
    """The peak of a step as :func:`peak_of_step` finds it, and the buffers that are live there, the largest first."""
    highest = peak_of_step(records, list(timeline(records)))
    return highest, largest_first(live_at(records, highest.position))


def largest_first(holders: Iterable[Holder]) -> list[Holder]:
    """By size, and those of one size in order of allocation."""
    return sorted(holders, key=lambda h: (-h.allocated, h.serial))


def live_at(records: Sequence[Record], position: int) -> list[Holder]:
    """The buffers that are live after the record at ``position``, in order of allocation."""
    return next(books_at(records, [position])).holders()


def books_at(records: Sequence[Record], positions: Iterable[int]) -> Iterator[Books]:
    """The books after the record at each of the positions, in ascending order: one object, which is taken on."""
    books, done = Books(), 0
    for position in positions:
        for record in records[done:position + 1]:
            books.enter(record)
        done = max(done, position + 1)
        yield books


class Books:
    """What is live, by serial, with its present tag, and what keeps it, after the records that were entered."""

    def __init__(self) -> None:
        self.blocks: dict[int, Alloc] = {}
        #: By buffer and node the names: thousands of nodes may keep one, as a weight of a recurrent network.
        self.kept: dict[int, dict[int, list[str]]] = {}

    def enter(self, record: Record) -> None:
        if isinstance(record, Alloc):
            self.blocks[record.serial] = record
        elif isinstance(record, Free):
            del self.blocks[record.serial]
            self.kept.pop(record.serial, None)
        elif isinstance(record, Retag):
            self.blocks[record.serial] = self.blocks[record.serial]._replace(tag=record.tag)
        elif isinstance(record, Keep):
            self.kept.setdefault(record.serial, {}).setdefault(record.node, []).append(record.name)
        elif isinstance(record, Drop) and record.serial in self.kept:
            keepers = self.kept[record.serial]
            # Node 0 is any keeper of before the log, and so is taken only if the node itself keeps nothing here.
            node = record.node if record.node in keepers else 0
            if node in keepers:
                del keepers[node][0]
                if not keepers[node]:
                    del keepers[node]
            if not keepers:
                del self.kept[record.serial]

    def holders(self) -> list[Holder]:
        """What is live, in order of allocation."""
        return [Holder(serial, block.requested, block.allocated, block.tag, block.node,
                       tuple((node, name) for node, names in self.kept.get(serial, {}).items() for name in names))
                for serial, block in self.blocks.items()]

    def residuals(self) -> dict[int, int]:
        """By serial, the bytes of the buffers whose role is "residual"."""
        kept = {serial: self.blocks[serial] for serial in self.kept}
        return {serial: block.allocated for serial, block in kept.items() if role_of(block.tag, True) == "residual"}


def outside(holders: Iterable[Holder]) -> int:
    """Bytes of other libraries' memory among these holders; no other sum counts them."""
    return sum(h.tag.spec.nbytes for h in holders if h.tag.op == BORROW and not h.requested and h.tag.spec is not None)


def total(holders: Iterable[Holder], key: Callable[[Holder], str]) -> dict[str, int]:
    """Allocated bytes by ``key``, largest first."""
    return dict(sorted(summed((key(h), h.allocated) for h in holders).items(), key=lambda item: (-item[1], item[0])))


def summed(sizes: Iterable[tuple[K, int]]) -> dict[K, int]:
    """The sum of the bytes with each key; keys are in order of appearance."""
    sums: dict[K, int] = {}
    for key, nbytes in sizes:
        sums[key] = sums.get(key, 0) + nbytes
    return sums


def residuals(records: Sequence[Record]) -> list[Residual]:
    """Every buffer that a node kept, in order of keeping."""
    blocks: dict[int, Alloc] = {}
    found: list[Residual] = []
    open_: dict[tuple[int, int], list[int]] = {}
    of_block: dict[int, list[int]] = {}
    for position, record in enumerate(records):
        if isinstance(record, Alloc):
            blocks[record.serial] = record
        elif isinstance(record, Retag):
            blocks[record.serial] = blocks[record.serial]._replace(tag=record.tag)
        elif isinstance(record, Keep):
            block = blocks[record.serial]
            open_.setdefault((record.serial, record.node), []).append(len(found))
            of_block.setdefault(record.serial, []).append(len(found))
            found.append(Residual(record.serial, record.node, record.name, block.allocated, block.requested, block.tag,
                                  position))
        elif isinstance(record, Drop):
            waiting = open_.get((record.serial, record.node)) or open_.get((record.serial, 0))
            if waiting:
                i = waiting.pop(0)
                found[i] = found[i]._replace(dropped_at=position, reason=record.reason)
        elif isinstance(record, Free):
            for i in of_block.pop(record.serial, ()):
                found[i] = found[i]._replace(freed_at=position)
    return found


def run_backward(records: Iterable[Record]) -> set[int]:
    """The nodes of ops whose gradients backward has computed. What they keep then is retained, for another backward."""
    made, run = set[int](), set[int]()
    for record in records:
        if isinstance(record, Launch) and record.node:
            (run if record.tag.phase == "backward" and record.node in made else made).add(record.node)
    return run


def start_of_step(records: Sequence[Record]) -> int:
    """The position of the first mark ``begin step``, 0 if there is none."""
    return next((i for i, r in enumerate(records) if isinstance(r, Mark) and (r.what, r.label) == ("begin", "step")), 0)
