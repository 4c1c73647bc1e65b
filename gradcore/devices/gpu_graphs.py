"""CUDA graphs: the work that a thread submits to a stream during a capture becomes one launch.

The runtime is an argument, as everywhere. A capture takes memory from nowhere: whoever asks for a graph has planned it.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from gradcore.devices.gpu_faults import Watch, raise_fault
from gradcore.devices.gpu_numbers import Numbers
from gradcore.errors import CaptureError
from gradcore.forking import long
from gradcore.memory.resource import Block, MemoryResource, Stream

# What this thread must not call while it captures (cudaMalloc, waiting for the device) is an error; other threads may.
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal
_DEVICE_TO_DEVICE, _HOST_TO_DEVICE = 3, 1


class Graph:
    """A captured sequence of launches. It owns no memory: whoever holds it holds what the launches touch.

    It keeps the stream that it was captured on to itself, since a library's workspace belongs to a stream.
    """

    def __init__(self, cuda: Any, handle: int, stream: Stream, idle: list[Stream]) -> None:
        self._cuda = cuda
        self._handle = handle
        self._stream = stream
        self._idle = idle

    def launch(self, stream: Stream) -> None:
        """Behind what ``stream`` has been given, and behind the launches before."""
        try:
            self._cuda.graphLaunch(self._handle, stream.handle)
        except self._cuda.CUDARuntimeError as error:
            raise_fault(error, "a program was launched")
            raise

    def __del__(self) -> None:
        # What is still to run of it, the driver keeps. At the end of the process the driver may be gone before.
        with suppress(self._cuda.CUDARuntimeError):
            self._cuda.graphExecDestroy(self._handle)
        self._idle.append(self._stream)


class Refusing:
    """A device's memory while a thread captures, which gets none of it."""

    def __init__(self, upstream: MemoryResource, thread: int) -> None:
        self._upstream = upstream
        self._thread = thread

    def allocate(self, nbytes: int, stream: Stream, tag: int = 0, node: int = 0) -> Block:
        refuse(self._thread, nbytes)
        return self._upstream.allocate(nbytes, stream, tag, node)

    def deallocate(self, block: Block, serial: int) -> None:
        self._upstream.deallocate(block, serial)

    @property
    def release(self) -> Callable[[Block], None]:
        return self._upstream.release


def refuse(thread: int | None, nbytes: int) -> None:
    """Raise CaptureError if the thread that asks for memory is the one that captures."""
    if thread == threading.get_ident():
        raise CaptureError(f"{nbytes:,} bytes were allocated during the capture, whose memory is planned")


class Graphs:
    """The graphs of one device."""

    def __init__(self, device: Any, cuda: Any) -> None:
        self._device = device
        self._cuda = cuda
        #: Streams that captured and have no graph now. A stream a live graph: as many as were ever alive at once.
        self._idle: list[Stream] = []
        self._lock = long()

    def capture(self, run: Callable[[], None]) -> Graph:
        """What ``run`` gives to the current stream, as a graph; nothing of it runs now.

        Everything must have been launched before, so that it is compiled and loaded. Raises what ``run`` raises, and
        :class:`CaptureError` for an allocation; then nothing has changed.
        """
        device, cuda = self._device, self._cuda
        with self._lock, Watch("a program was captured"), ExitStack() as always, ExitStack() as failed:
            if gc.isenabled():
                # What a collection destroys may call the driver.
                always.callback(gc.enable)
                gc.disable()
            stream = self._idle.pop() if self._idle else Stream(-1, device.driver.create_stream(0))
            failed.callback(self._take_back, stream)
            device.prepare_capture(stream)
            always.callback(device.activate, device.current)
            device.activate(stream)
            always.callback(device.refuse_memory, None)
            device.refuse_memory(threading.get_ident())
            cuda.streamBeginCapture(stream.handle, _THREAD_LOCAL)
            failed.callback(self._abandon, stream)
            run()
            graph = cuda.streamEndCapture(stream.handle)
            always.callback(cuda.graphDestroy, graph)
            made = Graph(cuda, cuda.graphInstantiate(graph), stream, self._idle)
            failed.pop_all()
            return made

    def _abandon(self, stream: Stream) -> None:
        """End a capture that failed. The driver may have ended it, which is why the caller has an error already."""
        with suppress(self._cuda.CUDARuntimeError):
            graph = self._cuda.streamEndCapture(stream.handle)
            if graph:
                self._cuda.graphDestroy(graph)

    def _take_back(self, stream: Stream) -> None:
        """A stream that captures nothing any more may capture again; one that is stuck in a capture is given up."""
        # CuPy says by RuntimeError that a capture was broken and not ended.
        with suppress(RuntimeError, self._cuda.CUDARuntimeError):
            if not self._cuda.streamIsCapturing(stream.handle):
                self._idle.append(stream)

    # -- what a captured program finds at addresses that stay --------------------------------------------------------------

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes on the device, on the current stream."""
        self._cuda.memcpyAsync(target, source, nbytes, _DEVICE_TO_DEVICE, self._device.current.handle)

    def copy_array(self, source: Any, target: Any) -> None:
        """Copy an array to another of its type and shape, both contiguous."""
        if source.nbytes:
            self.copy(target.data.ptr, source.data.ptr, source.nbytes)

    def _send(self, target: int, source: int, nbytes: int) -> None:
        self._cuda.memcpyAsync(target, source, nbytes, _HOST_TO_DEVICE, self._device.current.handle)

    def numbers(self, count: int, address: int) -> Numbers:
        """Numbers of up to ``count`` ops, in ``count`` times ``ROOM`` bytes from ``address`` on."""
        return Numbers(count, address, self._send)
