"""NVRTC through ctypes: machine code for any target without a GPU."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass


def library_path() -> str | None:
    """GRADCORE_NVRTC, or the library of the package nvidia-cuda-nvrtc; None without both."""
    if "GRADCORE_NVRTC" in os.environ:
        return os.environ["GRADCORE_NVRTC"]
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(glob.glob(f"{folder}/**/libnvrtc.so.*", recursive=True)):
            if re.search(r"libnvrtc\.so\.\d+$", path):
                return path
    return None


@dataclass(frozen=True)
class Usage:
    """A kernel's resources: registers and stack bytes per thread, bytes of shared memory, maximum threads per block."""

    registers: int
    stack: int
    shared: int
    threads: int

    def fits(self, threads: int, blocks: int = 1) -> bool:
        """Can ``blocks`` blocks of so many threads run at once? A warp allocates registers in units of 256, of 65,536."""
        warps, taken = -(-threads // 32), -(-32 * self.registers // 256) * 256
        return threads <= self.threads and blocks * warps * taken <= 65536 and self.shared <= 48 << 10


class Nvrtc:
    """One compiler. ``cubin`` raises AssertionError with the compiler's log."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)

    def cubin(self, source: str, target: str, names: list[str]) -> tuple[bytes, str, list[str]]:
        """Machine code for ``target``, the compiler's log, and the lowered names of template instances."""
        lib = self._library
        program, log = self._compile(source, target, names)
        lowered = []
        for name in names:
            found = ctypes.c_char_p()
            assert lib.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(found)) == 0, name
            assert found.value
            lowered.append(found.value.decode())
        size = ctypes.c_size_t()
        assert lib.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
        code = ctypes.create_string_buffer(size.value)
        assert lib.nvrtcGetCUBIN(program, code) == 0
        lib.nvrtcDestroyProgram(ctypes.byref(program))
        return code.raw, log, lowered

    def ptx(self, source: str, name: str) -> str:
        """The assembly of one template instance."""
        program, _ = self._compile(source, "compute_90", [name])
        size = ctypes.c_size_t()
        assert self._library.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
        text = ctypes.create_string_buffer(size.value)
        assert self._library.nvrtcGetPTX(program, text) == 0
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return text.value.decode()

    def _compile(self, source: str, target: str, names: list[str]) -> tuple[ctypes.c_void_p, str]:
        lib, program = self._library, ctypes.c_void_p()
        assert lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
        for name in names:
            assert lib.nvrtcAddNameExpression(program, name.encode()) == 0
        # As CuPy compiles them: its own options come after the given ones, so denormals are flushed on the GPU.
        options = [f"--gpu-architecture={target}".encode(), b"--std=c++17", b"--display-error-number", b"-ftz=true",
                   b"--device-as-default-execution-space"]
        status = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = self._text(program, "Log")
        assert status == 0, log
        return program, log

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGetProgram{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGetProgram{what}")(program, text)
        return text.value.decode()


def _records(cubin: bytes, section: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """The attributes of an ``.nv.info``, with the offsets and lengths of their values."""
    at, end = section[4], section[4] + section[5]
    while at < end:
        form, attribute, length = struct.unpack_from("<BBH", cubin, at)
        # In the other forms the value is stored in place of the length.
        long = length if form == 4 else 0
        yield attribute, at + 4, long
        at += 4 + long


def usage(cubin: bytes) -> dict[str, Usage]:
    """Registers, stack and shared memory of each kernel, from the sections and ``.nv.info`` of the ELF file.

    Spilled registers are stored on the stack, so a kernel that has a stack frame but no local arrays spills.
    """
    table, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size) for i in range(count)]
    strings = sections[names_at]

    def text(section: tuple[int, ...], at: int) -> str:
        start = section[4] + at
        return cubin[start:cubin.index(b"\0", start)].decode()

    named = {text(strings, s[0]): s for s in sections}
    symbols = named[".symtab"]
    labels = sections[symbols[6]]
    functions = {}
    for i in range(symbols[5] // 24):
        name, = struct.unpack_from("<I", cubin, symbols[4] + i * 24)
        functions[i] = text(labels, name)
    stacks: dict[str, int] = {}
    registers: dict[str, int] = {}
    for attribute, at, length in _records(cubin, named[".nv.info"]):
        if length and attribute in (0x11, 0x2F):
            symbol, number = struct.unpack_from("<II", cubin, at)
            # EIATTR_FRAME_SIZE in bytes, EIATTR_REGCOUNT
            (stacks if attribute == 0x11 else registers)[functions[symbol]] = number
    found = {}
    for name, section in named.items():
        if name.startswith(".text."):
            kernel = name[len(".text."):]
            shared = named.get(f".nv.shared.{kernel}")
            found[kernel] = Usage(registers.get(kernel, section[7] >> 24), stacks.get(kernel, 0), shared[5] if shared else 0,
                                  # EIATTR_MAX_THREADS: x, y, z
                                  min((struct.unpack_from("<I", cubin, at)[0]
                                       for attribute, at, _ in _records(cubin, named[f".nv.info.{kernel}"])
                                       if attribute == 0x05), default=1024))
    return found
