"""The calls to the CUDA runtime for memory, streams, events and graphs.

The runtime is an argument. On a GPU it is CuPy's module ``cupy.cuda.runtime``; tests of the pool and of streams pass a
simulated one with a schedule of faults, which needs neither a driver nor CuPy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

from gradcore.errors import SourceExhausted
from gradcore.forking import long
from gradcore.memory.resource import Segment, Stream

# Numbers of the CUDA runtime: cudaErrorMemoryAllocation, cudaErrorNotReady, kinds of copies, and flags of its calls.
OUT_OF_MEMORY, NOT_READY = 2, 600
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
_DISABLE_TIMING, _NON_BLOCKING, _PORTABLE = 2, 1, 1

#: Held by a thread that captures a graph: no thread may wait for the whole of a device meanwhile, which would end the capture.
capturing: Any = long()


class Runtime(Protocol):
    """The calls of the CUDA runtime, under CuPy's names; each raises ``CUDARuntimeError``, which has a ``status``."""

    CUDARuntimeError: Any

    def setDevice(self, index: int) -> None: ...
    def malloc(self, nbytes: int) -> int: ...
    def free(self, address: int) -> None: ...
    def memGetInfo(self) -> tuple[int, int]: ...
    def hostAlloc(self, nbytes: int, flags: int) -> int: ...
    def freeHost(self, address: int) -> None: ...
    def streamCreateWithPriority(self, flags: int, priority: int) -> int: ...
    def streamQuery(self, stream: int) -> Any: ...
    def streamSynchronize(self, stream: int) -> None: ...
    def streamWaitEvent(self, stream: int, event: int, flags: int) -> None: ...
    def eventCreateWithFlags(self, flags: int) -> int: ...
    def eventDestroy(self, event: int) -> None: ...
    def eventRecord(self, event: int, stream: int) -> None: ...
    def eventQuery(self, event: int) -> Any: ...
    def eventSynchronize(self, event: int) -> None: ...
    def eventElapsedTime(self, first: int, last: int) -> float: ...
    def deviceSynchronize(self) -> None: ...
    def streamBeginCapture(self, stream: int, mode: int) -> None: ...
    def streamEndCapture(self, stream: int) -> int: ...
    def streamIsCapturing(self, stream: int) -> bool: ...
    def graphInstantiate(self, graph: int) -> int: ...
    def graphDestroy(self, graph: int) -> None: ...
    def graphLaunch(self, graph: int, stream: int) -> None: ...
    def graphExecDestroy(self, graph: int) -> None: ...


class CudaSource:
    """Segments from cudaMalloc. ``owner(address, nbytes)`` makes the object that the device builds arrays over."""

    def __init__(self, index: int, cuda: Runtime, owner: Callable[[int, int], Any] | None = None) -> None:
        self._index = index
        self._cuda = cuda
        self._owner = owner

    def allocate(self, nbytes: int) -> Segment:
        self._cuda.setDevice(self._index)
        address = _or_exhausted(self._cuda, lambda: self._cuda.malloc(nbytes),
                                f"cudaMalloc could not allocate {nbytes:,} bytes on cuda:{self._index}", self._used)
        return Segment(nbytes, address, None if self._owner is None else self._owner(address, nbytes))

    def deallocate(self, segment: Segment) -> None:
        segment.memory = None
        self._cuda.free(segment.address)

    def _used(self) -> int | None:
        """The bytes in use on the card, by this process and others; None if the driver does not tell."""
        try:
            free, total = self._cuda.memGetInfo()
        except self._cuda.CUDARuntimeError:
            return None
        return total - free


class PinnedSource:
    """Segments of pinned host memory from cudaHostAlloc, which every device can copy from and to asynchronously.

    CuPy's own pool of pinned memory rounds up to powers of two and asks whether events have finished; this does neither.
    """

    def __init__(self, cuda: Runtime) -> None:
        self._cuda = cuda

    def allocate(self, nbytes: int) -> Segment:
        address = _or_exhausted(self._cuda, lambda: self._cuda.hostAlloc(nbytes, _PORTABLE),
                                f"cudaHostAlloc could not allocate {nbytes:,} bytes of pinned host memory")
        return Segment(nbytes, address, (ctypes.c_char * nbytes).from_address(address))

    def deallocate(self, segment: Segment) -> None:
        segment.memory = None
        self._cuda.freeHost(segment.address)


def _or_exhausted(cuda: Runtime, call: Callable[[], int], text: str, used: Callable[[], int | None] = lambda: None) -> int:
    try:
        return call()
    except cuda.CUDARuntimeError as error:
        if error.status != OUT_OF_MEMORY:
            raise
        raise SourceExhausted(text, used=used()) from error


class CudaDriver:
    """Streams and events of one GPU; a call that fails leaves no event behind."""

    def __init__(self, cuda: Runtime, index: int = 0) -> None:
        self._cuda = cuda
        self._index = index

    def record(self, stream: Stream) -> Any:
        event = self.create_event(False)
        try:
            self._cuda.eventRecord(event, stream.handle)
        except BaseException:
            self._cuda.eventDestroy(event)
            raise
        return event

    def wait(self, stream: Stream, event: Any) -> None:
        try:
            self._cuda.streamWaitEvent(stream.handle, event, 0)
        finally:
            # The driver keeps a destroyed event until the work that waits for it is done.
            self._cuda.eventDestroy(event)

    def synchronize(self) -> None:
        with capturing:
            self._cuda.deviceSynchronize()

    def create_stream(self, priority: int) -> int:
        self._cuda.setDevice(self._index)
        # Non-blocking: it must not be ordered with the default stream implicitly.
        return self._cuda.streamCreateWithPriority(_NON_BLOCKING, priority)

    def stream_done(self, stream: Stream) -> bool:
        return self._done(lambda: self._cuda.streamQuery(stream.handle))

    def synchronize_stream(self, stream: Stream) -> None:
        self._cuda.streamSynchronize(stream.handle)

    def create_event(self, timing: bool) -> int:
        self._cuda.setDevice(self._index)
        return self._cuda.eventCreateWithFlags(0 if timing else _DISABLE_TIMING)

    def destroy_event(self, event: Any) -> None:
        self._cuda.eventDestroy(event)

    def record_event(self, event: Any, stream: Stream) -> None:
        self._cuda.eventRecord(event, stream.handle)

    def wait_event(self, stream: Stream, event: Any) -> None:
        self._cuda.streamWaitEvent(stream.handle, event, 0)

    def event_done(self, event: Any) -> bool:
        return self._done(lambda: self._cuda.eventQuery(event))

    def synchronize_event(self, event: Any) -> None:
        self._cuda.eventSynchronize(event)

    def elapsed(self, first: Any, last: Any) -> float:
        return self._cuda.eventElapsedTime(first, last)

    def _done(self, query: Callable[[], Any]) -> bool:
        """Is the status of a query 0? CuPy returns it or raises it, depending on the call."""
        try:
            status = query() or 0
        except self._cuda.CUDARuntimeError as error:
            if error.status != NOT_READY:
                raise
            status = NOT_READY
        if status not in (0, NOT_READY):
            raise self._cuda.CUDARuntimeError(status)
        return bool(status == 0)
