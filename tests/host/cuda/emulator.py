"""Runs the CUDA kernels on a CPU: compiled by g++ with ``emulator.h``, and launched in place of CuPy's launch."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np
import pytest
from cupy.cuda import memory

from gradcore.devices.gpu import cublas as gpu_cublas
from gradcore.devices.gpu import gemm as gpu_gemm
from gradcore.devices.gpu import launch as gpu_launch
from gradcore.devices.gpu import workspaces as gpu_workspaces
from gradcore.devices.gpu.sources import source_of
from tests.host.cuda.compiled import libraries, library_of
from tests.host.cuda.fake_cublas import FakeLt

HEADER = Path(__file__).parent / "emulator.h"
#: A misaligned access ends a kernel on a GPU, and here the process, with a message that has the line.
COMPILER = ["g++", "-std=c++17", "-fno-omit-frame-pointer", "-shared", "-fPIC", "-fpermissive", "-fvisibility=hidden", "-w",
            "-fsanitize=alignment", "-fno-sanitize-recover=alignment"]
#: Each product and each sum is rounded, or, as by NVRTC, the compiler makes fused multiply-adds of them.
ROUNDED = ["-Og", "-ffp-contract=off"]
CONTRACTED = ["-O1", "-fexpensive-optimizations", "-ffp-contract=fast", "-DCONTRACTED",
              *(["-mfma"] if platform.machine() == "x86_64" else [])]
#: Checks as calls compile faster than inline ones.
SANITIZED = ["-g1", "-fsanitize=address", "--param", "asan-instrumentation-with-call-threshold=0"]
#: For watch.h, which takes the calls that the library of this sanitizer otherwise would. Accesses are neither joined nor split.
WATCHED = ["-O2", "-fno-tree-vectorize", "-fno-store-merging", "-fno-tree-sra", "-fno-ipa-sra", "-g1",
           "-fno-threadsafe-statics", "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0"]
WATCHING = ["g++", "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-c"]
#: Bytes on either side of an array that a kernel must not change.
MARGIN = 64


class HostMemory(memory.BaseMemory):
    """The owner of a CuPy array over host memory."""

    def __init__(self, owner: np.ndarray, address: int) -> None:
        self.ptr = address
        self.size = owner.nbytes
        self.device_id = 0
        self.owner = owner


def view_of(array: np.ndarray, owner: np.ndarray | None = None) -> cupy.ndarray:
    """A CuPy array over the memory of a NumPy array."""
    held = HostMemory(array if owner is None else owner, array.ctypes.data)
    return cupy.ndarray(array.shape, array.dtype, memory.MemoryPointer(held, 0), array.strides)


#: Bytes of the parts in the memory that the blocks of a launch share.
_PARTS = 32768 * 8


def reach_of(array: np.ndarray) -> tuple[int, int]:
    """How many bytes below, and above, an array's first element the others begin at most."""
    spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)] if array.size else []
    return -sum(s for s in spans if s < 0), sum(s for s in spans if s > 0)


class Copy:
    """A copy of an array, with the same strides, between two margins that are checked.

    With ``exact`` there are no margins, as for the address sanitizer, which checks the surroundings of an allocation; ``off``
    shifts the copy by a number of elements. Without it, its address modulo ``unit`` is the array's.
    """

    def __init__(self, array: np.ndarray, exact: bool = False, off: int = 0, unit: int = 16) -> None:
        below, above = reach_of(array)
        self.nbytes = below + above + array.itemsize if array.size else 0
        # Keep the alignment within 16 bytes, by which launches choose the width of accesses.
        place = (array.ctypes.data - below + off * array.itemsize) % unit
        margin = 0 if exact else MARGIN
        self.bytes = np.full(self.nbytes + place + unit + 2 * margin, 0xA5, np.uint8)
        self.start = margin + (place - self.bytes.ctypes.data - margin) % unit
        if exact:
            # malloc returns multiples of 16, so bytes before the array's first element belong to its allocation.
            self.bytes = np.full(self.nbytes + place, 0xA5, np.uint8)
            self.start = place
        self.array = np.ndarray(array.shape, array.dtype, self.bytes, self.start + below, array.strides)
        if not any(s == 0 and n > 1 for n, s in zip(array.shape, array.strides, strict=True)):
            self.array[...] = array
        elif array.size:
            ctypes.memmove(self.bytes.ctypes.data + self.start, array.ctypes.data - below, self.nbytes)

    def cupy(self) -> cupy.ndarray:
        """A CuPy array over the copy, as the CUDA device's kernels take it."""
        return view_of(self.array, self.bytes)

    def check(self, name: str) -> None:
        margins = np.concatenate([self.bytes[:self.start], self.bytes[self.start + self.nbytes:]])
        assert (margins == 0xA5).all(), f"{name} wrote outside an array of {self.array.shape}"


@contextlib.contextmanager
def subnormals_as_zero() -> Iterator[None]:
    """Within the block, this thread's subnormal numbers count as 0, as those in single precision do on a GPU, for which CuPy
    compiles with ``-ftz=true``. Here those in double precision do, too."""
    if platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        yield
        return
    # The last word of fenv_t is the control register of SSE, with a flag for results and one for operands.
    words = (ctypes.c_uint32 * 8)()
    _libm().fegetenv(words)
    before = words[7]
    words[7] |= 0x8040
    _libm().fesetenv(words)
    try:
        yield
    finally:
        words[7] = before
        _libm().fesetenv(words)


@functools.cache
def _libm() -> ctypes.CDLL:
    return ctypes.CDLL("libm.so.6")


class Emulator:
    """Replaces ``gpu_launch.launch`` and ``clear``; ``library`` multiplies matrices.

    As long as a family is not compiled, it only notes which instances are needed, and runs nothing.

    With ``contracted``, by default if ``GRADCORE_CONTRACTED=1``, a product and a sum become a fused multiply-add where the
    compiler sees both, as on a GPU: results that must have the same bits in two kernels may not depend on it.
    """

    def __init__(self, folder: Path, sanitize: bool = False, watch: str = "",
                 contracted: bool = os.environ.get("GRADCORE_CONTRACTED") == "1") -> None:
        self.folder = folder
        self.sanitize = sanitize
        self.contracted = contracted
        #: What looks at every access: ``races`` or ``traffic``, if anything.
        self.watch = watch
        #: The traffic of each launch.
        self.traffic: list[tuple[str, dict[str, Any]]] = []
        self.wanted: dict[str, set[str]] = {}
        #: By kernel: the largest number of threads in a block that it was launched with.
        self.threads: dict[str, int] = {}
        self.libraries: dict[str, tuple[Any, dict[str, int]]] = {}
        self.paths: dict[str, Path] = {}
        #: The memory that the blocks of one launch share.
        self.shared = np.zeros(gpu_workspaces.SHARED_BYTES // 8, np.uint64)
        #: Whether threads and blocks run in descending order.
        self.falling = False
        self.library: Any = products(FakeLt(lambda: bool(self.libraries)))
        #: Addresses of memory that nobody had written, with a flag for each byte that has been written since.
        self.blanks: list[tuple[int, np.ndarray]] = []

    def compile(self) -> None:
        """Compile a library for each family, with every instance that was needed so far."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for family, found in zip(self.wanted, pool.map(self._compile, self.wanted), strict=True):
                self.libraries[family] = found

    def _compile(self, family: str, source: str | None = None) -> tuple[Any, dict[str, int]]:
        options, code, watch = self._made_of(family, source)

        def make(library: Path, instances: list[str]) -> None:
            path = library.with_name(f"{family}.cpp")
            path.write_text("\n".join(code[1:] + [_entries(k, name) for k, name in enumerate(instances)]))
            _run([*options, "-include", str(header.with_name(HEADER.name)), *(["-c"] if self.watch else []), str(path),
                  "-o", str(library)], family)

        def precompile(made: Path, _: list[str]) -> None:
            held = made.with_name(HEADER.name)
            held.write_text(code[0])
            _run([*options, "-x", "c++-header", str(held), "-o", f"{held}.gch"], "emulator")
            made.touch()

        def watching(made: Path, _: list[str]) -> None:
            _run([*WATCHING, str(HEADER.with_name(f"{self.watch}.cpp")), "-o", str(made)], family)

        def link(library: Path, _: list[str]) -> None:
            _run([*COMPILER, str(kernels), str(looking), "-o", str(library)], family)

        wanted = self.wanted[family]
        # It takes half the time that most kernels take by themselves.
        header, _ = library_of(self.folder, "header", [*options, code[0]], set(), precompile)
        if self.watch:
            # What looks at accesses is the same for all kernels, and the code of the kernels whatever looks at it.
            looking, _ = library_of(self.folder, self.watch, [*WATCHING, *watch], set(), watching)
            kernels, found = library_of(self.folder, f"{family}_watched", [*options, *code], wanted, make)
            library, instances = library_of(self.folder, family, [*options, *code, *watch], set(found), link)
        else:
            library, instances = library_of(self.folder, family, [*options, *code], wanted, make)
        self.paths[family] = library
        return ctypes.CDLL(str(library)), {name: k for k, name in enumerate(instances)}

    def _made_of(self, family: str, source: str | None = None) -> tuple[list[str], list[str], list[str]]:
        """What a library is made of: the compiler's options, the code of the kernels, and that of what looks at accesses."""
        # In an anonymous namespace, so that kernels' shared arrays can be collected in one section.
        code = [HEADER.read_text(), "namespace {", source_of(family) if source is None else source, "}"]
        options = [*COMPILER, *(CONTRACTED if self.contracted else ROUNDED), *(SANITIZED if self.sanitize else []),
                   *(WATCHED if self.watch else [])]
        watch = [HEADER.with_name(name).read_text() for name in (f"{self.watch}.cpp", "watch.h")] if self.watch else []
        return options, code, watch

    def compiled(self, family: str) -> list[tuple[Path, list[str]]]:
        """The libraries of a family that there are, with their instances."""
        return libraries(self.folder, family, [text for part in self._made_of(family) for text in part])

    def launch(self, family: str, instance: str, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
        self.wanted.setdefault(family, set()).add(instance)
        self.threads[instance] = max(threads, self.threads.get(instance, 0))
        found = self.libraries.get(family)
        if found is None:
            return
        library, numbers = found
        if arguments[-1] is gpu_launch.SHARED:
            arguments = *arguments[:-1], np.uint64(self.shared.ctypes.data)
        held = [_as_bytes(a) for a in arguments]
        if self.watch == "races":
            # What blocks share is new in each launch, but for the counters behind it.
            blanks = [*self.blanks, (self.shared.ctypes.data, np.zeros(_PARTS, np.uint8))]
            assert len(blanks) <= 64, "races.cpp has room for 64"
            library.watch_blank(len(blanks), (ctypes.c_uint64 * (3 * len(blanks)))(*[
                word for at, written in blanks for word in (at, written.size, written.ctypes.data)]))
        wanted = getattr(library, f"sizes_{numbers[instance]}")
        wanted.restype = ctypes.POINTER(ctypes.c_uint)
        given = [h.nbytes for h in held]
        assert wanted()[:len(held) + 1] == [*given, 0], f"{instance}: arguments of {given} bytes are not its parameters"
        pointers = (ctypes.c_void_p * len(held))(*[h.ctypes.data for h in held])
        call = getattr(library, f"call_{numbers[instance]}")
        call.restype = ctypes.c_bool
        with subnormals_as_zero():
            arrived = call(blocks, threads, self.falling, pointers)
        assert arrived, (f"{instance}: threads wait where others never come, or meet by other calls or without some of their "
                         "warp")

        if self.watch:
            library.watch_result.restype = ctypes.c_char_p
            text = library.watch_result().decode()
            if self.watch == "races":
                assert not text, f"{instance}: {self._with_lines(family, text)}"
            else:
                self.traffic.append((instance, json.loads(self._with_lines(family, text))))

    def _with_lines(self, family: str, text: str) -> str:
        """The text with lines of the source in the place of addresses of code."""

        def line(found: re.Match[str]) -> str:
            # The address is that of the next instruction, which may be of the next line.
            command = ["addr2line", "-e", str(self.paths[family]), "-f", "-C", hex(int(found[1], 16) - 1)]
            function, place = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:2]
            return f" at {place.rsplit('/', 1)[-1]} in {function}"

        return re.sub(r" at (0x[0-9a-f]+)(?=,)", line, text)

    def clear(self, pointer: memory.MemoryPointer, nbytes: int) -> None:
        if self.libraries:
            ctypes.memset(pointer.ptr, 0, nbytes)
            for at, written in self.blanks:
                first = pointer.ptr - at
                if 0 <= first < written.size:
                    written[first:first + nbytes] = 1

    def library_in_use(self) -> Any:
        """The library of matrix products. What one of them writes is not known here: it may be all."""
        for _, written in self.blanks:
            written[:] = 1
        return self.library

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block, redirect the CUDA device's launches to the emulator."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_launch, "launch", self.launch)
            patch.setattr(gpu_launch, "clear", self.clear)
            patch.setattr(gpu_gemm, "library", self.library_in_use)
            patch.setattr(gpu_gemm, "current_stream", lambda: 7)
            patch.setattr(gpu_cublas, "on_stream", contextlib.nullcontext)
            patch.setattr(gpu_workspaces, "runtime", SimpleNamespace(streamIsCapturing=lambda stream: False))
            patch.setattr(gpu_gemm, "runtime", SimpleNamespace(
                streamSynchronize=lambda stream: None, memGetInfo=lambda: (0, 0),
                memcpyAsync=lambda to, source, nbytes, kind, stream: ctypes.memmove(to, source, nbytes)))
            yield


def _entries(k: int, name: str) -> str:
    """What a library exports for its ``k``-th instance."""
    return (f'extern "C" __attribute__((visibility("default"))) bool call_{k}(unsigned blocks, unsigned threads, bool falling, '
            f"void** arguments) {{ return emulator::call({name}, blocks, threads, falling, arguments); }}\n"
            f'extern "C" __attribute__((visibility("default"))) const unsigned* sizes_{k}() '
            f"{{ return emulator::sizes({name}); }}")


def _run(command: list[str], family: str) -> None:
    made = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert made.returncode == 0, f"{family}.cu for a CPU:\n{made.stderr[:4000]}"


def products(lt: FakeLt, nbytes: int = 1 << 20) -> gpu_gemm.CublasLt:
    """The interface to cuBLASLt, with workspaces in host memory."""

    def reserve(size: int) -> HostMemory:
        held = np.zeros(size + 512, np.uint8)
        return HostMemory(held, held.ctypes.data + -held.ctypes.data % 512)

    return gpu_gemm.CublasLt(lt, nbytes, reserve)


def _as_bytes(argument: Any) -> np.ndarray:
    """The bytes that CuPy passes to the driver for one argument: an address or a value; 0 for SHARED and None."""
    if argument is None or argument is gpu_launch.SHARED:
        return np.zeros((), np.uint64)
    if isinstance(argument, cupy.ndarray):
        return np.array(argument.data.ptr, np.uint64)
    assert isinstance(argument, (np.generic, np.ndarray)), f"an argument of no certain size: {argument!r}"
    assert argument.size == 1
    return np.array(argument)
