"""Pinned host memory: a block is reused only when the device copies that its last owner started are done.

The host has no queue that could wait for an event, so it waits itself, as late as possible: when bytes that a copy uses are
about to get another owner. Nothing here asks whether an event has finished, so every run writes the same log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from gradcore.events import UNTAGGED, Tag
from gradcore.forking import long
from gradcore.memory.resource import Block, Driver, MemoryResource, Stream

#: A segment's index, the first and last offset of the bytes in use there, and the event recorded behind the copy.
_Busy = tuple[int, int, int, object]


class AfterCopies:
    """A resource that waits for the copies of a block before it hands its bytes out; ``Block.users`` has the streams.

    ``segments`` has the indices of the segments that the pool has.
    """

    def __init__(self, upstream: MemoryResource, driver: Driver, segments: Container[int]) -> None:
        self._upstream = upstream
        self._segments = segments
        self._driver = driver
        self._lock = long()
        self._came: deque[_Busy] = deque()
        self._busy: list[_Busy] = []

    def allocate(self, nbytes: int, stream: Stream, tag: Tag = UNTAGGED, node: int = 0) -> Block:
        block = self._upstream.allocate(nbytes, stream, tag, node)
        try:
            self._wait_for(block)
        except BaseException:
            self._upstream.release(block)
            raise
        return block

    def release(self, block: Block) -> None:
        # Finalizers come here, so this only appends and takes no lock.
        users, block.users = block.users, None
        for stream in users or ():
            if stream.handle is None:
                # A CPU stream: its ops are done when they return.
                continue
            event = (stream.driver or self._driver).record(stream)
            self._came.append((block.segment.index, block.offset, block.offset + block.size, event))
        self._upstream.release(block)

    def _wait_for(self, block: Block) -> None:
        with self._lock:
            while self._came:
                self._busy.append(self._came.popleft())
            begin, end = block.offset, block.offset + block.size
            mine = [b for b in self._busy if b[0] not in self._segments
                    or (b[0] == block.segment.index and b[1] < end and begin < b[2])]
            for busy in mine:
                # Forgotten only after the wait succeeded; segments went back to their source behind all copies.
                if busy[0] in self._segments:
                    self._driver.synchronize_event(busy[3])
                self._busy.remove(busy)
                self._driver.destroy_event(busy[3])
