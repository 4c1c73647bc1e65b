"""The ledger: knows the owner of every live byte, and writes the log.

Every block is allocated and freed through the ledger, so it serves the common case itself: a freed block waits on its
stream for a request of exactly its size, and the pool is asked to search only if none waits.

It has the only lock of the stack. A finalizer may run inside ``allocate`` on the same thread, so giving a block back
never waits for the lock: the block joins a queue that is emptied on the next entry, and before any figure is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gradcore.errors import AlreadyReleased, OutOfMemory
from gradcore.events import ALLOC, FREE, KEEP, OUTSIDE, RESERVE, RETAG, UNTAGGED, Raw, Tag
from gradcore.forking import brief
from gradcore.memory.mending import lost, mend
from gradcore.memory.nesting import Nest, put_in, so_far, take_out
from gradcore.memory.peaks import NOTHING, Measured, Peaks, highest, restart
from gradcore.memory.placement import SMALL
from gradcore.memory.pool import Pool
from gradcore.memory.resource import Block, Segment, Stream
from gradcore.reading import network_names, owner_in
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
        #: What a finalizer calls with its block. While a log is written, the block goes to the pool at once, so that the log
        #: shows the moment; otherwise the next call to the ledger takes it there.
        self.release: Callable[[Block], None] = self._pending.append
        self.pool = pool
        self._requested = self._allocated = 0
        self._peak_requested = self._peak_allocated = self._peak_reserved = 0
        #: The peaks from the start or the user's last reset up to the last :func:`restart`.
        self.earlier = NOTHING
        #: Stretches over which peaks are being measured.
        self.measured: list[Measured] = []
        #: Arenas, which do not count as allocated, and the open ranges of them, which do: see :mod:`gradcore.memory.arena`.
        self.arenas: dict[Block, None] = {}
        #: The ranges are in the order in which they opened, as a new log lists them.
        self.ranges: dict[Block, None] = {}
        #: The log that is being written, or None. The hot path only appends to it.
        self.log: list[Raw] | None = None
        #: The logs around it, which continue when it ends.
        self._outer: Nest = []

    # -- blocks --------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: Stream, tag: Tag = UNTAGGED, node: int = 0) -> Block:
        """A tagged block. Raises :class:`OutOfMemory`, whose text names the top holders; nothing has changed then."""
        block = None
        try:
            with self.lock:
                if self._pending:
                    self.drain()
                pool = self.pool
                waiting = stream.waiting.get((nbytes + 511) & -512 or ROUND)
                # Interrupts are raised after calls, so the common path makes none from here on.
                # Large optimizer state would pin what a step has freed: the pool has segments for it.
                if waiting and not pool.at_work and (nbytes <= SMALL or tag.role != "optimizer state"):
                    block = waiting[-1]
                    del waiting[-1]
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
            # Not the error itself: its traceback would keep the frames alive, and what they refer to.
            why, room = str(error), {"limit": error.limit, "outside": error.outside}
        except BaseException:
            self._undo(block)
            raise
        raise self._out_of_memory(why, room, nbytes, tag)

    def pass_on(self, block: Block, tag: Tag, node: int) -> None:
        """Free a block, and allocate it at once for what will be written over the bytes that it holds."""
        with self.lock:
            pool, log, b = self.pool, self.log, block
            serial = pool.serial + 1
            # No calls from here on, as an interrupt after one would leave half of it done.
            if log is not None:
                log += ((FREE, b.serial), (ALLOC, serial, b.segment.index, b.offset, b.requested, b.size, b.stream.index, tag,
                                           node))
            b.serial = pool.serial = serial
            b.tag = tag
            b.node = node

    def _undo(self, block: Block | None) -> None:
        """Repair the books after an interrupted call, whose caller never got ``block``, if there was one."""
        with self.lock:
            mend(self.pool)
            self._note_segments()
            if block is not None:
                if self.log is not None and opening(block) not in self.log:
                    self.log.append(opening(block))
                self._pending.append(block)

    def _recover(self) -> None:
        """Drain, and give back blocks that an interrupt has left without an owner."""
        self.drain()
        # Ranges first, as each refers to its arena.
        self._pending.extend(lost(self.ranges))
        self.drain()
        self._pending.extend(lost(self.pool.blocks, self.arenas))
        self.drain()

    def adopt(self, segment: Segment, stream: Stream, tag: Tag) -> Block:
        """A block over memory that is not the pool's: in the log it has a serial and a tag as any other, and 0 bytes."""
        segment.index = OUTSIDE
        with self.lock:
            self.drain()
            block = self.pool.adopt(segment, stream, tag)
            if self.log is not None:
                self.log.append(opening(block))
            return block

    def _release_now(self, block: Block) -> None:
        self._pending.append(block)
        if self.lock._is_owned():
            return
        try:
            ours = self.lock.acquire(False)
            if ours:
                self.drain()
        except BaseException:
            # An interrupt may come before the result of acquire is assigned.
            ours = self.lock._is_owned()
            raise
        finally:
            if ours:
                self.lock.release()

    def drain(self) -> None:
        """With the lock held, return queued blocks to the pool. Live bytes only grow between drains: peaks are read here."""
        if self._requested > self._peak_requested:
            self._peak_requested = self._requested
        if self._allocated > self._peak_allocated:
            self._peak_allocated = self._allocated
        pending = self._pending
        while pending:
            block = pending[0]
            if not block.serial:
                del pending[0]
                raise AlreadyReleased(f"{block} was given back twice")
            log = self.log
            # Books first: if the driver fails to order the streams, the block is lost, but never handed out unordered. No calls
            # until that is done, since interrupts are raised after calls.
            if self.arenas and block in self.arenas:
                # From now on it counts as any other block, and here it did not.
                del self.arenas[block]
            else:
                self._requested -= block.requested
                self._allocated -= block.size
                if log is not None:
                    log += ((FREE, block.serial),)
            block.serial = 0
            del pending[0]
            if block.users is not None:
                self.pool.order.settle(block)
            block.home.append(block)

    def _out_of_memory(self, why: str, room: dict[str, int | None], nbytes: int, tag: Tag) -> OutOfMemory:
        """The error to raise, with figures from the books. Called without the lock."""
        with self.lock:
            self.drain()
            self._note_segments()
        names = network_names([tag.network, *(b.tag.network for b in self.live.values())])
        figures: dict[str, Any] = {"asked": nbytes, "live": self._allocated, "cached": self.pool.cached, **room,
                                   "largest_free": self.pool.largest_free, **owner_in(tag, names)}
        return OutOfMemory(self._explain(self, OutOfMemory(why, **figures)), **figures)

    def _note_segments(self) -> None:
        self._peak_reserved = max(self._peak_reserved, self.pool.reserved)
        # Without a call, or what a signal's handler does meanwhile would be noted twice.
        if self.log is not None:
            self.log += self.pool.changes
        self.pool.changes = []

    def turn(self, b: Block, serial: int, keeps: int, noted: bool) -> None:
        """Count a range of an arena as allocated, kept so often; with serial 0, no longer. The log may have it ``noted``."""
        log, sign = None if noted else self.log, 1 if serial else -1
        # No calls from here on, as an interrupt after one would leave half of it done.
        if log is not None:
            log += ((ALLOC, serial, b.segment.index, b.offset, b.requested, b.size, b.stream.index, b.tag, b.node)
                    if serial else (FREE, b.serial),)
        b.serial, b.keeps = serial, keeps
        self.ranges[b] = None
        if not serial:
            del self.ranges[b]
        self._requested += sign * b.requested
        self._allocated += sign * b.size

    def passed(self, requested: int, allocated: int) -> None:
        """Note in the peaks that so many bytes of an arena's ranges were allocated for a while, beside what is live."""
        if self._requested + requested <= self._peak_requested and self._allocated + allocated <= self._peak_allocated:
            # Queued blocks still count here, so the true figure can only be lower.
            return
        with self.lock:
            self.drain()
            self._peak_requested = max(self._peak_requested, self._requested + requested)
            self._peak_allocated = max(self._peak_allocated, self._allocated + allocated)

    # -- who owns what -------------------------------------------------------------------------------------------------

    def retag(self, block: Block, tag: Tag) -> None:
        """Give the block another tag."""
        if block.tag != tag:
            block.tag = tag
            if self.log is not None:
                self.log.append((RETAG, block.serial, tag))

    @property
    def live(self) -> dict[int, Block]:
        """Live blocks by serial, in order of allocation; instead of arenas, the ranges that are open in them."""
        with self.lock:
            self._recover()
            return {b.serial: b for b in self._counted()}

    def _counted(self) -> list[Block]:
        return [*(b for b in self.pool.live.values() if b not in self.arenas), *self.ranges]

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
    def peaks(self) -> Peaks:
        """The most requested, allocated and reserved bytes at once, since the start or :meth:`reset_peaks`."""
        with self.lock:
            self.drain()
            return highest(self.earlier, self.latest)

    @property
    def allocations(self) -> int:
        return self.pool.serial - self.pool.first

    @property
    def reserved(self) -> int:
        return self.pool.reserved

    # -- logs and figures ----------------------------------------------------------------------------------------------

    def begin_log(self, log: list[Raw] | None = None) -> list[Raw]:
        """Start a log, in the given list if there is one. It opens with what exists: segments, live blocks, residuals.

        One that is being written already is suspended, and receives the records written meanwhile when the new one ends.
        """
        with self.lock:
            self._recover()
            self._note_segments()
            log = [] if log is None else log
            log.extend((RESERVE, s.index, s.nbytes) for s in self.pool.segments.values())
            for b in self._counted():
                log += [opening(b), *[(KEEP, b.serial, 0, "kept before the log began")] * b.keeps]
            self.log = log if self.log is None else put_in(self._outer, self.log, log)
            self.release = self._release_now
            return log

    def end_log(self, log: list[Raw] | None = None) -> None:
        """End a log, by default the one that began last. Another one has, then, what those inside it have recorded so far."""
        with self.lock:
            self.drain()
            if log is not None and log is not self.log:
                take_out(self._outer, self.log or [], log)
                return
            ended, self.log = self.log, None
            if ended is not None and self._outer:
                outer, opened = self._outer[-1]
                del self._outer[-1]
                outer += ended[opened:]
                self.log = outer
            else:
                self.release = self._pending.append

    def so_far(self, log: list[Raw]) -> list[Raw]:
        """The records of a log so far, including those of the logs that are being written inside it."""
        with self.lock:
            self.drain()
            return so_far(self._outer, self.log or [], log)

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
    def latest(self) -> Peaks:
        """The peaks from the last :func:`restart` to the last drain. The caller holds the lock."""
        return self._peak_requested, self._peak_allocated, self._peak_reserved

    @latest.setter
    def latest(self, peaks: Peaks) -> None:
        self._peak_requested, self._peak_allocated, self._peak_reserved = peaks

    @property
    def present(self) -> Peaks:
        """Present figures, which peaks start from. The caller holds the lock."""
        return self._requested, self._allocated, self.pool.reserved

    def reset_peaks(self) -> None:
        """Start the peaks from what is live now. Those of stretches being measured include what was live before."""
        with self.lock:
            restart(self)
            self.earlier = NOTHING
