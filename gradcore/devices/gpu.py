"""The CUDA device: segments from cudaMalloc, with CuPy arrays over our own blocks.

The CUDA runtime is an argument, so that a mock can stand in where there is no driver: memory/driver.py says what is asked
of it. CuPy's own objects (arrays over blocks) work without one.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from cupy.cuda import memory, runtime

from gradcore.devices import gpu_faults, gpu_gemm, gpu_workspaces
from gradcore.devices.device import Device, Operands
from gradcore.devices.dtypes import numbers_fitted
from gradcore.devices.gpu_again import again
from gradcore.devices.gpu_faults import WatchedDriver, WatchedSource
from gradcore.devices.gpu_fused import fused
from gradcore.devices.gpu_graphs import Graphs, Refusing, refuse
from gradcore.devices.gpu_kernels import build_cuda_kernels
from gradcore.devices.gpu_launch import refuse_notes
from gradcore.devices.storage import Storage
from gradcore.errors import OutOfMemory, UndeclaredAllocation
from gradcore.events import TAGS, Site, Tag
from gradcore.memory.ledger import Ledger
from gradcore.memory.resource import Block, Segment, Stream
from gradcore.memory.stack import build
from gradcore.report.driver import DriverAccount
from gradcore.report.step import DriverFigures, LibraryBytes
from gradcore.spec import TensorSpec
from gradcore.units import limit_from

_PAGE_LOCKED = 1  # cudaMemoryTypeHost


class SegmentMemory(memory.BaseMemory):  # type: ignore[misc]
    """The owner of internal arrays: an address range that the pool keeps. It pins nothing and frees nothing."""

    def __init__(self, ptr: int, size: int, device_id: int) -> None:
        self.ptr = ptr
        self.size = size
        self.device_id = device_id


class ForeignMemory(memory.BaseMemory):  # type: ignore[misc]
    """The owner of our arrays over a foreign array's bytes, which it keeps alive."""

    def __init__(self, array: cupy.ndarray, nbytes: int) -> None:
        self.ptr = array.data.ptr
        self.size = nbytes
        self.device_id = array.data.device_id
        self.array = array


class StorageMemory(memory.BaseMemory):  # type: ignore[misc]
    """The owner of an array that leaves to the user: it holds the storage, so the block lives as long as the array.

    ``shown`` does that in its place, where the books are to know of the array.
    """

    def __init__(self, storage: Storage, device_id: int, shown: Any = None) -> None:
        self.ptr = storage.block.address
        self.size = storage.block.size
        self.device_id = device_id
        self._block = storage.block
        self._held = storage if shown is None else shown

    @property
    def tag(self) -> Tag:
        """Whom the bytes belong to."""
        return TAGS[self._block.tag]


class ScratchMemory(memory.BaseMemory):  # type: ignore[misc]
    """The owner of what CuPy allocated for itself: it gives the block back to the scratch pool when CuPy lets go."""

    def __init__(self, ledger: Ledger, block: Block, device_id: int) -> None:
        self.ptr = block.address
        self.size = block.size
        self.device_id = device_id
        self._ledger = ledger
        self._block = block

    def __del__(self) -> None:
        self._ledger.release(self._block)


class Bridge:
    """Serves what CuPy allocates for itself while one of our kernels runs, from a pool of its own.

    That memory is listed beside the log, never in it: which call makes it depends on CuPy's version, not on shapes. In
    strict mode it is an error. An allocator may be asked in the middle of a kernel of CuPy's, so it raises at once.
    """

    def __init__(self, ledger: Ledger, current: Callable[[], Stream], device_id: int, strict: bool) -> None:
        self.ledger = ledger
        self.strict = strict
        #: The thread that captures and is given nothing, by its number.
        self.capturing: int | None = None
        #: Allocations and bytes by op.
        self.seen: dict[str, tuple[int, int]] = {}
        self._current = current
        # A stream object keeps the free lists of one pool: each of the device's streams has another one here.
        self._streams: dict[Stream, Stream] = {}
        self._device_id = device_id
        self._op = ""

    def allocate(self, nbytes: int) -> memory.MemoryPointer:
        """What CuPy calls for every array that it makes."""
        refuse_notes()
        refuse(self.capturing, nbytes)
        if self.strict:
            raise UndeclaredAllocation(f"CuPy allocated {nbytes} bytes in the kernel of op {self._op!r}, which declares no "
                                       "such workspace")
        count, total = self.seen.get(self._op, (0, 0))
        self.seen[self._op] = count + 1, total + nbytes
        tag = TAGS.index(Tag(self._op, "", "library", "workspace", Site("<cupy>", 0, self._op), None, None))
        return memory.MemoryPointer(self._take(nbytes, tag), 0)

    def reserve(self, nbytes: int, library: str, op: str) -> ScratchMemory:
        """Memory that a library works in for ops like ``op``, for as long as it is held: declared, so that strict mode has
        nothing against it. It is of the current stream, like the work that it is for."""
        tag = TAGS.index(Tag(op, "", "library", "workspace", Site(f"<{library}>", 0, ""), None, None))
        return self._take(nbytes, tag)

    def _take(self, nbytes: int, tag: int) -> ScratchMemory:
        current = self._current()
        stream = self._streams.setdefault(current, Stream(current.index, current.handle))
        return ScratchMemory(self.ledger, self.ledger.allocate(nbytes, stream, tag), self._device_id)

    def libraries(self) -> list[LibraryBytes]:
        """The bytes of the scratch pool by library and op, and what of it nobody uses at the moment."""
        held: Counter[str] = Counter()
        for block in self.ledger.live.values():
            tag = TAGS[block.tag]
            held[f"{tag.site.file.strip('<>')} in {tag.op}"] += block.size
        cached = self.ledger.reserved - sum(held.values())
        rows = [LibraryBytes(name, nbytes) for name, nbytes in held.most_common()]
        names = ", ".join(sorted(op for op in self.seen if op))
        return [*rows, LibraryBytes(f"scratch that is free again (of {names or 'no op'})", cached)] if cached else rows

    def wrap(self, op: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel, run with this allocator in CuPy's place."""

        @functools.wraps(kernel, updated=())
        def launch(*arrays: Any) -> None:
            before, self._op = self._op, op
            try:
                with cupy.cuda.using_allocator(self.allocate):
                    kernel(*arrays)
            finally:
                self._op = before

        return launch


class _Handle:
    """A stream of ours as CuPy takes it: the CUDA stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class CudaDevice(Device):
    """One GPU. Work goes to CUDA's default stream, so that a user's own CuPy code is ordered with ours.

    ``strict`` makes an error of what CuPy allocates undeclared; ``poison`` fills blocks with ones when they come and go.
    """

    type = "cuda"
    index: int

    def __init__(self, index: int, *, cuda: Any = runtime, limit: int | None = None, strict: bool = False,
                 poison: bool = False) -> None:
        def owner(address: int, nbytes: int) -> SegmentMemory:
            return SegmentMemory(address, nbytes, index)

        stream = Stream(0, 0)
        stack = build(WatchedSource(index, cuda, owner), WatchedDriver(cuda, index), limit=limit,
                      poison=self._fill_with_ones if poison else None)
        super().__init__(f"cuda:{index}", stack, stream, build_cuda_kernels())
        self.index = index
        self._cuda = cuda
        # Before anything else on the device: it measures what the context takes.
        self._account = DriverAccount(index, cuda)
        scratch = build(WatchedSource(index, cuda, owner), WatchedDriver(cuda, index))
        self.bridge = Bridge(scratch.ledger, lambda: self.current, index, strict)
        gpu_workspaces.RESERVES[index] = self._reserve
        self._blocking = gpu_faults.blocking()
        # Who wants to wait after each kernel cannot have them all as one.
        self.graphs = None if self._blocking else Graphs(self, cuda)
        # CuPy holds its current stream weakly.
        self._known_to_cupy: dict[Stream, Any] = {}

    def _reserve(self, nbytes: int, library: str, op: str) -> ScratchMemory:
        try:
            return self.bridge.reserve(nbytes, library, op)
        except OutOfMemory:
            # What the pool of the tensors has cached is the card's too.
            self.ledger.flush()
            return self.bridge.reserve(nbytes, library, op)

    def _fill_with_ones(self, block: Block) -> None:
        """Poison, on the block's own stream, behind all that used it."""
        for user in block.users or ():
            self.order(user, block.stream)
        self._cuda.memsetAsync(block.address, 0xFF, block.size, block.stream.handle)

    def activate(self, stream: Stream) -> None:
        found = self._known_to_cupy.get(stream)
        if found is None:
            found = cupy.cuda.Stream.from_external(_Handle(stream.handle)) if stream.handle else cupy.cuda.Stream.null
            self._known_to_cupy[stream] = found
        found.use()

    def prepare_capture(self, stream: Stream) -> None:
        """Make what kernels work in on a stream that is going to capture, where any that do have run."""
        library, shared = gpu_gemm.LIBRARIES.get(self.index), gpu_workspaces.SHARED.get(self.index)
        for found in (library.workspaces if isinstance(library, gpu_gemm.CublasLt) else None, shared):
            if found is not None:
                found.of(stream.handle)

    def refuse_memory(self, thread: int | None) -> None:
        """Let a thread that captures have no memory of the device; None: everybody may."""
        self.bridge.capturing = thread
        self.memory = self.stack.top if thread is None else Refusing(self.stack.top, thread)

    def suited(self, kernel: Callable[..., Any], operands: Operands) -> tuple[Callable[..., Any], int]:
        return numbers_fitted(kernel, operands), 0

    def bind(self, kernel: Callable[..., Any], op: str = "") -> Callable[..., Any]:
        launch = self.bridge.wrap(op, kernel)
        return gpu_faults.wait_after(launch, self._cuda) if self._blocking else again(launch)

    def fused(self, kind: str, steps: list[list[Any]]) -> list[list[Any]] | None:
        return fused(kind, steps, self.bind)

    def foreign(self, array: cupy.ndarray, nbytes: int) -> Segment:
        return Segment(nbytes, array.data.ptr, ForeignMemory(array, nbytes))

    def array_for_others(self, value: Any, shown: Any) -> cupy.ndarray:
        return export(value, shown)

    def array_of_others(self, given: Any) -> cupy.ndarray:
        return cupy.from_dlpack(given)

    def make_array(self, block: Block, spec: TensorSpec) -> cupy.ndarray:
        return array_over(block.segment.memory, block.offset, spec)

    def copy_in(self, array: cupy.ndarray, values: np.ndarray[Any, Any]) -> None:
        values = np.ascontiguousarray(values, array.dtype)
        if values.nbytes:
            # From pageable memory the call returns when the values have been staged, so they may change after it.
            with gpu_faults.Watch("a tensor was filled"):
                self._cuda.memcpyAsync(array.data.ptr, values.ctypes.data, values.nbytes, 1, self.current.handle)
                if self._cuda.pointerGetAttributes(values.ctypes.data).type == _PAGE_LOCKED:
                    self._cuda.streamSynchronize(self.current.handle)

    def copy_across(self, array: cupy.ndarray, pinned: Any, back: bool = False) -> None:
        host = pinned.array
        if back and not array.flags.c_contiguous:
            np.copyto(host, self.copy_out(array))
            return
        if not back:
            # A copy of scattered elements is pageable, and has been staged when the call returns.
            host = np.ascontiguousarray(host)
        if array.nbytes:
            pinned.storage.block.use_on(self.copies)
            ends = (host.ctypes.data, array.data.ptr) if back else (array.data.ptr, host.ctypes.data)
            with gpu_faults.Watch("a tensor was read" if back else "a tensor was filled"):
                self._cuda.memcpyAsync(*ends, array.nbytes, 2 if back else 1, self.copies.handle)

    def copy_out(self, array: cupy.ndarray) -> np.ndarray[Any, Any]:
        # CuPy would gather scattered elements on the device first, in memory of its own: their whole span comes instead.
        reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)] if array.size else []
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        span = np.empty(high - low + array.itemsize if array.size else 0, np.uint8)
        if array.size:
            with gpu_faults.Watch("a tensor was read"):
                self._cuda.memcpyAsync(span.ctypes.data, array.data.ptr + low, span.nbytes, 2, self.current.handle)
                self._cuda.streamSynchronize(self.current.handle)
        found = np.ndarray(array.shape, array.dtype, span, -low, array.strides)
        return found if found.flags.c_contiguous else found.copy()

    def driver_figures(self) -> DriverFigures | None:
        """The driver's account of this process beside what the pools hold."""
        return self._account.figures(self.ledger.reserved, self.bridge.libraries(), gpu_gemm.unseen(self.index))


def array_over(owner: Any, offset: int, spec: TensorSpec) -> cupy.ndarray:
    """A CuPy array over part of ``owner``, as ``spec`` shows it. Needs no driver."""
    step = spec.dtype.itemsize
    pointer = memory.MemoryPointer(owner, offset + spec.offset * step)
    return cupy.ndarray(spec.shape, spec.dtype, pointer, tuple(s * step for s in spec.strides))


def export(value: Any, shown: Any = None) -> cupy.ndarray:
    """A CuPy array that shares a tensor's bytes and keeps them alive, and ``shown`` with them."""
    storage = value.storage
    return array_over(StorageMemory(storage, getattr(storage.device, "index", 0), shown), 0, value.spec)


def make_cuda(index: int) -> CudaDevice:
    """The GPU, with ``GRADCORE_MEMORY_LIMIT``, ``GRADCORE_STRICT=1`` and ``GRADCORE_POISON=1`` from the environment."""
    return CudaDevice(index, limit=limit_from("GRADCORE_MEMORY_LIMIT"), strict=os.environ.get("GRADCORE_STRICT") == "1",
                      poison=os.environ.get("GRADCORE_POISON") == "1")
