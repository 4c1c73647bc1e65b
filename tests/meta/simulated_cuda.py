"""A simulated CUDA runtime that does the work of streams in any order that their waits allow, and checks memory accesses.

A kernel stamps every 512 bytes of a block, or checks that an expected stamp is still there; errors are added to ``wrong``.
Calls can be made to fail by a schedule of faults.
"""

from __future__ import annotations

import ctypes
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

CELL = 512


class Record:
    """One recording of an event; a wait is for the last recording at the time when the wait was submitted."""

    def __init__(self) -> None:
        self.done = False


class Card:
    """The runtime's calls, with ``room`` bytes of memory. ``faults`` has the numbers, from 1, of the calls that fail."""

    class CUDARuntimeError(Exception):
        def __init__(self, status: int) -> None:
            super().__init__(f"cudaError {status}: an illegal memory access was encountered")
            self.status = status

    def __init__(self, room: int = 1 << 30, seed: int = 0, faults: Mapping[str, Collection[int]] | None = None) -> None:
        self.room = room
        self.rng = random.Random(seed)
        self.faults = faults or {}
        self.calls: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.memory: dict[int, np.ndarray[Any, Any]] = {}
        self.pinned: dict[int, int] = {}
        self.events: dict[int, Record | None] = {}
        #: The pending work of each stream: a recording, a wait for one, or a kernel with the address that it accesses.
        self.queues: dict[int, deque[Any]] = {0: deque()}
        self._next = 1 << 40

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        if self.calls[name] in self.faults.get(name, ()):
            raise self.CUDARuntimeError(700)

    def _handle(self, nbytes: int = CELL) -> int:
        self._next += nbytes
        return self._next - nbytes

    # -- the runtime's calls -------------------------------------------------------------------------------------------

    def setDevice(self, index: int) -> None:
        pass

    def memGetInfo(self) -> tuple[int, int]:
        return self.room - CELL * sum(map(len, self.memory.values())), self.room

    def malloc(self, nbytes: int) -> int:
        self._called("malloc")
        if nbytes > self.memGetInfo()[0]:
            raise self.CUDARuntimeError(2)
        address = self._handle(nbytes)
        self.memory[address] = np.zeros(nbytes // CELL, np.int64)
        return address

    def free(self, address: int) -> None:
        self._called("free")
        if any(type(work) is tuple and work[0] == address for queue in self.queues.values() for work in queue):
            self.wrong.append(f"segment {address:#x} was freed with work on it to be done")
        del self.memory[address]

    def hostAlloc(self, nbytes: int, flags: int) -> int:
        self._called("hostAlloc")
        raise self.CUDARuntimeError(2)

    def freeHost(self, address: int) -> None:
        raise AssertionError("nothing is pinned here")

    def streamCreateWithPriority(self, flags: int, priority: int) -> int:
        self._called("streamCreateWithPriority")
        handle = self._handle()
        self.queues[handle] = deque()
        return handle

    def streamQuery(self, stream: int) -> int:
        return 600 if self.queues[stream] else 0

    def streamSynchronize(self, stream: int) -> None:
        self._called("streamSynchronize")
        while self.queues[stream]:
            self.run(1)

    def streamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        self._called("streamWaitEvent")
        record = self.events[event]
        if record is not None:
            self.queues[stream].append((None, record))

    def eventCreateWithFlags(self, flags: int) -> int:
        self._called("eventCreateWithFlags")
        handle = self._handle()
        self.events[handle] = None
        return handle

    def eventDestroy(self, event: int) -> None:
        del self.events[event]

    def eventRecord(self, event: int, stream: int) -> None:
        self._called("eventRecord")
        record = self.events[event] = Record()
        self.queues[stream].append(record)

    def eventQuery(self, event: int) -> int:
        record = self.events[event]
        return 0 if record is None or record.done else 600

    def eventSynchronize(self, event: int) -> None:
        record = self.events[event]
        while record is not None and not record.done:
            self.run(1)

    def eventElapsedTime(self, first: int, last: int) -> float:
        return 1.0

    def deviceSynchronize(self) -> None:
        self._called("deviceSynchronize")
        while any(self.queues.values()):
            self.run(1)

    # -- kernels -------------------------------------------------------------------------------------------------------

    def launch(self, stream: int, block: Any, expect: int | None, stamp: int) -> None:
        """Queue a kernel that checks that the block is filled with ``expect``, unless None, and fills it with ``stamp``."""
        segment, first = block.segment.address, block.offset // CELL
        cells = slice(first, first + block.size // CELL)

        def kernel() -> None:
            memory = self.memory.get(segment)
            if memory is None:
                self.wrong.append(f"stream {stream:#x} touched segment {segment:#x}, which is gone")
                return
            if expect is not None and not (memory[cells] == expect).all():
                self.wrong.append(f"stream {stream:#x} expected stamp {expect}, but found {set(memory[cells].tolist())}")
            memory[cells] = stamp

        self.queues[stream].append((segment, kernel))

    def _ready(self, work: Any) -> bool:
        return not (type(work) is tuple and type(work[1]) is Record) or work[1].done

    def run(self, count: int) -> None:
        """Do ``count`` pieces of work, each of some stream that need not wait. Raises if all streams wait for ever."""
        for _ in range(count):
            able = [queue for queue in self.queues.values() if queue and self._ready(queue[0])]
            if not able:
                assert not any(self.queues.values()), "every stream waits for another"
                return
            work = self.rng.choice(able).popleft()
            if type(work) is Record:
                work.done = True
            elif callable(kernel := work[1]):
                kernel()


class Pointer(NamedTuple):
    """The runtime's attributes of an address; type 1 is page-locked host memory."""

    type: int


class HostCard(Card):
    """A card whose memory is host memory, so that copies move bytes, when they are done."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, Any] = {}
        self.locked: set[int] = set()
        #: Does a copy from pageable memory read it before the call returns?
        self.stages = True

    def malloc(self, nbytes: int) -> int:
        self._called("malloc")
        memory = (ctypes.c_char * (nbytes + 4096))()
        address = -(-ctypes.addressof(memory) // 4096) * 4096
        # A driver does not promise zeros.
        ctypes.memset(address, 0xA5, nbytes)
        self.held[address] = memory
        return address

    def hostAlloc(self, nbytes: int, flags: int) -> int:
        address = self.malloc(nbytes)
        self.locked.add(address)
        return address

    def free(self, address: int) -> None:
        if any(self.queues.values()):
            self.wrong.append(f"segment {address:#x} was freed with work to be done")
        del self.held[address]

    freeHost = free

    def _is_locked(self, address: int) -> bool:
        return any(start <= address < start + len(self.held[start]) for start in self.locked if start in self.held)

    def pointerGetAttributes(self, address: int) -> Pointer:
        return Pointer(int(self._is_locked(address)))

    def memsetAsync(self, address: int, value: int, nbytes: int, stream: int) -> None:
        self.queues[stream].append((None, lambda: ctypes.memset(address, value, nbytes)))

    def memcpyAsync(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        staged = ctypes.string_at(source, nbytes) if self.stages and kind == 1 and not self._is_locked(source) else None
        self.queues[stream].append((None, lambda: ctypes.memmove(to, staged or source, nbytes)))


def without(owner: Any, name: str) -> tuple[Any, str, Callable[..., None]]:
    """The arguments of ``monkeypatch.setattr`` that remove a method."""
    return owner, name, lambda *arguments: None
