"""What differs between the launches of a captured program: copies that its first kernel makes, as the host asks for them.

The host writes a launch's copies into pinned memory, where ``kernels/mailbox.cu`` finds them: on an H200 a copy by the driver
costs the host 4.5 us, and the launch of a graph 1.7.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from gradcore.devices.device import get_device
from gradcore.devices.gpu import launch
from gradcore.events import Tag
from gradcore.spec import round_up

#: How many launches the host may be ahead of the device.
SLOTS = 64
#: Bytes of device memory for the count of launches.
TURN = 16
#: Bytes in front of the slots, those that say what to copy, those that a block copies, and the most blocks.
_HEAD, _COPY, _SHARE, _MOST = 256, 24, 16 << 10, 264
#: Addresses, each with a number of bytes.
Copies = Sequence[tuple[int, int]]


class Mailbox:
    """The slots of one captured graph. A launch copies ``into`` the program from where it says, and ``out`` of it to where it
    says: both are addresses in the program's memory with numbers of bytes. The ``table`` of numbers is copied too. At ``turn``
    are :data:`TURN` bytes of device memory, which are 0.
    """

    def __init__(self, device: Any, into: Copies, out: Copies, table: Any, turn: int, tag: Tag) -> None:
        self._device = device
        self._table = table
        self._turn = turn
        #: Launches so far, and the stream of the last one. Has the next one been posted?
        self._taken = 0
        self._last = device.current
        self._posted = False
        numbers = [] if table is None else [(table.address, table.nbytes)]
        self._brought = len(into) + len(numbers)
        self._out = out
        # Numbers come over the bus, meanwhile other blocks make the copies.
        self._blocks = [max(_blocks_for([*into, *numbers]), 2 if into and numbers else 1), _blocks_for(out)]
        head = round_up((self._brought + len(out)) * _COPY)
        self._room = head + sum(nbytes for _, nbytes in numbers)
        self._storage = get_device("pinned").allocate(_HEAD + SLOTS * self._room, tag)
        block = self._storage.block
        block.use_on(device.current)
        self._address = block.address
        self._bytes = memoryview((ctypes.c_char * block.requested).from_address(block.address)).cast("B")
        self._words = self._bytes.cast("Q")
        self._words[0] = 0
        self._numbers = _HEAD + head
        for slot in range(SLOTS):
            start = _HEAD + slot * self._room
            copies = [*[(home, 0, nbytes) for home, nbytes in into],
                      *[(home, block.address + start + head, nbytes) for home, nbytes in numbers],
                      *[(0, home, 0) for home, _ in out]]
            for k, word in enumerate(chain(*copies)):
                self._words[start // 8 + k] = word

    def post(self, sources: Sequence[int], targets: Sequence[int] = ()) -> None:
        """Say where the next launch finds what it copies, and where it leaves what it returns, unless it returns nothing."""
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
            at += 3
        if targets:
            for target, (_, nbytes) in zip(targets, self._out, strict=True):
                words[at - 1], words[at + 1] = target, nbytes
                at += 3
        else:
            for _ in self._out:
                words[at + 1] = 0
                at += 3

    def sent(self) -> None:
        """Count a launch that has been submitted on the current stream."""
        self._taken += 1
        self._last = self._device.current
        self._posted = False

    def bring(self) -> None:
        """Begin a graph that is being captured."""
        self._start(0, 0, self._brought, not self._out)

    def deliver(self) -> None:
        """End a graph that is being captured."""
        if self._out:
            self._start(1, self._brought, self._brought + len(self._out), True)

    def bring_alone(self) -> None:
        """Copy what was posted for programs that are not launched as a graph."""
        self._start(0, 0, self._brought, True)
        self.sent()

    def _start(self, which: int, first: int, last: int, ends: bool) -> None:
        self._device.here(launch.start)("mailbox", "bring", self._blocks[which], launch.BLOCK, (
            np.uint64(self._address), np.int64(self._room), np.int64(SLOTS), np.int64(first), np.int64(last), np.bool_(ends),
            np.uint64(self._turn)))

    def note_stream(self) -> None:
        self._storage.block.use_on(self._device.current)


def _blocks_for(copies: Copies) -> int:
    return max(1, min(-(-sum(nbytes for _, nbytes in copies) // _SHARE), _MOST))
