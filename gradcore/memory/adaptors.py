"""Layers of the memory stack with one job each: enforce a limit, poison freed memory."""

from __future__ import annotations

from collections.abc import Callable

from gradcore.errors import SourceExhausted
from gradcore.events import UNTAGGED, Tag
from gradcore.memory.resource import Block, MemoryResource, Segment, Source, Stream


class Limit:
    """A source that has at most ``limit`` bytes reserved at any time; None means no limit."""

    def __init__(self, upstream: Source, limit: int | None = None) -> None:
        self._upstream = upstream
        self.limit = limit
        self.used = 0

    def allocate(self, nbytes: int) -> Segment:
        if self.limit is not None and self.used + nbytes > self.limit:
            raise SourceExhausted(
                f"a segment of {nbytes:,} bytes would exceed the limit of {self.limit:,} bytes: {self.used:,} bytes are "
                "reserved",
                limit=self.limit)
        segment = self._upstream.allocate(nbytes)
        self.used += nbytes
        return segment

    def deallocate(self, segment: Segment) -> None:
        self.used -= segment.nbytes
        self._upstream.deallocate(segment)


class Poison:
    """A resource that fills freed bytes with 0xFF (NaN in every float type), so that a use after free is noticed."""

    def __init__(self, upstream: MemoryResource, fill: Callable[[Block], None]) -> None:
        self._upstream = upstream
        self._fill = fill

    def allocate(self, nbytes: int, stream: Stream, tag: Tag = UNTAGGED, node: int = 0) -> Block:
        block = self._upstream.allocate(nbytes, stream, tag, node)
        self._fill(block)
        return block

    def release(self, block: Block) -> None:
        self._fill(block)
        self._upstream.release(block)
