"""Memory that the kernels of a stream work in beside what their ops declare: a block a stream, made at its first use and kept.

It lies in the library pool, beside the log and never in it: its size depends on the device and not on shapes, and if each op
declared it, it would be allocated on the CPU too, where nobody needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
from cupy.cuda import runtime

from gradcore.errors import CaptureError
from gradcore.forking import long

#: Where a device's workspaces come from, by its number, from bytes, the library and the op: the CUDA device enters itself.
RESERVES: dict[int, Callable[[int, str, str], Any]] = {}


def reserve(index: int, nbytes: int, library: str, op: str) -> Any:
    """Memory of a device, with an address ``ptr``, that stays as long as what is returned is held."""
    found = RESERVES.get(index)
    # Kernels run without a device of ours, too, as under compute-sanitizer.
    return cupy.cuda.alloc(nbytes) if found is None else found(nbytes, library, op)


def current_stream() -> int:
    """The stream that kernels are put on."""
    handle: int = cupy.cuda.get_current_stream().ptr
    return handle


class Workspaces:
    """``make`` makes a block, of ``nbytes``, for a stream; ``name`` is what an error calls it."""

    def __init__(self, name: str, nbytes: int, make: Callable[[int], Any]) -> None:
        self._name = name
        self._nbytes = nbytes
        self._make = make
        self._held: dict[int, Any] = {}
        self._lock = long()

    def of(self, stream: int) -> int:
        """The address of a stream's. Call it before a capture: the first call allocates, and then it raises
        :class:`CaptureError`."""
        held = self._held.get(stream)
        if held is None:
            if runtime.streamIsCapturing(stream):
                raise CaptureError(f"{self._name} ({self._nbytes:,} bytes) was not made before the capture of this stream: run "
                                   "the step once on it first")
            with self._lock:
                # Another thread may have been quicker, and its work may be under way already.
                held = self._held.get(stream)
                if held is None:
                    held = self._held[stream] = self._make(stream)
        address: int = held.ptr
        return address

    def release(self) -> None:
        """Give them back, once the device is done with what uses them."""
        self._held.clear()


#: Bytes of what the blocks of one launch tell each other: 32 parts, and a counter, for each block that is to keep a device busy
#: (kernels/reduce.cu).
SHARED_BYTES = 1024 * (32 * 8 + 4)
#: By the device's number.
SHARED: dict[int, Workspaces] = {}


def shared() -> int:
    """The address of what blocks of one launch share on the current stream, whose counters each launch leaves at 0: launches of
    one stream follow one another, and those of two may run at once."""
    index = runtime.getDevice()

    def make(stream: int) -> Any:
        held = reserve(index, SHARED_BYTES, "gradcore", "sum")
        runtime.memsetAsync(held.ptr, 0, SHARED_BYTES, stream)
        return held

    found = SHARED.get(index)
    if found is None:
        found = SHARED.setdefault(index, Workspaces("what blocks of one launch share", SHARED_BYTES, make))
    return found.of(current_stream())
