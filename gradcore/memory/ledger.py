"""Whom every live byte belongs to, and the log while one is being written.

The ledger is the way every block comes and goes, so the common case is served here: a freed block waits on its stream
for its exact size to be asked for again, and only when none waits is the pool asked to search.

It holds the one lock of the stack. A finaliser may run inside ``allocate`` on the same thread, so giving a block back
never waits for the lock: the block joins a queue that is emptied on the next entry, and before any figure is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from gradcore.errors import OutOfMemory, StaleBlock
from gradcore.events import ALLOC, FREE, KEEP, OUTSIDE, RESERVE, RETAG, TAGS, UNRESERVE, Raw, Tag
from gradcore.forking import brief
from gradcore.memory.peaks import Measured, Peaks
from gradcore.memory.pool import Pool
from gradcore.memory.resource import Block, Segment, Stream
from gradcore.spec import ROUND


def opening(b: Block) -> Raw:
    """The record that a live block was allocated."""
    return ALLOC, b.serial, b.segment.index, b.offset, b.requested, b.size, b.stream.index, b.tag, b.node


class Ledger:
    """Counts, owners and log of one device's memory. All sizes are bytes."""

    def __init__(self, pool: Pool, explain: Callable[[Ledger, OutOfMemory], str]) -> None:
        self._explain = explain
        #: Held while the books change.
        self.lock: Any = brief()
        self._pending: deque[Block] = deque()
        #: What a finaliser calls with its block. While a log is written, the block is taken to the pool at once, so that
        #: the log shows the moment; otherwise by whoever comes next.
        self.release: Callable[[Block], None] = self._pending.append
        self.pool = pool
        self._requested = self._allocated = 0
        self._peak_requested = self._peak_allocated = self.peak_reserved = 0
        #: Stretches over which peaks are measured, the innermost last.
        self.measured: list[Measured] = []
        #: Blocks that are reserved for a plan, and the ranges of them that count as allocated: see :mod:`memory.arena`.
        self.arenas: set[Block] = set()
        #: In the order in which they opened, which logs begin with.
        self.ranges: dict[Block, None] = {}
        #: The log that is being written, or None. Appending is all that the hot path does with it.
        self.log: list[Raw] | None = None
        #: The logs around it, which go on when it ends, each with the number of records that the one inside opened with.
        self._outer: list[tuple[list[Raw], int]] = []

    # -- blocks --------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: Stream, tag: int = 0, node: int = 0) -> Block:
        """A tagged block. Raises :class:`OutOfMemory`, whose text names the top holders; nothing has changed then."""
        block = None
        try:
            with self.lock:
                if self._pending:
                    self.drain()
                pool = self.pool
                waiting = stream.waiting.get((nbytes + 511) & -512 or ROUND)
                # An interrupt is raised after a call: from here to the end the usual way makes none.
                if waiting:
                    block = waiting[-1]
                    del waiting[-1]
                    # Block.begin, in line.
                    block.serial = pool.serial = pool.serial + 1
                    block.requested = nbytes
                    block.tag = tag
                    block.node = node
                else:
                    block = pool.allocate(nbytes, stream, tag, node)
                self._requested += nbytes
                self._allocated += block.size
                log = self.log
                if pool.changes:
                    self._note_segments()
                if log is not None:
                    log += ((ALLOC, block.serial, block.segment.index, block.offset, nbytes, block.size, stream.index, tag,
                             node),)
            return block
        except OutOfMemory as error:
            # The error itself is not kept: its traceback would pin the frames and what they hold.
            why, limit = str(error), error.limit
        except BaseException:
            self._undo(block)
            raise
        raise self._out_of_memory(why, limit, nbytes, TAGS[tag])

    def _undo(self, block: Block | None) -> None:
        """A call was interrupted: nobody got the block, if there is one already."""
        with self.lock:
            self.pool.mend(self._pending)
            self._note_segments()
            if block is not None:
                if self.log is not None and opening(block) not in self.log:
                    self.log.append(opening(block))
                self._pending.append(block)

    def _recover(self) -> None:
        """Drain, and give back what an interrupt has left without an owner."""
        self.drain()
        self._pending.extend(self.pool.lost())
        self.drain()

    def adopt(self, segment: Segment, stream: Stream, tag: int) -> Block:
        """A block over bytes that somebody else owns: it has a number, an owner and a life in the log, and 0 bytes."""
        segment.index = OUTSIDE
        with self.lock:
            self.drain()
            block = self.pool.adopt(segment, stream, tag)
            if self.log is not None:
                self.log.append((ALLOC, block.serial, OUTSIDE, 0, 0, 0, stream.index, tag, 0))
            return block

    def deallocate(self, block: Block, serial: int) -> None:
        """Give a block back. Raises :class:`StaleBlock` unless ``serial`` is the block's present life."""
        if block.serial != serial or not serial or block in self._pending:
            raise StaleBlock(f"block with serial {serial} was given back already: {block}")
        self.release(block)

    def _release_now(self, block: Block) -> None:
        self._pending.append(block)
        if self.lock._is_owned():
            return
        ours = False
        try:
            ours = self.lock.acquire(False)
            if ours:
                self.drain()
        except BaseException:
            # An interrupt may come before anybody has seen what acquire returned.
            ours = self.lock._is_owned()
            raise
        finally:
            if ours:
                self.lock.release()

    def drain(self) -> None:
        """With the lock held, take what was given back to the pool. Live bytes grow between two drains: peaks are read here."""
        if self._requested > self._peak_requested:
            self._peak_requested = self._requested
        if self._allocated > self._peak_allocated:
            self._peak_allocated = self._allocated
        pending = self._pending
        while pending:
            block = pending[0]
            log = self.log
            # Books first: should the driver fail to order the streams, the block is lost, but nobody gets it unordered. No call
            # until then: an interrupt is raised after one.
            self._requested -= block.requested
            self._allocated -= block.size
            if log is not None and block not in self.arenas:
                log += ((FREE, block.serial),)
            block.serial = 0
            del pending[0]
            if block.users is not None:
                self.pool.settle(block)
            block.home.append(block)

    def _out_of_memory(self, why: str, limit: int | None, nbytes: int, tag: Tag) -> OutOfMemory:
        """The error to raise, outside the lock and from the books."""
        with self.lock:
            self.drain()
            self._note_segments()
        figures: dict[str, Any] = {
            "asked": nbytes, "live": self._allocated, "cached": self.pool.cached, "largest_free": self.pool.largest_free,
            "limit": limit, "by": f"{tag.op} in layer {tag.layer or '(root)'}, {tag.phase}, {tag.site}"}
        return OutOfMemory(self._explain(self, OutOfMemory(why, **figures)), **figures)

    def _note_segments(self) -> None:
        self.peak_reserved = max(self.peak_reserved, self.pool.reserved)
        found: list[Raw] = [(RESERVE if came else UNRESERVE, index, nbytes) for came, index, nbytes in self.pool.changes]
        log = self.log
        if log is not None:
            log += found
        self.pool.changes = []

    def count(self, blocks: Iterable[Block], sign: int, noted: bool = False) -> None:
        """Blocks count as allocated from now on (1), or no more (-1), staying where they are. The log may have it ``noted``."""
        for b in blocks:
            self._requested += sign * b.requested
            self._allocated += sign * b.size
            if self.log is not None and not noted:
                self.log.append((FREE, b.serial) if sign < 0 else opening(b))

    def set_aside(self, block: Block) -> None:
        """What was just allocated is an arena: it never counted, and no log has it."""
        # No draining before that: it would note a peak.
        with self.lock:
            self.arenas.add(block)
            self._requested -= block.requested
            self._allocated -= block.size
            if self.log is not None:
                self.log.remove(opening(block))

    def restore(self, block: Block) -> None:
        """The books have just let go of a block that they did not count."""
        self._requested += block.requested
        self._allocated += block.size

    def passed(self, requested: int, allocated: int) -> None:
        """So many bytes were allocated for a while beside what is live, in ranges of an arena."""
        if self._requested + requested <= self._peak_requested and self._allocated + allocated <= self._peak_allocated:
            # What waits to be given back is counted still: it would only be less.
            return
        with self.lock:
            self.drain()
            self._peak_requested = max(self._peak_requested, self._requested + requested)
            self._peak_allocated = max(self._peak_allocated, self._allocated + allocated)

    # -- who owns what -------------------------------------------------------------------------------------------------

    def retag(self, block: Block, tag: int) -> None:
        """The block belongs to somebody else from here on."""
        if block.tag != tag:
            block.tag = tag
            if self.log is not None:
                self.log.append((RETAG, block.serial, tag))

    @property
    def live(self) -> dict[int, Block]:
        """Live blocks by serial, in order of allocation; of an arena, the ranges that are open in it."""
        with self.lock:
            self._recover()
            live = self.pool.live
            if self.arenas:
                for block in self.arenas:
                    del live[block.serial]
                live |= {b.serial: b for b in self.ranges}
            return live

    @property
    def requested(self) -> int:
        """Live bytes as they were asked for."""
        with self.lock:
            self._recover()
            return self._requested

    @property
    def allocated(self) -> int:
        """Live bytes, rounded."""
        with self.lock:
            self._recover()
            return self._allocated

    @property
    def peak_requested(self) -> int:
        """The most requested bytes live at once, since the start or :meth:`reset_peaks`."""
        with self.lock:
            self.drain()
            return self._peak_requested

    @property
    def peak_allocated(self) -> int:
        """The most allocated bytes live at once."""
        with self.lock:
            self.drain()
            return self._peak_allocated

    @property
    def allocations(self) -> int:
        return self.pool.serial

    @property
    def reserved(self) -> int:
        return self.pool.reserved

    # -- logs and figures ----------------------------------------------------------------------------------------------

    def begin_log(self, log: list[Raw] | None = None) -> list[Raw]:
        """Start a log, in the list given if there is one. It opens with what is there: segments, live blocks, what is kept.

        A log that is being written already waits, and has what is written meanwhile when the new one ends.
        """
        with self.lock:
            self._recover()
            self._note_segments()
            log = [] if log is None else log
            log.extend((RESERVE, s.index, s.nbytes) for s in self.pool.segments.values())
            for b in (*(b for b in self.pool.live.values() if b not in self.arenas), *self.ranges):
                log.append(opening(b))
                log.extend([(KEEP, b.serial, 0, "kept before the log began")] * b.keeps)
            if self.log is not None:
                self._outer.append((self.log, len(log)))
            self.log = log
            self.release = self._release_now
            return log

    def end_log(self) -> None:
        """The log that began last has ended."""
        with self.lock:
            self.drain()
            ended, self.log = self.log, None
            if ended is not None and self._outer:
                outer, opening = self._outer[-1]
                del self._outer[-1]
                outer += ended[opening:]
                self.log = outer
            else:
                self.release = self._pending.append

    def so_far(self, log: list[Raw]) -> list[Raw]:
        """What a log has until now, with the logs that are being written inside it."""
        with self.lock:
            self.drain()
            written = [*self._outer, (self.log or [], 0)]
            inside = next((i for i, (outer, _) in enumerate(written) if outer is log), len(written))
            found = list(log)
            for (_, opening), (inner, _) in zip(written[inside:], written[inside + 1:], strict=False):
                found += inner[opening:]
            return found

    def flush(self) -> int:
        """Give wholly free segments back; returns their bytes."""
        with self.lock:
            self._recover()
            try:
                freed = self.pool.flush()
                self._note_segments()
                return freed
            except BaseException:
                self._undo(None)
                raise

    @property
    def peaks(self) -> Peaks:
        """As they were read last, with the lock held."""
        return self._peak_requested, self._peak_allocated, self.peak_reserved

    @peaks.setter
    def peaks(self, peaks: Peaks) -> None:
        self._peak_requested, self._peak_allocated, self.peak_reserved = peaks

    @property
    def present(self) -> Peaks:
        """What peaks begin with."""
        return self._requested, self._allocated, self.pool.reserved

    def reset_peaks(self) -> None:
        with self.lock:
            self.drain()
            seen = self.peaks
            for measured in reversed(self.measured):
                seen = measured.forget(seen)
            self.peaks = self.present
