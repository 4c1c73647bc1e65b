"""CUDA graphs: captures the work that a thread submits to a stream, to be launched as one.

The runtime is an argument, so that tests can replace it. Nothing may be allocated during a capture: memory is planned before.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from gradcore.devices.gpu.faults import Watch, raise_fault
from gradcore.devices.gpu.mailbox import TURN, Copies, Mailbox
from gradcore.devices.gpu.numbers import Numbers
from gradcore.devices.gpu.workspaces import made_room
from gradcore.errors import CaptureError, OutOfMemory
from gradcore.events import UNTAGGED, Tag
from gradcore.forking import long
from gradcore.memory.driver import DEVICE_TO_DEVICE, HOST_TO_DEVICE, OUT_OF_MEMORY, capturing
from gradcore.memory.resource import Block, MemoryResource, Stream

# Calls that are forbidden during a capture (cudaMalloc, waiting for the device) fail in this thread only.
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal


class Graph:
    """A captured sequence of launches. It owns no memory: its holder must keep the memory that the launches use.

    The stream that it was captured on is reserved for it, since a library's workspace belongs to a stream.
    """

    def __init__(self, cuda: Any, stream: Stream, idle: list[tuple[Stream, Stream]], index: int) -> None:
        self._cuda = cuda
        self._handle = 0
        self._index = index
        self._stream = self._last = stream
        self._idle = idle

    def instantiate(self, graph: int) -> None:
        """Make what can be launched of a graph that was captured."""
        while True:
            try:
                self._handle = self._cuda.graphInstantiate(graph)
                return
            except self._cuda.CUDARuntimeError as error:
                if not made_room(error, self._index):
                    raise

    def launch(self, stream: Stream) -> None:
        """Launch on ``stream``, after the work submitted to it so far and after earlier launches of this graph. Raises
        :class:`~gradcore.errors.OutOfMemory`."""
        self._last = stream
        while True:
            try:
                self._cuda.graphLaunch(self._handle, stream.handle)
                return
            except self._cuda.CUDARuntimeError as error:
                raise_fault(error, "launching a program")
                if error.status != OUT_OF_MEMORY:
                    raise
                # The driver brings a graph to the card when it is launched.
                if not made_room(error, self._index):
                    raise OutOfMemory("out of memory: the driver has no room on the card for a captured program, and the pools "
                                      "have nothing cached") from error

    def __del__(self) -> None:
        # The driver keeps a graph that is still running. At exit the driver may be unloaded already.
        try:
            if self._handle:
                self._cuda.graphExecDestroy(self._handle)
        except self._cuda.CUDARuntimeError:
            pass
        finally:
            self._idle.append((self._stream, self._last))


class Refusing:
    """A device's memory during a capture: allocations by the thread that captures raise CaptureError."""

    def __init__(self, upstream: MemoryResource, thread: int) -> None:
        self._upstream = upstream
        self._thread = thread

    def allocate(self, nbytes: int, stream: Stream, tag: Tag = UNTAGGED, node: int = 0) -> Block:
        refuse(self._thread, nbytes)
        return self._upstream.allocate(nbytes, stream, tag, node)

    @property
    def release(self) -> Callable[[Block], None]:
        return self._upstream.release


def refuse(thread: int | None, nbytes: int) -> None:
    """Raise CaptureError if ``thread``, which captures, is the calling thread, which asks for ``nbytes`` bytes."""
    if thread == threading.get_ident():
        raise CaptureError(f"{nbytes:,} bytes were allocated during a capture, in which all memory must be planned")


class Graphs:
    """Captures and copies for the graphs of one device."""

    #: Of all devices, since there is one garbage collector, which is disabled meanwhile.
    _lock = long()

    def __init__(self, device: Any, cuda: Any) -> None:
        self._device = device
        self._cuda = cuda
        #: Streams for captures that no live graph has, since each live graph needs one of its own; and the stream on which the
        #: graph before was launched last, which may still run, in the same workspaces.
        self._idle: list[tuple[Stream, Stream]] = []

    def capture(self, run: Callable[[], None]) -> Graph:
        """The work that ``run`` submits to the current stream, as a graph; nothing of it runs now.

        All kernels must have been launched before, so that they are compiled and loaded. Raises what ``run`` raises, and
        :class:`CaptureError` for an allocation; the state is unchanged then.
        """
        device, cuda = self._device, self._cuda
        with self._lock, Watch("capturing a program"):
            reserved: tuple[Stream, Stream] | None = None
            enabled, graph = gc.isenabled(), 0
            # Statements, and no ExitStack: an interrupt between two of its calls would leave a capture open.
            try:
                # Objects that garbage collection destroys may call the driver.
                gc.disable()
                if self._idle:
                    reserved = self._idle[-1]
                    # Another thread may have dropped a graph since, whose stream is the last one now.
                    self._idle.remove(reserved)
                else:
                    reserved = (stream := Stream(-1, device.driver.create_stream(0))), stream
                stream, last = reserved
                device.order(last, stream)
                device.prepare_capture(stream)
                device.launch_on(stream)
                device.refuse_memory(threading.get_ident())
                with capturing:
                    try:
                        cuda.streamBeginCapture(stream.handle, _THREAD_LOCAL)
                        run()
                        graph = cuda.streamEndCapture(stream.handle)
                    except BaseException:
                        self._abandon(stream)
                        raise
                made = Graph(cuda, stream, self._idle, device.index)
                # It gives the stream back.
                reserved = None
                made.instantiate(graph)
                return made
            except BaseException:
                if reserved is not None:
                    self._take_back(*reserved)
                raise
            finally:
                try:
                    self._leave()
                except BaseException:
                    # An interrupt: all of it may be done twice.
                    self._leave()
                    raise
                finally:
                    try:
                        if enabled:
                            gc.enable()
                    finally:
                        if graph:
                            cuda.graphDestroy(graph)

    def _leave(self) -> None:
        """Let this thread go on as before a capture."""
        self._device.refuse_memory(None)
        self._device.launch_on(self._device.current)

    def _abandon(self, stream: Stream) -> None:
        """End a capture that failed, if the driver has not ended it already."""
        with suppress(self._cuda.CUDARuntimeError):
            graph = self._cuda.streamEndCapture(stream.handle)
            if graph:
                self._cuda.graphDestroy(graph)

    def _take_back(self, stream: Stream, last: Stream) -> None:
        """Reuse a stream for later captures, unless it is stuck in a capture."""
        # CuPy raises RuntimeError if a capture was broken and not ended.
        with suppress(RuntimeError, self._cuda.CUDARuntimeError):
            if not self._cuda.streamIsCapturing(stream.handle) and all(other is not stream for other, _ in self._idle):
                self._idle.append((stream, last))

    # -- what a captured program finds at addresses that stay --------------------------------------------------------------

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes on the device, on the current stream."""
        self._cuda.memcpyAsync(target, source, nbytes, DEVICE_TO_DEVICE, self._device.current.handle)

    def copy_array(self, source: Any, target: Any) -> None:
        """Copy an array to another of the same dtype and shape, both contiguous, on the current stream."""
        if source.nbytes:
            self.copy(target.data.ptr, source.data.ptr, source.nbytes)

    def _send(self, target: int, source: int, nbytes: int) -> None:
        stream = self._device.current.handle
        self._cuda.memcpyAsync(target, source, nbytes, HOST_TO_DEVICE, stream)
        if not self._device.staged:
            self._cuda.streamSynchronize(stream)

    #: Bytes of device memory that a mailbox needs.
    turn = TURN

    def mailbox(self, into: Copies, out: Copies, table: Numbers | None, turn: int, tag: Tag) -> Mailbox | None:
        """A mailbox for a graph, None for one that copies nothing into the program."""
        if not into and table is None:
            return None
        zeros = np.zeros(TURN, np.uint8)
        self._send(turn, zeros.ctypes.data, zeros.nbytes)
        return Mailbox(self._device, into, out, table, turn, tag)

    def numbers(self, count: int, address: int) -> Numbers:
        """A table for the numbers of up to ``count`` ops, ``count * ROOM`` bytes from ``address`` on."""
        return Numbers(count, address, self._send)
