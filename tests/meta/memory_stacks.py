"""Memory stacks for tests: slow, tiny or failing sources, failing allocations, and a driver that simulates streams."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from gradcore.errors import OutOfMemory, SourceExhausted
from gradcore.events import UNTAGGED, Tag
from gradcore.memory.resource import Block, MemoryResource, Segment, Source, Stream
from gradcore.memory.sources import CountingSource, HostSource
from gradcore.memory.stack import Stack, build
from gradcore.memory.streams import NoDriver

MiB = 1 << 20


class Slow:
    """A slow source, so that threads meet inside it."""

    def __init__(self, upstream: Source) -> None:
        self._upstream = upstream

    def allocate(self, nbytes: int) -> Segment:
        time.sleep(0.001)
        return self._upstream.allocate(nbytes)

    def deallocate(self, segment: Segment) -> None:
        self._upstream.deallocate(segment)


class Failing:
    """A source of which the calls with given numbers (from 1) fail."""

    def __init__(self, upstream: Source, allocations: Collection[int] = (), deallocations: Collection[int] = ()) -> None:
        self._upstream = upstream
        self.allocations, self.deallocations = set(allocations), set(deallocations)
        self.came = self.went = 0

    def allocate(self, nbytes: int) -> Segment:
        self.came += 1
        if self.came in self.allocations:
            raise SourceExhausted(f"the source failed on {nbytes} bytes")
        return self._upstream.allocate(nbytes)

    def deallocate(self, segment: Segment) -> None:
        self.went += 1
        if self.went in self.deallocations:
            raise RuntimeError("the driver is gone")
        self._upstream.deallocate(segment)


class Fault:
    """A resource whose allocations with the given numbers (from 1) raise :class:`OutOfMemory`."""

    def __init__(self, upstream: MemoryResource, fail_at: Collection[int]) -> None:
        self._upstream = upstream
        self.fail_at = set(fail_at)
        self.count = 0

    def allocate(self, nbytes: int, stream: Stream, tag: Tag = UNTAGGED, node: int = 0) -> Block:
        self.count += 1
        if self.count in self.fail_at:
            raise OutOfMemory(f"out of memory: injected failure of allocation {self.count}, {nbytes} bytes", asked=nbytes)
        return self._upstream.allocate(nbytes, stream, tag, node)

    def release(self, block: Block) -> None:
        self._upstream.release(block)


class Events:
    """A driver that records its calls, and tracks what each stream has waited for.

    Each stream has a vector clock, which its own work advances by one tick.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.clocks: dict[Stream, dict[Stream, int]] = {}

    def _clock(self, stream: Stream) -> dict[Stream, int]:
        return self.clocks.setdefault(stream, {stream: 0})

    def work(self, stream: Stream) -> tuple[Stream, int]:
        """Submit work to a stream; returns the moment at which it will be done."""
        clock = self._clock(stream)
        clock[stream] += 1
        return stream, clock[stream]

    def follows(self, stream: Stream, moment: tuple[Stream, int]) -> bool:
        """Whether work submitted to ``stream`` from now on runs after ``moment``."""
        return self._clock(stream).get(moment[0], 0) >= moment[1]

    def record(self, stream: Stream) -> dict[Stream, int]:
        self.calls.append(("record", stream.index))
        return dict(self._clock(stream))

    def wait(self, stream: Stream, event: dict[Stream, int]) -> None:
        self.calls.append(("wait", stream.index))
        clock = self._clock(stream)
        for other, tick in event.items():
            clock[other] = max(clock.get(other, 0), tick)

    def synchronize(self) -> None:
        self.calls.append(("synchronize",))


def stack(kind: str = "counting", *, limit: int | None = None, source: Source | None = None, driver: Any = None,
          fail_at: Collection[int] | None = None, poison: Any = None) -> Stack:
    if source is None:
        source = HostSource() if kind == "host" else CountingSource()
    made = build(source, driver or NoDriver(), limit=limit, poison=poison)
    return made if fail_at is None else replace(made, top=Fault(made.top, fail_at))
