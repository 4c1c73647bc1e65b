"""Where segments come from: the host's memory, or nowhere at all. ``devices/gpu.py`` adds the driver's."""

from __future__ import annotations

import ctypes
import mmap

from gradcore.errors import SourceExhausted
from gradcore.memory.resource import Segment
from gradcore.spec import ROUND


class HostSource:
    """Segments of host memory, aligned to :data:`~gradcore.spec.ROUND` bytes as the device's are.

    Anonymous maps are page-aligned, untouched pages cost nothing, and a closed map goes back to the system at once. They are
    private: a forked process writes to pages of its own, and not to its parent's tensors.
    """

    def allocate(self, nbytes: int) -> Segment:
        try:
            memory = mmap.mmap(-1, nbytes, access=mmap.ACCESS_COPY)
        except (OSError, ValueError, OverflowError) as error:
            raise SourceExhausted(f"the system refused {nbytes} bytes of host memory: {error}") from error
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert address % ROUND == 0
        return Segment(nbytes, address, memory)

    def deallocate(self, segment: Segment) -> None:
        # An array that a user still holds keeps the map: the last reference closes it.
        segment.memory = None


class CountingSource:
    """Segments that are only counted: the meta device computes nothing, so it needs no bytes."""

    def __init__(self) -> None:
        self._next = 0

    def allocate(self, nbytes: int) -> Segment:
        address = self._next
        self._next += nbytes
        return Segment(nbytes, address, None)

    def deallocate(self, segment: Segment) -> None:
        pass
