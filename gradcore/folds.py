"""Pure functions over a log: live bytes, the peak and its holders, and what was kept for backward and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradcore.events import BORROW, Alloc, Drop, Free, Keep, Mark, Record, Reserve, Retag, Tag, Unreserve

#: Roles that become "residual" while a node keeps the buffer; a kept parameter stays a parameter, a kept input an input.
_KEEPABLE = frozenset(("output", "temporary"))


@dataclass(frozen=True)
class Live:
    """Bytes live after a record."""

    requested: int = 0
    allocated: int = 0
    reserved: int = 0


@dataclass(frozen=True)
class Peak:
    """The largest of each figure, in bytes; ``position`` is the record after which ``allocated`` was first reached."""

    position: int
    requested: int
    allocated: int
    reserved: int


@dataclass(frozen=True)
class Holder:
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


@dataclass(frozen=True)
class Residual:
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
    requested = allocated = reserved = 0
    for record in records:
        if isinstance(record, Alloc):
            sizes[record.serial] = record.requested, record.allocated
            requested += record.requested
            allocated += record.allocated
        elif isinstance(record, Free):
            r, a = sizes.pop(record.serial)
            requested -= r
            allocated -= a
        elif isinstance(record, Reserve):
            reserved += record.nbytes
        elif isinstance(record, Unreserve):
            reserved -= record.nbytes
        yield Live(requested, allocated, reserved)


def peak(records: Sequence[Record], start: int = 0) -> Peak:
    """The largest figures at and after position ``start``."""
    best = Peak(start, 0, 0, 0)
    for position, live in enumerate(timeline(records)):
        if position < start:
            continue
        if live.allocated > best.allocated:
            best = Peak(position, best.requested, live.allocated, best.reserved)
        if live.requested > best.requested or live.reserved > best.reserved:
            best = Peak(best.position, max(best.requested, live.requested), best.allocated,
                        max(best.reserved, live.reserved))
    return best


def at_peak(records: Sequence[Record]) -> tuple[Peak, list[Holder]]:
    """A step's peak, from its mark ``begin step`` on, and the buffers that are live there, the largest first.

    If as much was live at its beginning already, the peak is where an allocation reached it again, if any did.
    """
    start = position_of(records, "begin", "step") or 0
    highest = peak(records, start)
    if records and highest.position == start and not isinstance(records[start], Alloc):
        reached = (i for i, (live, r) in enumerate(zip(timeline(records), records, strict=True))
                   if i > start and live.allocated == highest.allocated and isinstance(r, Alloc) and r.allocated)
        highest = replace(highest, position=next(reached, start))
    return highest, sorted(live_at(records, highest.position), key=lambda h: (-h.allocated, h.serial))


def live_at(records: Sequence[Record], position: int) -> list[Holder]:
    """The buffers that are live after the record at ``position``, in order of allocation."""
    books = Books()
    for record in records[:position + 1]:
        books.enter(record)
    return [books.holder(serial) for serial in books.blocks]


def residuals_at(records: Sequence[Record], positions: Iterable[int]) -> list[dict[int, int]]:
    """For each of the positions, in ascending order: the bytes of each buffer, by serial, whose role is then "residual"."""
    books, done, found = Books(), 0, []
    for position in positions:
        for record in records[done:position + 1]:
            books.enter(record)
        done = max(done, position + 1)
        holders = (books.holder(serial) for serial in books.kept)
        found.append({h.serial: h.allocated for h in holders if h.role == "residual"})
    return found


class Books:
    """What is live, by serial, and what keeps it, after the records that were entered."""

    def __init__(self) -> None:
        self.blocks: dict[int, Alloc] = {}
        self.tags: dict[int, Tag] = {}
        self.kept: dict[int, list[tuple[int, str]]] = {}

    def enter(self, record: Record) -> None:
        if isinstance(record, Alloc):
            self.blocks[record.serial] = record
            self.tags[record.serial] = record.tag
        elif isinstance(record, Free):
            del self.blocks[record.serial]
            self.kept.pop(record.serial, None)
        elif isinstance(record, Retag):
            self.tags[record.serial] = record.tag
        elif isinstance(record, Keep):
            self.kept.setdefault(record.serial, []).append((record.node, record.name))
        elif isinstance(record, Drop) and record.serial in self.kept:
            keepers = self.kept[record.serial]
            _forget(keepers, record.node)
            if not keepers:
                del self.kept[record.serial]

    def holder(self, serial: int) -> Holder:
        block = self.blocks[serial]
        return Holder(serial, block.requested, block.allocated, self.tags[serial], block.node, tuple(self.kept.get(serial, ())))


def _forget(keepers: list[tuple[int, str]], node: int) -> None:
    # Node 0 stands for any keeper from before the log began, and so is taken only if the node itself keeps nothing here.
    for taken in (node, 0):
        for i, (keeper, _) in enumerate(keepers):
            if keeper == taken:
                del keepers[i]
                return


def outside(holders: Iterable[Holder]) -> int:
    """Bytes of other libraries' memory among these holders; no other sum counts them."""
    return sum(h.tag.spec.nbytes for h in holders if h.tag.op == BORROW and not h.requested and h.tag.spec is not None)


def total(holders: Iterable[Holder], key: Callable[[Holder], str]) -> dict[str, int]:
    """Allocated bytes by ``key``, largest first."""
    sums: dict[str, int] = {}
    for holder in holders:
        name = key(holder)
        sums[name] = sums.get(name, 0) + holder.allocated
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


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
                found[i] = replace(found[i], dropped_at=position, reason=record.reason)
        elif isinstance(record, Free):
            for i in of_block.pop(record.serial, ()):
                found[i] = replace(found[i], freed_at=position)
    return found


def position_of(records: Sequence[Record], what: str, label: str) -> int | None:
    """The position of the first such mark, None if there is none."""
    for position, record in enumerate(records):
        if isinstance(record, Mark) and record.what == what and record.label == label:
            return position
    return None
