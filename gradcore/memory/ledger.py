"""The outermost layer: whom every live byte belongs to, and the log while one is being written.

The ledger holds the one lock of the stack. A finaliser may run inside ``allocate`` on the same thread, so ``deallocate``
never waits for the lock: if it is taken, the block joins a list that the next caller empties.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gradcore.errors import OutOfMemory, SourceExhausted
from gradcore.events import ALLOC, FREE, KEEP, RESERVE, RETAG, UNRESERVE, Raw
from gradcore.memory.pool import Pool
from gradcore.memory.resource import Block, MemoryResource, Stream


class Ledger:
    """Counts, owners and log of one device's memory. All sizes are bytes."""

    def __init__(self, upstream: MemoryResource, pool: Pool, explain: Callable[[Ledger, OutOfMemory], str]) -> None:
        self._upstream = upstream
        self._explain = explain
        self._lock = threading.Lock()
        self._pending: list[tuple[Block, int]] = []
        self.pool = pool
        self.requested = 0
        self.allocated = 0
        self.peak_requested = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        #: The log that is being written, or None. Appending is all that the hot path does with it.
        self.log: list[Raw] | None = None

    # -- blocks --------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: Stream, tag: int = 0, node: int = 0) -> Block:
        """A tagged block. Raises :class:`OutOfMemory`, whose text names the top holders; nothing has changed then."""
        self._lock.acquire()
        try:
            if self._pending:
                self._drain()
            block = self._upstream.allocate(nbytes, stream, tag, node)
            total = self.requested = self.requested + nbytes
            if total > self.peak_requested:
                self.peak_requested = total
            total = self.allocated = self.allocated + block.size
            if total > self.peak_allocated:
                self.peak_allocated = total
            if self.pool.changes:
                self._note_segments()
            if self.log is not None:
                self.log.append((ALLOC, block.serial, block.segment.index, block.offset, nbytes, block.size, stream.index, tag,
                                 node))
            return block
        except (OutOfMemory, SourceExhausted) as error:
            failure = error
        finally:
            self._lock.release()
        # Outside the lock, and from the books: a traceback would pin the frames and what they hold.
        raise self._out_of_memory(failure, nbytes)

    def deallocate(self, block: Block, serial: int) -> None:
        """Give a block back, now or as soon as the lock is free. Safe to call from a finaliser."""
        if not self._lock.acquire(False):
            self._pending.append((block, serial))
            return
        try:
            # _free, in line: this is the way that nearly every block goes.
            self._upstream.deallocate(block, serial)
            self.requested -= block.requested
            self.allocated -= block.size
            if self.log is not None:
                self.log.append((FREE, serial))
            if self._pending:
                self._drain()
        finally:
            self._lock.release()

    def _drain(self) -> None:
        pending = self._pending
        while pending:
            block, serial = pending.pop(0)
            self._upstream.deallocate(block, serial)
            self.requested -= block.requested
            self.allocated -= block.size
            if self.log is not None:
                self.log.append((FREE, serial))

    def _out_of_memory(self, error: OutOfMemory | SourceExhausted, nbytes: int) -> OutOfMemory:
        with self.settled():
            self._note_segments()
        failure = error if isinstance(error, OutOfMemory) else OutOfMemory(str(error), limit=error.limit)
        failure = OutOfMemory(str(failure), asked=nbytes, live=self.allocated, cached=self.pool.cached,
                              largest_free=self.pool.largest_free, limit=failure.limit)
        return OutOfMemory(self._explain(self, failure), asked=nbytes, live=failure.live, cached=failure.cached,
                           largest_free=failure.largest_free, limit=failure.limit)

    def _note_segments(self) -> None:
        changes, self.pool.changes = self.pool.changes, []
        self.peak_reserved = max(self.peak_reserved, self.pool.reserved)
        if self.log is not None:
            self.log.extend((RESERVE if came else UNRESERVE, index, nbytes) for came, index, nbytes in changes)

    # -- who owns what -------------------------------------------------------------------------------------------------

    def retag(self, block: Block, tag: int) -> None:
        """The block belongs to somebody else from here on."""
        if block.tag != tag:
            block.tag = tag
            if self.log is not None:
                self.log.append((RETAG, block.serial, tag))

    @property
    def live(self) -> dict[int, Block]:
        """Live blocks by serial, in order of allocation."""
        return self.pool.live

    # -- logs and figures ----------------------------------------------------------------------------------------------

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Hold the lock with nothing pending, to read figures that agree with each other."""
        with self._lock:
            self._drain()
            yield

    def begin_log(self) -> list[Raw]:
        """Start a log. It opens with what is there: segments, live blocks, and what of them is kept."""
        with self.settled():
            self._note_segments()
            log: list[Raw] = [(RESERVE, s.index, s.nbytes) for s in self.pool.segments.values()]
            for b in self.live.values():
                log.append((ALLOC, b.serial, b.segment.index, b.offset, b.requested, b.size, b.stream.index, b.tag,
                            b.node))
                log.extend([(KEEP, b.serial, 0, "kept before the log began")] * b.keeps)
            self.log = log
            return log

    def end_log(self) -> None:
        with self.settled():
            self.log = None

    def flush(self) -> int:
        """Give wholly free segments back; returns their bytes."""
        with self.settled():
            freed = self.pool.flush()
            self._note_segments()
            return freed

    def reset_peaks(self) -> None:
        with self.settled():
            self.peak_requested, self.peak_allocated = self.requested, self.allocated
            self.peak_reserved = self.pool.reserved
