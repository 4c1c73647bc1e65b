"""The memory of the simulated GPU: host memory, with a record of what belongs to the device."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Collection
from ctypes import c_int, c_size_t, c_uint, c_void_p
from typing import Any

from tests.card.entries import COPY, FAULT, FILL, INVALID, NO_MEMORY, UNSUPPORTED, entry, put

BYTES, PAGE = 8 << 30, 512


class Memory:
    """Allocations and copies."""

    #: Descriptions of requests at which a device would fault, or that are not implemented here.
    faults: list[str]

    def __init__(self) -> None:
        #: The code of loaded modules.
        self.modules: dict[int, bytes] = {}
        #: By address: the number of bytes, and the object that keeps them.
        self.device: dict[int, tuple[int, Any]] = {}
        self.pinned: dict[int, tuple[int, Any]] = {}

    def fault(self, what: str, code: int = FAULT) -> int:
        self.faults.append(what)
        return code

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether bytes lie in a single allocation of the device."""
        return any(start <= address and address + nbytes <= start + size for start, (size, _) in self.device.items())

    def mine(self) -> int:
        raise NotImplementedError

    def captures(self, stream: int | None) -> bool:
        raise NotImplementedError

    def ends(self, captured: Collection[int] = ()) -> int:
        raise NotImplementedError

    def submit(self, stream: int | None, work: Callable[[], Any], kind: int) -> int:
        raise NotImplementedError

    def drain(self, stream: int | None = None) -> None:
        raise NotImplementedError

    @entry(c_void_p, c_size_t)
    def cudaMalloc(self, out: int, nbytes: int) -> int:
        if self.mine():
            return self.ends()
        if sum(size for size, _ in self.device.values()) + nbytes > BYTES:
            return NO_MEMORY
        address = _take(self.device, nbytes)
        put(out, c_void_p, address)
        return 0

    @entry(c_void_p)
    def cudaFree(self, address: int | None) -> int:
        if self.mine():
            return self.ends()
        self.drain()
        if address and self.device.pop(address, None) is None:
            return self.fault(f"cudaFree of {address:#x}, which is not an allocation", INVALID)
        return 0

    @entry(c_void_p, c_size_t, c_uint)
    def cudaHostAlloc(self, out: int, nbytes: int, flags: int) -> int:
        if self.mine():
            return self.ends()
        put(out, c_void_p, _take(self.pinned, nbytes))
        return 0

    @entry(c_void_p)
    def cudaFreeHost(self, address: int) -> int:
        if self.mine():
            return self.ends()
        self.drain()
        return 0 if self.pinned.pop(address, None) else self.fault(f"cudaFreeHost of {address:#x}, which is none", INVALID)

    @entry(c_void_p, c_void_p)
    def cudaMemGetInfo(self, free: int, total: int) -> int:
        taken = sum(size for size, _ in self.device.values()) + sum(map(len, self.modules.values()))
        put(free, c_size_t, BYTES - taken)
        put(total, c_size_t, BYTES)
        return 0

    @entry(c_void_p, c_void_p)
    def cudaPointerGetAttributes(self, out: int, address: int) -> int:
        kind = 2 if self.holds(address, 1) else int(self._locked(address))
        # type, device, devicePointer, hostPointer
        for at, c_type, value in ((0, c_int, kind), (4, c_int, 0), (8, c_void_p, address), (16, c_void_p, address)):
            put(out + at, c_type, value)
        return 0

    @entry(c_void_p, c_void_p, c_size_t, c_int, c_void_p)
    def cudaMemcpyAsync(self, to: int, source: int, nbytes: int, kind: int, stream: int | None) -> int:
        for address, device in ((to, kind in (1, 3)), (source, kind in (2, 3))):
            # Kind 4: the driver infers the direction from the addresses.
            if nbytes and kind != 4 and device != self.holds(address, nbytes):
                return self.fault(f"a copy of kind {kind} between {to:#x} and {source:#x}, {nbytes} bytes", INVALID)
        host = {1: source, 2: to}.get(kind)
        if host is not None and nbytes and self.captures(stream) and not self._locked(host):
            return self.fault(f"a copy at {host:#x}, in pageable memory, is captured, to be made at each launch", UNSUPPORTED)
        if kind == 1 and not self._locked(source):
            # Staged, so that the host may change the source from now on.
            staged = ctypes.create_string_buffer(ctypes.string_at(source, nbytes), nbytes)
            return self.submit(stream, lambda: ctypes.memmove(to, staged, nbytes), COPY)
        code = self.submit(stream, lambda: ctypes.memmove(to, source, nbytes), COPY)
        if kind == 2 and not code and not self._locked(to):
            self.drain(stream or 0)
        return code

    def _locked(self, address: int) -> bool:
        """Whether an address lies in pinned memory."""
        return any(start <= address < start + size for start, (size, _) in self.pinned.items())

    @entry(c_void_p, c_void_p, c_size_t, c_int)
    def cudaMemcpy(self, to: int, source: int, nbytes: int, kind: int) -> int:
        code = self.cudaMemcpyAsync(to, source, nbytes, kind, None)
        self.drain(0)
        return code

    @entry(c_void_p, c_int, c_size_t, c_void_p)
    def cudaMemsetAsync(self, address: int, value: int, nbytes: int, stream: int | None) -> int:
        if nbytes and not self.holds(address, nbytes):
            return self.fault(f"{nbytes} bytes are set at {address:#x}, outside any allocation")
        return self.submit(stream, lambda: ctypes.memset(address, value, nbytes), FILL)


def _take(held: dict[int, tuple[int, Any]], nbytes: int) -> int:
    pages = mmap.mmap(-1, max(nbytes, 1) + PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    address += -address % PAGE
    # A driver does not promise zeros.
    ctypes.memset(address, 0xA5, nbytes)
    held[address] = nbytes, pages
    return address
