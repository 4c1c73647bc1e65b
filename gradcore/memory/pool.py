"""The pool: rounding, segments, growth, flush and retry.

Free memory lies in address-ordered lists, one for each stream, in which neighbours are merged; the best fit is split.
When nothing fits, the other streams' free memory is taken over, and only then does the pool grow by a segment. Where it may
not, it gives back what is wholly free and tries again; the last resort is memory of segments for blocks of other sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Collection

from gradcore.errors import OutOfMemory, SourceExhausted, StaleBlock
from gradcore.memory.freelist import FreeList
from gradcore.memory.resource import Block, Segment, Source, Stream
from gradcore.memory.streams import StreamOrder
from gradcore.spec import ROUND, round_up

MiB = 1 << 20
#: Requests up to SMALL share segments of SMALL_SEGMENT; up to MIDDLE, segments of MIDDLE_SEGMENT; larger ones get a
#: segment of their own, rounded up to SMALL_SEGMENT. Long-lived small tensors then never pin a large segment.
SMALL, SMALL_SEGMENT, MIDDLE, MIDDLE_SEGMENT = MiB, 2 * MiB, 10 * MiB, 20 * MiB

# Segments lie this far apart in the free lists' address space, so that ranges of two segments never merge.
_SPACING = 1 << 48
_MASK = _SPACING - 1


def segment_size(size: int) -> int:
    """Bytes of the segment that a block of ``size`` bytes is cut from."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < MIDDLE:
        return MIDDLE_SEGMENT
    return round_up(size, SMALL_SEGMENT)


class _Returned(list[Block]):
    """Where blocks over somebody else's bytes go when they are given back: their owner is let go of."""

    def __init__(self, blocks: set[Block]) -> None:
        super().__init__()
        self._blocks = blocks

    def append(self, block: Block) -> None:
        self._blocks.discard(block)
        block.arrays.clear()
        block.segment.memory = None


class Pool:
    """Blocks out of segments. Not thread-safe on its own: the ledger around it holds the stack's one lock."""

    def __init__(self, source: Source, order: StreamOrder) -> None:
        self._source = source
        self._order = order
        #: Number of the last life that a block began.
        self.serial = 0
        self._next_segment = 0
        self.segments: dict[int, Segment] = {}
        self.streams: list[Stream] = []
        #: Bytes of all segments.
        self.reserved = 0
        #: Allocations that needed a new segment.
        self.misses = 0
        #: Every block that is not in a free list: live ones have a serial, waiting ones none.
        self.blocks: set[Block] = set()
        #: Segments that came and went since somebody last took this list: (kind, segment index, bytes).
        self.changes: list[tuple[bool, int, int]] = []

    # -- the two calls -------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: Stream, tag: int = 0, node: int = 0) -> Block:
        """A block of at least ``nbytes`` bytes, usable on ``stream`` at once. Raises :class:`OutOfMemory`."""
        size = round_up(nbytes)
        if stream not in self.streams:
            self.streams.append(stream)
            # The default stream is the first, whichever allocated first.
            self.streams.sort(key=lambda s: s.index)
        small = size <= SMALL
        # Merging undoes the exact sizes that the next step will ask for: small blocks, which are many, try without.
        start = stream.small.take(size) if small else None
        if start is None:
            self._merge(stream)
            start = (stream.small if small else stream.large).take(size)
        if start is None:
            start = self._take_over(size, small, stream)
        if start is None:
            start = self._grow(size, small, stream)
        block = Block(self.segments[start // _SPACING], start & _MASK, size, stream)
        self.blocks.add(block)
        self.serial += 1
        block.begin(self.serial, nbytes, tag, node)
        return block

    def adopt(self, segment: Segment, stream: Stream, tag: int) -> Block:
        """A block over a segment of somebody else's bytes: of 0 bytes here, and nobody's again when it is given back."""
        block = Block(segment, 0, 0, stream)
        block.home = _Returned(self.blocks)
        self.blocks.add(block)
        self.serial += 1
        block.begin(self.serial, 0, tag, 0)
        return block

    def deallocate(self, block: Block, serial: int) -> None:
        """Give a block back. Raises :class:`StaleBlock` unless ``serial`` is the block's present life."""
        if block.serial != serial or not serial:
            raise StaleBlock(f"block with serial {serial} was given back already: {block}")
        block.serial = 0
        self.settle(block)
        self._reclaim(block)

    def release(self, block: Block) -> None:
        self.deallocate(block, block.serial)

    def settle(self, block: Block) -> None:
        """Order the other streams that used a block before what its own stream will do with it."""
        if block.users is not None:
            self._order.settle(block)

    def _reclaim(self, block: Block) -> None:
        self.blocks.discard(block)
        self._list(block.stream, block.segment).add(block.segment.index * _SPACING + block.offset, block.size)

    def _merge(self, stream: Stream) -> None:
        """Take in the blocks that wait on a stream for their size to be asked for again."""
        for blocks in stream.waiting.values():
            for block in blocks:
                self._reclaim(block)
            blocks.clear()

    @staticmethod
    def _list(stream: Stream, segment: Segment) -> FreeList:
        return stream.small if segment.small else stream.large

    def _take_over(self, size: int, small: bool, stream: Stream) -> int | None:
        for giver in self.streams:
            if giver is stream:
                continue
            self._merge(giver)
            free = giver.small if small else giver.large
            if free.largest() >= size:
                self._order.hand_over(giver, stream)
                return free.take(size)
        return None

    def _borrow(self, size: int, small: bool, stream: Stream) -> int | None:
        """From segments of the other kind: better than running out."""
        start = (stream.large if small else stream.small).take(size)
        return self._take_over(size, not small, stream) if start is None else start

    def _grow(self, size: int, small: bool, stream: Stream) -> int:
        nbytes = segment_size(size)
        try:
            segment = self._source.allocate(nbytes)
        except SourceExhausted:
            self.flush()
            try:
                # A segment of just this size may still fit where the roomier one does not.
                segment = self._source.allocate(nbytes if nbytes <= SMALL_SEGMENT else round_up(size, ROUND))
            except SourceExhausted as error:
                start = self._borrow(size, small, stream)
                if start is not None:
                    return start
                raise OutOfMemory(str(error), asked=size, cached=self.cached, largest_free=self.largest_free,
                                  limit=error.limit) from None
        segment.index = self._next_segment
        segment.small = small
        self._next_segment += 1
        self.misses += 1
        self.segments[segment.index] = segment
        self.reserved += segment.nbytes
        self.changes.append((True, segment.index, segment.nbytes))
        base = segment.index * _SPACING
        if segment.nbytes > size:
            self._list(stream, segment).add(base + size, segment.nbytes - size)
        return base

    # -- giving segments back ------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Give every wholly free segment back to the source; returns their bytes. What else is free is the first stream's."""
        before = self.reserved
        free: dict[int, list[tuple[FreeList, int, int]]] = {}
        for stream in self.streams:
            self._merge(stream)
            for ranges in (stream.small, stream.large):
                for start, size in ranges.ranges():
                    free.setdefault(start // _SPACING, []).append((ranges, start, size))
        # The parts of a segment may be free on several streams: the device is waited for anyway.
        whole = [i for i, parts in free.items() if sum(size for _, _, size in parts) == self.segments[i].nbytes]
        scattered = any(ranges.total for stream in self.streams[1:] for ranges in (stream.small, stream.large))
        if whole or scattered:
            self._order.drain()
        for index in whole:
            # Books first: should the source fail, this segment is lost to us, but never handed out again.
            for ranges, start, size in free[index]:
                ranges.remove(start, size)
            segment = self.segments[index]
            del self.segments[index]
            self.reserved -= segment.nbytes
            self.changes.append((False, segment.index, segment.nbytes))
            self._source.deallocate(segment)
        if scattered:
            self._gather()
        return before - self.reserved

    def _gather(self) -> None:
        """All work is done: what is free on other streams goes to the first one, where neighbours meet again."""
        first = self.streams[0]
        for stream in self.streams[1:]:
            for ranges, into in ((stream.small, first.small), (stream.large, first.large)):
                for start, size in ranges.ranges():
                    ranges.remove(start, size)
                    into.add(start, size)

    # -- after an interrupt --------------------------------------------------------------------------------------------

    def mend(self, going: Collection[Block]) -> None:
        """Make the free lists anew where a call broke off half way; ``going`` are blocks on their way back.

        What counts is the segments and the blocks that are live, going or waiting: the rest is free.
        """
        if self._whole(going):
            return
        if len(self.streams) > 1:
            # Nobody knows any more on which of the streams bytes were free.
            self._order.drain()
        for stream in self.streams:
            for waiting in stream.waiting.values():
                waiting[:] = [b for b in dict.fromkeys(waiting) if b in self.blocks and not b.serial]
            stream.small, stream.large = FreeList(), FreeList()
        waiting_now = {b for s in self.streams for blocks in s.waiting.values() for b in blocks}
        self.blocks = {b for b in self.blocks if b.serial or b in waiting_now or b in going}
        self.reserved = sum(s.nbytes for s in self.segments.values())
        taken: dict[int, list[tuple[int, int]]] = {}
        for block in self.blocks:
            taken.setdefault(block.segment.index, []).append((block.offset, block.size))
        for index, segment in self.segments.items():
            free, at = self._list(self.streams[0], segment), 0
            for offset, size in (*sorted(taken.get(index, ())), (segment.nbytes, 0)):
                if offset > at:
                    free.add(index * _SPACING + at, offset - at)
                at = offset + size

    def lost(self) -> list[Block]:
        """Live blocks that nobody will give back: an interrupt that comes as a finaliser begins ends it there.

        Whoever will give a block back refers to it, as the pool does.
        """
        blocks = list(self.blocks)
        # One reference is the pool's, one the list's, one the argument here.
        return [b for b, n in zip(blocks, list(map(sys.getrefcount, blocks)), strict=True) if n == 3 and b.serial]

    def _whole(self, going: Collection[Block]) -> bool:
        """Is every byte of the segments in one free list, or in a block that is live, going or waiting?"""
        free = [ranges for s in self.streams for ranges in (s.small, s.large)]
        waiting = {b for s in self.streams for blocks in s.waiting.values() for b in blocks}
        return (all(ranges.whole() for ranges in free)
                and waiting == {b for b in self.blocks if not b.serial and b not in going}
                and sum(f.total for f in free) + sum(b.size for b in self.blocks) == self.reserved
                == sum(s.nbytes for s in self.segments.values()))

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def live(self) -> dict[int, Block]:
        """Live blocks by serial, in order of allocation."""
        return dict(sorted((b.serial, b) for b in self.blocks if b.serial))

    @property
    def cached(self) -> int:
        """Free bytes inside segments."""
        return sum(s.small.total + s.large.total + sum(size * len(blocks) for size, blocks in s.waiting.items())
                   for s in self.streams)

    @property
    def largest_free(self) -> int:
        """Bytes of the largest single free range. To look changes nothing: waiting blocks are not merged for it."""
        free = [0]
        for s in self.streams:
            free += [s.small.largest(), s.large.largest(), *(size for size, blocks in s.waiting.items() if blocks)]
        return max(free)
