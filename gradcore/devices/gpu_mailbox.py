"""What differs between the launches of a captured program: copies that its first kernel makes, as the host asks for them.

The host writes a launch's copies into pinned memory, where ``kernels/mailbox.cu`` finds them: on an H200 a copy by the driver
costs the host 4.5 us, and the launch of a graph 1.7.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.devices import gpu_launch
from gradcore.devices.device import get_device
from gradcore.spec import round_up

#: How many launches the host may be ahead of the device.
SLOTS = 64
#: Bytes of device memory for the count of launches.
TURN = 16
#: Bytes in front of the slots, the address and sizes of a copy, and the bytes that a block copies.
_HEAD, _COPY, _SHARE = 256, 24, 16 << 10


class Mailbox:
    """The slots of one captured graph. ``sizes`` are the homes and the bytes of its copies, and ``turn`` the address of
    :data:`TURN` bytes of device memory, which are 0. Of each copy a launch says only where its source is.
    """

    def __init__(self, device: Any, copies: Sequence[tuple[int, int]], table: Any, turn: int, tag: int) -> None:
        self._device = device
        self._table = table
        self._copies = [*copies, *([(table.address, table.nbytes)] if table is not None else [])]
        self._turn = turn
        #: Launches so far, and the stream of the last one. Has the next one been posted?
        self._taken = 0
        self._last = device.current
        self._posted = False
        numbers = round_up(len(self._copies) * _COPY)
        self._room = numbers + (table.nbytes if table is not None else 0)
        self._storage = get_device("pinned").allocate(_HEAD + SLOTS * self._room, tag)
        block = self._storage.block
        block.use_on(device.current)
        self._address = block.address
        self._bytes = memoryview((ctypes.c_char * block.requested).from_address(block.address)).cast("B")
        self._words = self._bytes.cast("Q")
        self._words[0] = 0
        self._numbers = _HEAD + numbers
        for slot in range(SLOTS):
            start = _HEAD + slot * self._room
            sources = [0] * len(copies) + [self._address + start + numbers] * (table is not None)
            for k, ((home, nbytes), source) in enumerate(zip(self._copies, sources, strict=True)):
                at = (start + k * _COPY) // 8
                self._words[at], self._words[at + 1], self._words[at + 2] = home, source, nbytes
        self._blocks = max(1, min(-(-sum(nbytes for _, nbytes in self._copies) // _SHARE), 264))

    def post(self, sources: Sequence[int]) -> None:
        """Say where the next launch finds what it copies."""
        words = self._words
        if self._posted:
            # An error or an interrupt came, before or after the launch.
            self._device.driver.synchronize_stream(self._device.current)
            self._taken = words[0]
        taken = self._taken
        if taken - words[0] >= SLOTS:
            # The device has yet to read the slot. This is rare, so that waiting for more than that launch costs nothing.
            self._device.driver.synchronize_stream(self._last)
        self._posted = True
        start = taken % SLOTS * self._room
        at = (_HEAD + start) // 8 + 1
        for source in sources:
            words[at] = source
            at += 3
        if self._table is not None:
            first = self._numbers + start
            staged = self._table.computed()
            self._bytes[first:first + len(staged)] = staged

    def sent(self) -> None:
        """Count a launch that has been submitted on the current stream."""
        self._taken += 1
        self._last = self._device.current
        self._posted = False

    def bring(self) -> None:
        """Launch the kernel that copies, or capture it."""
        gpu_launch.start("mailbox", "bring", self._blocks, gpu_launch.BLOCK, (
            np.uint64(self._address), np.int64(self._room), np.int64(SLOTS), np.int64(len(self._copies)),
            np.uint64(self._turn)))

    def note_stream(self) -> None:
        self._storage.block.use_on(self._device.current)
