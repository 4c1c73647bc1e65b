"""Streams, events and graphs of the simulated GPU. Work is done as late as possible, when something waits for it.

This exposes memory that the host changes or frees too early, and missing synchronization between streams.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from ctypes import c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

from tests.card.entries import CAPTURING, GONE, INVALID, KERNEL, NO_CAPTURE, NOT_READY, UNSUPPORTED, entry, put
from tests.card.memory import Memory

#: The kind of node in a graph, and a function that does the work.
Work = tuple[int, Callable[[], Any]]
#: The default streams: null and legacy, which are the same one, and per thread.
_DEFAULT = (0, 1, 2)
_NON_BLOCKING = 1
#: The most pieces of work that a stream keeps pending; then the oldest is done.
_MOST = 64


class Queue:
    """The pending work of one stream, in order; pieces are numbered from the stream's first."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], Any]] = deque()
        self.done = 0

    @property
    def given(self) -> int:
        return self.done + len(self.waiting)

    def run(self, until: int) -> None:
        """Do the work up to piece number ``until``."""
        while self.done < until and self.waiting:
            work = self.waiting.popleft()
            self.done += 1
            work()


class Streams(Memory):
    """Streams, events, and captures. A call that is not allowed during a capture invalidates it, as with a driver."""

    def __init__(self) -> None:
        super().__init__()
        #: By handle: the captured work, or None.
        self.streams: dict[int, list[Work] | None] = dict.fromkeys(_DEFAULT)
        legacy = Queue()
        self.queues: dict[int, Queue] = {0: legacy, 1: legacy, 2: Queue()}
        #: By handle: an event's queue and position in it, and the time at which it was recorded.
        self.events: dict[int, tuple[Queue, int, int]] = {}
        # Kernels run without Python's global lock.
        self._order = threading.RLock()
        self.graphs: dict[int, list[Work]] = {}
        self.executables: dict[int, list[Work]] = {}
        #: Streams with an invalidated capture.
        self._broken: set[int] = set()
        #: By thread: the stream that is being captured.
        self._capturing: dict[int, int] = {}
        self._handles = 0x1000
        self._clock = 0

    def handle(self) -> int:
        self._handles += 16
        return self._handles

    def submit(self, stream: int | None, work: Callable[[], Any], kind: int = KERNEL) -> int:
        stream = stream or 0
        if stream not in self.streams:
            return self.fault(f"work on stream {stream:#x}, which does not exist", GONE)
        captured = self.streams[stream]
        if captured is not None:
            captured.append((kind, work))
        elif stream in _DEFAULT and self.mine():
            return self.ends()
        else:
            with self._order:
                queue = self.queues[stream]
                queue.waiting.append(work)
                if len(queue.waiting) > _MOST:
                    queue.run(queue.done + 1)
        return 0

    def drain(self, stream: int | None = None) -> None:
        """Do all work of one stream, or of all."""
        with self._order:
            for queue in list(self.queues.values()) if stream is None else [self.queues[stream]]:
                queue.run(queue.given)

    def give(self, name: str, work: Callable[[], None], stream: int) -> None:
        """Submit work of a library."""
        self.submit(stream, work)

    def mine(self) -> int:
        """The stream that this thread is capturing, 0 for none."""
        return self._capturing.get(threading.get_ident(), 0)

    def captures(self, stream: int | None) -> bool:
        """Is this stream being captured?"""
        return self.streams.get(stream or 0) is not None

    def captured(self) -> set[int]:
        """The streams that any thread is capturing."""
        return set(self._capturing.values())

    def ends(self, captured: Collection[int] = ()) -> int:
        """Invalidate this thread's capture, or the given ones."""
        self._broken.update(captured or [self.mine()])
        return CAPTURING

    @entry(c_void_p, c_uint, c_int)
    def cudaStreamCreateWithPriority(self, out: int, flags: int, priority: int) -> int:
        if flags != _NON_BLOCKING:
            return self.fault("a stream that the default stream waits for: the card has none", UNSUPPORTED)
        made = self.handle()
        self.streams[made] = None
        self.queues[made] = Queue()
        put(out, c_void_p, made)
        return 0

    @entry(c_void_p, c_uint)
    def cudaStreamCreateWithFlags(self, out: int, flags: int) -> int:
        return self.cudaStreamCreateWithPriority(out, flags, 0)

    @entry(c_void_p)
    def cudaStreamDestroy(self, stream: int) -> int:
        self.drain(stream)
        del self.streams[stream], self.queues[stream]
        return 0

    def _asked(self, stream: int | None) -> int:
        stream = stream or 0
        if stream not in self.streams:
            return self.fault(f"stream {stream:#x} does not exist", GONE)
        return self.ends() if self.streams[stream] is not None else 0

    @entry(c_void_p)
    def cudaStreamSynchronize(self, stream: int | None) -> int:
        return self._asked(stream) or self.drain(stream or 0) or 0

    @entry(c_void_p)
    def cudaStreamQuery(self, stream: int | None) -> int:
        return self._asked(stream) or self._passing(self.queues[stream or 0], self.queues[stream or 0].given)

    def _passing(self, queue: Queue, until: int) -> int:
        """Simulate passing time for a query whether work is done: do one pending piece."""
        with self._order:
            if queue.done >= until:
                return 0
            queue.run(queue.done + 1)
            return NOT_READY

    @entry(c_void_p, c_void_p, c_uint)
    def cudaStreamWaitEvent(self, stream: int | None, event: int, flags: int) -> int:
        if (stream or 0) not in self.streams or event not in self.events:
            return self.fault("a wait for an event that is gone, or on a stream", GONE)
        if self.streams[stream or 0] is not None:
            # A driver isolates a capture from what was not captured; no event here was.
            return self.ends([stream or 0])
        queue, place, _ = self.events[event]
        return self.submit(stream, lambda: queue.run(place))

    @entry(c_void_p, c_uint)
    def cudaEventCreateWithFlags(self, out: int, flags: int) -> int:
        made = self.handle()
        self.events[made] = self.queues[0], 0, 0
        put(out, c_void_p, made)
        return 0

    @entry(c_void_p)
    def cudaEventDestroy(self, event: int) -> int:
        return 0 if self.events.pop(event, None) is not None else self.fault("an event was destroyed twice", GONE)

    @entry(c_void_p, c_void_p)
    def cudaEventRecord(self, event: int, stream: int | None) -> int:
        if event not in self.events or (stream or 0) not in self.streams:
            return self.fault("an event that is gone, or a stream", GONE)
        if self.streams[stream or 0] is not None:
            return self.fault("an event of a capture: nothing could wait for it", UNSUPPORTED)
        self._clock += 1
        queue = self.queues[stream or 0]
        self.events[event] = queue, queue.given, self._clock
        return 0

    @entry(c_void_p)
    def cudaEventQuery(self, event: int) -> int:
        if event not in self.events:
            return self.fault("a question about an event that is gone", GONE)
        return self.ends() if self.mine() else self._passing(*self.events[event][:2])

    @entry(c_void_p)
    def cudaEventSynchronize(self, event: int) -> int:
        if event not in self.events:
            return self.fault("a wait for an event that is gone", GONE)
        if self.mine():
            return self.ends()
        queue, place, _ = self.events[event]
        with self._order:
            queue.run(place)
        return 0

    @entry(c_void_p, c_void_p, c_void_p)
    def cudaEventElapsedTime(self, out: int, first: int, last: int) -> int:
        if any(self.events[e][0].done < self.events[e][1] for e in (first, last)):
            return NOT_READY
        put(out, c_float, 1000.0 * (self.events[last][2] - self.events[first][2]))
        return 0

    # -- capture -----------------------------------------------------------------------------------------------------------

    @entry(c_void_p, c_int)
    def cudaStreamBeginCapture(self, stream: int | None, mode: int) -> int:
        if not stream or self.streams.get(stream, []) is not None or self.mine():
            return UNSUPPORTED
        self.streams[stream] = []
        self._capturing[threading.get_ident()] = stream
        return 0

    @entry(c_void_p, c_void_p)
    def cudaStreamEndCapture(self, stream: int, out: int) -> int:
        captured = self.streams.get(stream)
        if captured is None:
            return NO_CAPTURE
        self.streams[stream] = None
        self._capturing = {thread: s for thread, s in self._capturing.items() if s != stream}
        if stream in self._broken:
            self._broken.discard(stream)
            put(out, c_void_p, 0)
            return NO_CAPTURE
        made = self.handle()
        self.graphs[made] = captured
        put(out, c_void_p, made)
        return 0

    @entry(c_void_p, c_void_p)
    def cudaStreamIsCapturing(self, stream: int | None, out: int) -> int:
        put(out, c_int, int(self.captures(stream)))
        return 0

    @entry(c_void_p, c_void_p, c_ulonglong)
    def cudaGraphInstantiate(self, out: int, graph: int, flags: int) -> int:
        made = self.handle()
        self.executables[made] = self.graphs[graph]
        put(out, c_void_p, made)
        return 0

    @entry(c_void_p)
    def cudaGraphDestroy(self, graph: int) -> int:
        return 0 if self.graphs.pop(graph, None) is not None else self.fault("a graph was destroyed twice", INVALID)

    @entry(c_void_p)
    def cudaGraphExecDestroy(self, graph: int) -> int:
        return 0 if self.executables.pop(graph, None) is not None else self.fault("a graph was destroyed twice", INVALID)

    @entry(c_void_p, c_void_p)
    def cudaGraphLaunch(self, graph: int, stream: int | None) -> int:
        if graph not in self.executables:
            return self.fault("a graph that is gone was launched", INVALID)
        for kind, work in self.executables[graph]:
            self.submit(stream, work, kind)
        return 0

    @entry(c_void_p, c_void_p, c_void_p)
    def cuGraphGetNodes(self, graph: int, out: int | None, count: int) -> int:
        for k in range(len(self.graphs[graph]) if out else 0):
            # A node's handle, distinct from those of :meth:`handle`, which are multiples of 16.
            put((out or 0) + 8 * k, c_void_p, (graph << 32) + k + 1)
        put(count, c_size_t, len(self.graphs[graph]))
        return 0

    @entry(c_void_p, c_void_p)
    def cuGraphNodeGetType(self, node: int, out: int) -> int:
        put(out, c_int, self.graphs[node >> 32][(node & 0xFFFFFFFF) - 1][0])
        return 0
