"""The stream that kernels are launched on, and workspaces of streams: a block for each stream, allocated once and kept.

Kernels use workspaces beside what their ops declare. They are in the scratch pool of libraries and not in the log: their size
depends on the device and not on shapes, and if ops declared them, they would be allocated on the CPU too, where they are not
needed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cupy
from cupy.cuda import runtime

from gradcore.errors import CaptureError
from gradcore.forking import long
from gradcore.memory.driver import OUT_OF_MEMORY, capturing
from gradcore.memory.resource import Block, Driver, Stream

#: By index of a device: the function that allocates workspaces, from bytes, library and op, which the CUDA device registers.
RESERVES: dict[int, Callable[[int, str, str], Any]] = {}
#: By index of a device: the function that gives what its pools have cached back to the driver and returns the bytes.
FLUSHES: dict[int, Callable[[], int]] = {}


def reserve(index: int, nbytes: int, library: str, op: str) -> Any:
    """Memory of a device: an object with an address ``ptr``, valid as long as it is held."""
    found = RESERVES.get(index)
    # Kernels can also run without a CudaDevice, as under compute-sanitizer.
    return cupy.cuda.alloc(nbytes) if found is None else found(nbytes, library, op)


def made_room(error: BaseException, index: int) -> bool:
    """Did the driver find no memory on a card for what it needs itself, and have the pools given back some that they cached?"""
    return getattr(error, "status", None) == OUT_OF_MEMORY and flushed(index)


def flushed(index: int) -> bool:
    """Have the pools of a card given back memory that they cached? Not in a capture, which waiting for the device would end."""
    return not capturing._is_owned() and FLUSHES.get(index, int)() > 0


class _Chosen(threading.local):
    """By index of a device: the stream that this thread's kernels are launched on, if not the default one."""

    def __init__(self) -> None:
        self.of: dict[int, Any] = {}


_chosen = _Chosen()
_DEFAULT = cupy.cuda.Stream.null


def stream_of(index: int) -> Any:
    """The stream that this thread's kernels on a device are launched on, an object of CuPy's.

    Not CuPy's current stream: inside ``with cupy.cuda.Stream():`` kernels would go to a stream that copies and the pool do not
    wait for.
    """
    return _chosen.of.get(index, _DEFAULT)


class _Handle:
    """A stream as an object with the CUDA stream protocol, which CuPy accepts."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


@functools.cache
def of_cupy(handle: int) -> Any:
    """CuPy's object for one of our streams, which are never destroyed."""
    return cupy.cuda.Stream.from_external(_Handle(handle)) if handle else _DEFAULT


def choose(index: int, stream: Any) -> None:
    """Launch this thread's kernels on ``stream``, an object of CuPy's, from now on."""
    _chosen.of[index] = stream


@contextmanager
def launched_on(stream: Any) -> Iterator[None]:
    """Launch this thread's kernels on ``stream`` inside the block: for kernels that are called without one of our devices."""
    index = runtime.getDevice()
    before = _chosen.of.get(index, _DEFAULT)
    _chosen.of[index] = stream
    try:
        with stream:
            yield
    finally:
        _chosen.of[index] = before


class CupysStream(Stream):
    """A stream of the user's CuPy code, with the object that must live as long as it is used."""

    __slots__ = ("_held",)

    def __init__(self, held: Any, driver: Driver) -> None:
        super().__init__(-1, held.ptr, driver)
        self._held = held


def lend(device: Any, block: Block) -> None:
    """Let CuPy's current stream, if the user has chosen another than that of a device's kernels, use a block as our streams do:
    behind the work so far, and before the bytes are another's."""
    found = cupy.cuda.get_current_stream(device.index)
    if found.ptr != device.current.handle:
        theirs = CupysStream(found, device.driver)
        device.order(device.current, theirs)
        if all(user.handle != theirs.handle for user in block.users or ()):
            block.use_on(theirs)


def on_stream() -> Any:
    """A context manager: what CuPy launches by itself inside goes to the stream of this thread's kernels."""
    return stream_of(runtime.getDevice())


def current_stream() -> int:
    """The handle of the stream that kernels are launched on."""
    handle: int = stream_of(runtime.getDevice()).ptr
    return handle


class Workspaces:
    """A block for each stream. ``make`` allocates one of ``nbytes`` bytes; ``name`` is its name in errors."""

    def __init__(self, name: str, nbytes: int, make: Callable[[int], Any]) -> None:
        self._name = name
        self._nbytes = nbytes
        self._make = make
        self._held: dict[int, Any] = {}
        self._lock = long()

    def of(self, stream: int) -> int:
        """The address of a stream's block. The first call allocates, which raises :class:`CaptureError` during a capture: call
        it before."""
        held = self._held.get(stream)
        if held is None:
            if runtime.streamIsCapturing(stream):
                raise CaptureError(f"{self._name} ({self._nbytes:,} bytes) was not allocated before the capture of this "
                                   "stream: run the step once on the stream first")
            with self._lock:
                # Another thread may have allocated it in the meantime, and may be using it.
                held = self._held.get(stream)
                if held is None:
                    held = self._held[stream] = self._make(stream)
        address: int = held.ptr
        return address

    def release(self) -> None:
        """Free the blocks. Call it when the device is done with the work that uses them."""
        self._held.clear()


#: Bytes that the blocks of one launch share: 32 partial results and a counter for each of the 1024 blocks that keep a device
#: busy (kernels/reduce.cu).
SHARED_BYTES = 1024 * (32 * 8 + 4)
#: By index of a device.
SHARED: dict[int, Workspaces] = {}


def shared() -> int:
    """The address of the memory that blocks of one launch share on the current stream; each launch leaves its counters at 0.

    Each stream has its own, since launches on different streams may run at the same time.
    """
    index = runtime.getDevice()

    def make(stream: int) -> Any:
        held = reserve(index, SHARED_BYTES, "gradcore", "sum")
        # On the stream that the memory belongs to, which is another one before a capture.
        runtime.memsetAsync(held.ptr, 0, SHARED_BYTES, current_stream())
        return held

    found = SHARED.get(index)
    if found is None:
        found = SHARED.setdefault(index, Workspaces("the memory shared by the blocks of a launch", SHARED_BYTES, make))
    return found.of(current_stream())
