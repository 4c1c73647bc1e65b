"""The pool: cuts blocks out of segments, grows by segments, and gives wholly free ones back.

Every stream has free lists of its own, one for each kind of segment, in which neighbors are merged; the best fit is split.
When nothing fits, memory that is free on other streams is taken over, and only then does the pool grow by a segment. A large
one replaces free ones whose work it can do. If the source refuses one, what was kept in one piece for others is cut, except
the largest; then the pool gives back its wholly free segments and tries again; the last resort is segments of other kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from operator import itemgetter

from gradcore.errors import OutOfMemory, SourceExhausted
from gradcore.events import RESERVE, UNRESERVE, UNTAGGED, Raw, Tag
from gradcore.memory.freelist import FreeList
from gradcore.memory.placement import (
    MIDDLE,
    MIDDLE_SEGMENT,
    SMALL,
    SMALL_SEGMENT,
    bytes_in_turn,
    choices,
    last_choice,
    segment_size,
)
from gradcore.memory.resource import (
    KINDS,
    LARGE_BLOCKS,
    PARTS,
    SMALL_BLOCKS,
    SPACING,
    STATE_BLOCKS,
    Block,
    Segment,
    Source,
    Stream,
)
from gradcore.memory.streams import StreamOrder
from gradcore.spec import ROUND, round_up

_MASK = SPACING - 1
#: A stream forgets the sizes for which nothing waits when there are more: each merge looks at all of them.
_SIZES = 1024
#: What calls the pool while it is at work would find its free lists torn, and be given bytes of a live tensor.
ENTERED = ("a signal's handler or a finalizer that has interrupted an allocation can neither allocate nor empty the cache: let "
           "it leave a note that the program looks at between two steps")


class _Returned:
    """The ``home`` of adopted blocks: when one is freed, the reference to the memory's owner is dropped."""

    def __init__(self, blocks: set[Block]) -> None:
        self._blocks = blocks

    def append(self, block: Block) -> None:
        self._blocks.discard(block)
        block.arrays.clear()
        block.segment.memory = None


class Pool:
    """Blocks cut out of segments. Not thread-safe on its own: the ledger around it holds the stack's one lock.

    A block goes back, when ``order`` has settled it, to its ``home``, where it waits; merging moves it into a free list.
    """

    def __init__(self, source: Source, order: StreamOrder) -> None:
        self._source = source
        self.order = order
        #: The serial of the last allocation, and what it was before the first.
        self.serial = self.first = 0
        self._next_segment = 0
        self.segments: dict[int, Segment] = {}
        self.streams: list[Stream] = []
        #: Bytes of all segments.
        self.reserved = 0
        #: Allocations that needed a new segment.
        self.misses = 0
        #: Every block that is not in a free list: live ones have a serial, waiting ones do not.
        self.blocks: set[Block] = set()
        #: The records of segments that came or went since the ledger last took this list.
        self.changes: list[Raw] = []
        #: Are the free lists being changed?
        self.at_work = False

    def layout(self) -> tuple[object, ...]:
        """Where blocks lie, with their owners' tags, and wait: from equal layouts on, equal requests find equal places.

        Segments are numbered by their age among those that there are.
        """
        number = {index: k for k, index in enumerate(sorted(self.segments))}
        live = frozenset((number[b.segment.index], b.offset, b.size, b.tag) for b in self.blocks
                         if b.serial and b.segment.index in number)
        waiting = [(k, size, tuple((number[b.segment.index], b.offset, b.size) for b in blocks))
                   for k, stream in enumerate(self.streams) for size, blocks in sorted(stream.waiting.items()) if blocks]
        return tuple((self.segments[index].nbytes, self.segments[index].kind) for index in number), live, tuple(waiting)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: Stream, tag: Tag = UNTAGGED, node: int = 0) -> Block:
        """A block of at least ``nbytes`` bytes, usable on ``stream`` at once. Raises :class:`OutOfMemory`, and RuntimeError
        while the pool is at work: see :data:`ENTERED`.
        """
        if self.at_work:
            raise RuntimeError(ENTERED)
        self.at_work = True
        try:
            size = round_up(nbytes)
            if stream not in self.streams:
                self.streams.append(stream)
                # The default stream comes first, even if another one allocated first.
                self.streams.sort(key=lambda s: s.index)
            kind = SMALL_BLOCKS if size <= SMALL else STATE_BLOCKS if tag.role == "optimizer state" else LARGE_BLOCKS
            # Merging breaks up the sizes that the next step will ask for, so small blocks, the many, first try without.
            start = stream.free[kind].take(size) if kind == SMALL_BLOCKS else None
            if start is None:
                self._merge(stream)
                for may in choices(size, tag) if kind == LARGE_BLOCKS else (None,):
                    start = self._take(stream.free[kind], size, may)
                    if start is not None:
                        break
            if start is None:
                start = self._take_over(size, kind, stream)
            if start is None:
                start = self._grow(size, kind, stream, tag)
            segment = self.segments[start // SPACING]
            part = kind != SMALL_BLOCKS and segment.nbytes > MIDDLE_SEGMENT and size <= segment.nbytes // 2
            block = Block(segment, start & _MASK, size, stream, stream.waiting[PARTS if part else size], nbytes, tag, node)
            self.blocks.add(block)
            # Last, since an interrupt comes after a call: a block with a serial is live; the ledger counts it without a call.
            block.serial = self.serial = self.serial + 1
            return block
        finally:
            self.at_work = False

    def adopt(self, segment: Segment, stream: Stream, tag: Tag) -> Block:
        """A block over memory that is not the pool's. It counts as 0 bytes, and is dropped when it is freed."""
        block = Block(segment, 0, 0, stream, _Returned(self.blocks), 0, tag)
        self.blocks.add(block)
        block.serial = self.serial = self.serial + 1
        return block

    def _take(self, free: FreeList, size: int, may: Callable[[Segment, int], bool] | None) -> int | None:
        """``size`` bytes from a range that ``may`` be cut, given its segment and its bytes."""
        return free.take(size, may and (lambda start, length: may(self.segments[start // SPACING], length)))

    def _merge(self, stream: Stream) -> None:
        """Move the blocks that wait on a stream into its free lists."""
        for blocks in stream.waiting.values():
            if blocks:
                for block in blocks:
                    segment = block.segment
                    self.blocks.discard(block)
                    stream.free[segment.kind].add(segment.index * SPACING + block.offset, block.size)
                blocks.clear()
        if len(stream.waiting) > _SIZES:
            # Or those of texts and pictures of all sizes would pile up. Live blocks will go back to their lists.
            homes = {id(block.home) for block in self.blocks}
            for size in [size for size, blocks in stream.waiting.items() if id(blocks) not in homes]:
                del stream.waiting[size]

    def _take_over(self, size: int, kind: int, stream: Stream) -> int | None:
        for giver in self.streams:
            if giver is stream:
                continue
            self._merge(giver)
            free = giver.free[kind]
            if free.largest() >= size:
                self.order.hand_over(giver, stream)
                return free.take(size)
        return None

    def _borrow(self, size: int, kind: int, stream: Stream) -> int | None:
        """Memory that flushing has merged, or from segments of other kinds, which is better than running out."""
        for other in (kind, *(k for k in KINDS if k != kind)):
            start = stream.free[other].take(size)
            if start is None:
                start = self._take_over(size, other, stream)
            if start is not None:
                return start
        return None

    def _grow(self, size: int, kind: int, stream: Stream, tag: Tag) -> int:
        nbytes = segment_size(size, kind)
        if nbytes >= SPACING:
            raise OutOfMemory(f"a segment has less than {SPACING:,} bytes on any device", asked=size, cached=self.cached,
                              largest_free=self.largest_free, limit=None)
        given_back = self._make_way(nbytes, stream.free[kind]) if size >= MIDDLE else 0
        try:
            segment = self._source.allocate(nbytes)
        except SourceExhausted:
            # Otherwise each step near the limit would give back all that is free, and ask the source for it again.
            free = stream.free[kind]
            start = self._take(free, size, last_choice(size, tag, free.largest()))
            if start is not None:
                return start
            self._flush()
            try:
                # A segment of exactly this size may fit where a roomier one does not.
                segment = self._source.allocate(nbytes if nbytes <= SMALL_SEGMENT else round_up(size, ROUND))
            except SourceExhausted as error:
                start = self._borrow(size, kind, stream)
                if start is not None:
                    return start
                outside = None if error.used is None else error.used - self.reserved
                raise OutOfMemory(str(error), asked=size, cached=self.cached, largest_free=self.largest_free,
                                  limit=error.limit, outside=outside) from None
        segment.index = self._next_segment
        segment.kind = kind
        self._next_segment += 1
        self.misses += 1
        self.segments[segment.index] = segment
        self.reserved += segment.nbytes
        self.changes.append((RESERVE, segment.index, segment.nbytes))
        base = segment.index * SPACING
        if segment.nbytes > size:
            stream.free[kind].add(base + size, segment.nbytes - size)
        segment.in_turn = bytes_in_turn(segment.nbytes, given_back, self.reserved - segment.nbytes)
        return base

    # -- giving segments back ------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Give wholly free segments back to the source; returns their bytes. Other free memory moves to the first stream.

        Raises RuntimeError while the pool is at work: see :data:`ENTERED`.
        """
        if self.at_work:
            raise RuntimeError(ENTERED)
        self.at_work = True
        try:
            return self._flush()
        finally:
            self.at_work = False

    def _flush(self) -> int:
        before = self.reserved
        free: dict[int, list[tuple[FreeList, int, int]]] = {}
        for stream in self.streams:
            self._merge(stream)
            for ranges in stream.free:
                for start, size in ranges.ranges():
                    free.setdefault(start // SPACING, []).append((ranges, start, size))
        # The parts of a segment may be free on different streams, since flushing waits for the device anyway.
        whole = [i for i, parts in free.items() if sum(size for _, _, size in parts) == self.segments[i].nbytes]
        scattered = any(ranges.total for stream in self.streams[1:] for ranges in stream.free)
        if whole or scattered:
            self.order.drain()
        for index in whole:
            for ranges, start, _ in free[index]:
                ranges.remove(start)
            self._give_back(index)
        if scattered:
            self._gather()
        return before - self.reserved

    def _make_way(self, nbytes: int, free: FreeList) -> int:
        """Give back wholly free segments of up to ``nbytes`` bytes together, the largest first: a new one of so many bytes can
        serve what they served. Otherwise sizes that grow from step to step, as those of texts do, would leave one behind for
        each size. Returns their bytes.
        """
        before, drained = self.reserved, False
        for start, size in sorted(free.ranges(), key=itemgetter(1), reverse=True):
            index = start // SPACING
            if MIDDLE <= size <= nbytes and size == self.segments[index].nbytes:
                if not drained:
                    self.order.drain()
                    drained = True
                free.remove(start)
                self._give_back(index)
                nbytes -= size
        return before - self.reserved

    def _give_back(self, index: int) -> None:
        """Give a segment back to the source, behind all work, after its ranges have left the free lists."""
        # Books first: if the source fails, the segment is lost, but never handed out again.
        segment = self.segments[index]
        del self.segments[index]
        self.reserved -= segment.nbytes
        self.changes.append((UNRESERVE, segment.index, segment.nbytes))
        segment.arrays.clear()
        self._source.deallocate(segment)

    def _gather(self) -> None:
        """With all work done, move free memory to the first stream, where neighbors can merge."""
        first = self.streams[0]
        for stream in self.streams[1:]:
            for ranges, into in zip(stream.free, first.free, strict=True):
                for start, size in ranges.ranges():
                    ranges.remove(start)
                    into.add(start, size)

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def live(self) -> dict[int, Block]:
        """Live blocks by serial, in order of allocation."""
        return dict(sorted((b.serial, b) for b in self.blocks if b.serial))

    @property
    def cached(self) -> int:
        """Free bytes inside segments."""
        return sum(sum(ranges.total for ranges in s.free) + sum(b.size for blocks in s.waiting.values() for b in blocks)
                   for s in self.streams)

    @property
    def largest_free(self) -> int:
        """Bytes of the largest single free range. Blocks that wait count as merged, as a request would merge them."""
        largest = 0
        for s in self.streams:
            waiting = [(b.segment.index * SPACING + b.offset, b.size) for blocks in s.waiting.values() for b in blocks]
            reached = size = 0
            for start, length in sorted([*chain.from_iterable(ranges.ranges() for ranges in s.free), *waiting]):
                size = size + length if start == reached else length
                reached = start + length
                largest = max(largest, size)
        return largest
