"""A simulated CUDA driver and runtime: one device, whose memory is the host's.

It reports the errors of a driver and the faults of a device: addresses outside any allocation, calls that invalidate a capture,
handles that are gone. The names are CUDA's.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any

from tests.card.entries import GONE, INVALID, TOO_MUCH, entry, put
from tests.card.memory import BYTES
from tests.card.streams import Streams
from tests.host.cuda.nvrtc import Usage, usage

CAPABILITY = (9, 0)
#: By cudaDeviceAttr: the attributes that are queried; the others are 0.
_ATTRIBUTES = {1: 1024, 2: 1024, 3: 1024, 4: 64, 5: (1 << 31) - 1, 6: 65535, 7: 65535, 8: 49152, 10: 32, 12: 65536, 16: 132,
               39: 2048, 41: 1, 75: CAPABILITY[0], 76: CAPABILITY[1], 78: 1, 81: 228 << 10, 82: 65536, 95: 1, 97: 227 << 10,
               106: 32, 115: 1}


class Card(Streams):
    """One device. ``work(name, blocks, threads, addresses of arguments)`` returns a function that runs a kernel."""

    def __init__(self, work: Callable[[str, int, int, int], Callable[[], Any]]) -> None:
        super().__init__()
        self.work = work
        self.faults = []
        #: By name: how often a function of the runtime or the driver was called.
        self.calls: Counter[str] = Counter()
        #: By handle: the machine code of a module.
        self.functions: dict[int, str] = {}
        #: By handle of a function: the resources that it uses.
        self.taken: dict[int, Usage] = {}
        self._texts: dict[str, Any] = {}

    def _text(self, text: str) -> int:
        held = self._texts.setdefault(text, ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(held)

    @entry(c_void_p, names="cudaRuntimeGetVersion cuDriverGetVersion")
    def cudaDriverGetVersion(self, out: int) -> int:
        put(out, c_int, 13000)
        return 0

    cudaRuntimeGetVersion = cuDriverGetVersion = cudaDriverGetVersion

    @entry(c_void_p)
    def cudaGetDeviceCount(self, out: int) -> int:
        put(out, c_int, 1)
        return 0

    @entry(c_void_p)
    def cudaGetDevice(self, out: int) -> int:
        put(out, c_int, 0)
        return 0

    @entry(c_int)
    def cudaSetDevice(self, device: int) -> int:
        return 0 if device == 0 else 101

    @entry(c_void_p, c_int, c_int)
    def cudaDeviceGetAttribute(self, out: int, attribute: int, device: int) -> int:
        put(out, c_int, _ATTRIBUTES.get(attribute, 0))
        return 0

    @entry(c_void_p, c_int)
    def cudaGetDeviceProperties(self, out: int, device: int) -> int:
        ctypes.memset(out, 0, 1008)
        ctypes.memmove(out, b"A card of paper", 16)
        # name[256], uuid[16], luid[8], mask; totalGlobalMem, shared memory, registers, warp, pitch, threads, dims, grid
        for at, kind, value in ((288, c_size_t, BYTES), (296, c_size_t, 49152), (304, c_int, 65536), (308, c_int, 32),
                                (320, c_int, 1024), (360, c_int, CAPABILITY[0]), (364, c_int, CAPABILITY[1]),
                                (384, c_int, _ATTRIBUTES[16])):
            put(out + at, kind, value)
        return 0

    @entry(c_void_p, c_int, c_int)
    def cudaDeviceGetPCIBusId(self, out: int, length: int, device: int) -> int:
        ctypes.memmove(out, b"0000:01:00.0\0", 13)
        return 0

    @entry()
    def cudaDeviceSynchronize(self) -> int:
        return self.ends(self.captured()) if self.captured() else self.drain() or 0

    @entry(c_int, returns=c_void_p)
    def cudaGetErrorName(self, code: int) -> int:
        return self._text(f"error {code}")

    @entry(c_int, returns=c_void_p)
    def cudaGetErrorString(self, code: int) -> int:
        return self._text(f"the card of paper says {code}")

    @entry()
    def cudaGetLastError(self) -> int:
        return 0

    @entry()
    def cudaPeekAtLastError(self) -> int:
        return 0

    # -- modules and launches ----------------------------------------------------------------------------------------------

    @entry(c_uint)
    def cuInit(self, flags: int) -> int:
        return 0

    @entry(c_void_p, c_void_p)
    def cuGetExportTable(self, out: int, which: int) -> int:
        # CUDA_ERROR_NOT_FOUND: NVRTC queries a private table of the driver.
        return 500

    @entry(c_void_p)
    def cuCtxGetCurrent(self, out: int) -> int:
        put(out, c_void_p, 0xC0DE)
        return 0

    @entry(c_int, c_void_p, names="cuGetErrorString")
    def cuGetErrorName(self, code: int, out: int) -> int:
        put(out, c_void_p, self._text(f"CUresult {code}"))
        return 0

    cuGetErrorString = cuGetErrorName

    @entry(c_void_p, c_void_p)
    def cuModuleLoadData(self, out: int, image: int) -> int:
        if self.mine():
            # Loading may allocate.
            return self.ends()
        if ctypes.string_at(image, 4) != b"\x7fELF":
            return self.fault("a module that is no cubin", 200)
        # e_shoff and the table of section headers, which ends a cubin.
        header = ctypes.string_at(image, 64)
        sections = int.from_bytes(header[40:48], "little")
        nbytes = sections + int.from_bytes(header[58:60], "little") * int.from_bytes(header[60:62], "little")
        made = self.handle()
        self.modules[made] = ctypes.string_at(image, nbytes)
        put(out, c_void_p, made)
        return 0

    @entry(c_void_p)
    def cuModuleUnload(self, module: int) -> int:
        return 0 if self.modules.pop(module, None) else self.fault("a module was unloaded twice", GONE)

    @entry(c_void_p, c_void_p, c_char_p)
    def cuModuleGetFunction(self, out: int, module: int, name: bytes) -> int:
        if name + b"\0" not in self.modules[module]:
            return 500
        made = self.handle()
        self.functions[made] = name.decode()
        self.taken[made] = usage(self.modules[module])[name.decode()]
        put(out, c_void_p, made)
        return 0

    @entry(c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)
    def cuLaunchKernel(self, function: int, *rest: Any) -> int:
        blocks, y, z, threads, ty, tz, shared, stream, arguments, extra = rest
        if max(y, z, ty, tz) > 1 or shared or extra or not 0 < blocks < 1 << 31 or not 0 < threads <= 1024:
            return self.fault(f"{self.functions[function]}: grid {blocks, y, z}, block {threads, ty, tz}", INVALID)
        taken = self.taken[function]
        if not taken.fits(threads):
            return self.fault(f"{self.functions[function]}: blocks of {threads} threads, and {taken}", TOO_MUCH)
        return self.submit(stream, self.work(self.functions[function], blocks, threads, arguments))
