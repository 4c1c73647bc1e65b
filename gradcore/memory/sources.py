"""Sources of segments: host memory, and a counter for the meta device. Those of CUDA are in :mod:`gradcore.memory.driver`."""

from __future__ import annotations

import ctypes
import mmap

from gradcore.errors import SourceExhausted
from gradcore.memory.resource import Segment
from gradcore.spec import ROUND


class HostSource:
    """Segments of host memory, aligned to :data:`~gradcore.spec.ROUND` bytes as on a GPU.

    They are anonymous maps: page-aligned, free until touched, and returned to the system at once when closed. The maps are
    private, so a forked process writes to its own pages and not to its parent's tensors.
    """

    def allocate(self, nbytes: int) -> Segment:
        try:
            memory = mmap.mmap(-1, nbytes, access=mmap.ACCESS_COPY)
        except (OSError, ValueError, OverflowError) as error:
            raise SourceExhausted(f"the system could not allocate {nbytes:,} bytes of host memory: {error}") from error
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert address % ROUND == 0
        return Segment(nbytes, address, memory)

    def deallocate(self, segment: Segment) -> None:
        # A user's array may still refer to the map, which closes with its last reference.
        segment.memory = None


class CountingSource:
    """Segments without memory, for the meta device, which computes nothing: addresses are only counted up."""

    def __init__(self) -> None:
        self._next = 0

    def allocate(self, nbytes: int) -> Segment:
        address = self._next
        self._next += nbytes
        return Segment(nbytes, address, None)

    def deallocate(self, segment: Segment) -> None:
        pass
