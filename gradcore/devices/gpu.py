"""The GPU: the same Device over CuPy, with segments from cudaMalloc and arrays over our own blocks.

Every call to the CUDA runtime passes :class:`CudaSource` and :class:`CudaDriver`, which take the runtime as an argument,
so that a mock can stand in where there is no driver. CuPy's own objects (arrays over blocks) work without one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from cupy.cuda import memory, runtime

from gradcore.devices import gpu_faults, gpu_gemm
from gradcore.devices.device import Device, Storage
from gradcore.devices.gpu_kernels import build_cuda_kernels
from gradcore.errors import OutOfMemory, SourceExhausted, UndeclaredAllocation
from gradcore.events import TAGS, Site, Tag
from gradcore.memory.ledger import Ledger
from gradcore.memory.resource import Block, Segment, Stream
from gradcore.memory.stack import build
from gradcore.memory.streams import NoDriver
from gradcore.report.step import DriverFigures
from gradcore.spec import TensorSpec
from gradcore.units import parse_bytes

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_DISABLE_TIMING = 2  # cudaEventDisableTiming


class SegmentMemory(memory.BaseMemory):  # type: ignore[misc]
    """The owner of internal arrays: an address range that the pool keeps. It pins nothing and frees nothing."""

    def __init__(self, ptr: int, size: int, device_id: int) -> None:
        self.ptr = ptr
        self.size = size
        self.device_id = device_id


class StorageMemory(memory.BaseMemory):  # type: ignore[misc]
    """The owner of an array that leaves to the user: it holds the storage, so the block lives as long as the array."""

    def __init__(self, storage: Storage, device_id: int) -> None:
        self.ptr = storage.block.address
        self.size = storage.block.size
        self.device_id = device_id
        self.storage = storage

    @property
    def tag(self) -> Tag:
        """Whom the bytes belong to."""
        return TAGS[self.storage.block.tag]


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


class CudaSource:
    """Segments from cudaMalloc."""

    def __init__(self, device_id: int, cuda: Any = runtime) -> None:
        self._device_id = device_id
        self._cuda = cuda

    def allocate(self, nbytes: int) -> Segment:
        self._cuda.setDevice(self._device_id)
        try:
            address = self._cuda.malloc(nbytes)
        except self._cuda.CUDARuntimeError as error:
            if error.status != _OUT_OF_MEMORY:
                gpu_faults.raise_fault(error, "memory was allocated")
                raise
            raise SourceExhausted(f"cudaMalloc refused {nbytes} bytes on cuda:{self._device_id}") from error
        return Segment(nbytes, address, SegmentMemory(address, nbytes, self._device_id))

    def deallocate(self, segment: Segment) -> None:
        segment.memory = None
        self._cuda.free(segment.address)


class CudaDriver:
    """Order between streams by events."""

    def __init__(self, cuda: Any = runtime) -> None:
        self._cuda = cuda

    def record(self, stream: Stream) -> Any:
        event = self._cuda.eventCreateWithFlags(_DISABLE_TIMING)
        self._cuda.eventRecord(event, stream.handle)
        return event

    def wait(self, stream: Stream, event: Any) -> None:
        self._cuda.streamWaitEvent(stream.handle, event, 0)
        # The driver keeps an event until the work behind it is done.
        self._cuda.eventDestroy(event)

    def synchronize(self) -> None:
        self._cuda.deviceSynchronize()


class Bridge:
    """Serves what CuPy allocates for itself while one of our kernels runs, from a pool of its own.

    That memory is listed beside the log, never in it: which call makes it depends on CuPy's version, not on shapes. In
    strict mode it is an error. An allocator may be asked in the middle of a kernel of CuPy's, so it raises at once.
    """

    def __init__(self, ledger: Ledger, stream: Stream, device_id: int, strict: bool) -> None:
        self.ledger = ledger
        self.strict = strict
        #: Allocations and bytes by op.
        self.seen: dict[str, tuple[int, int]] = {}
        self._stream = stream
        self._device_id = device_id
        self._op = ""

    def allocate(self, nbytes: int) -> memory.MemoryPointer:
        """What CuPy calls for every array that it makes."""
        if self.strict:
            raise UndeclaredAllocation(f"CuPy allocated {nbytes} bytes in the kernel of op {self._op!r}, which declares no "
                                       "such workspace")
        count, total = self.seen.get(self._op, (0, 0))
        self.seen[self._op] = count + 1, total + nbytes
        tag = TAGS.index(Tag(self._op, "", "library", "workspace", Site("<cupy>", 0, self._op), None, None))
        block = self.ledger.allocate(nbytes, self._stream, tag)
        return memory.MemoryPointer(ScratchMemory(self.ledger, block, self._device_id), 0)

    def reserve(self, nbytes: int, library: str) -> ScratchMemory:
        """Memory that a library works in, for as long as it is held: declared, so that strict mode has nothing against it."""
        tag = TAGS.index(Tag("matmul", "", "library", "workspace", Site(f"<{library}>", 0, ""), None, None))
        return ScratchMemory(self.ledger, self.ledger.allocate(nbytes, self._stream, tag), self._device_id)

    def wrap(self, op: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel, run with this allocator in CuPy's place."""

        def launch(*arrays: Any) -> None:
            before, self._op = self._op, op
            try:
                with cupy.cuda.using_allocator(self.allocate):
                    kernel(*arrays)
            finally:
                self._op = before

        return launch


class CudaDevice(Device):
    """One GPU. Work goes to CUDA's default stream, so that a user's own CuPy code is ordered with ours."""

    type = "cuda"

    def __init__(self, index: int, *, cuda: Any = runtime, limit: int | None = None, strict: bool = False) -> None:
        stream = Stream(0, 0)
        stack = build(CudaSource(index, cuda), CudaDriver(cuda), limit=limit)
        super().__init__(f"cuda:{index}", stack, stream, build_cuda_kernels())
        self.index = index
        self._cuda = cuda
        scratch = build(CudaSource(index, cuda), NoDriver())
        self.bridge = Bridge(scratch.ledger, Stream(0, 0), index, strict)
        gpu_gemm.RESERVES[index] = self._reserve
        self._blocking = gpu_faults.blocking()

    def _reserve(self, nbytes: int, library: str) -> ScratchMemory:
        try:
            return self.bridge.reserve(nbytes, library)
        except OutOfMemory:
            # What the pool of the tensors has cached is the card's too.
            self.ledger.flush()
            return self.bridge.reserve(nbytes, library)

    def bind(self, kernel: Callable[..., Any], op: str = "") -> Callable[..., Any]:
        launch = self.bridge.wrap(op, kernel)
        return gpu_faults.wait_after(launch, self._cuda) if self._blocking else launch

    def make_array(self, block: Block, spec: TensorSpec) -> cupy.ndarray:
        return array_over(block.segment.memory, block.offset, spec)

    def copy_in(self, array: cupy.ndarray, values: np.ndarray[Any, Any]) -> None:
        values = np.ascontiguousarray(values, array.dtype)
        if values.nbytes:
            # From pageable memory the call returns when the values have been staged, so they may change after it.
            with gpu_faults.Watch("a tensor was filled"):
                self._cuda.memcpyAsync(array.data.ptr, values.ctypes.data, values.nbytes, 1, self.stream.handle)

    def copy_out(self, array: cupy.ndarray) -> np.ndarray[Any, Any]:
        with gpu_faults.Watch("a tensor was read"), cupy.cuda.using_allocator(self.bridge.allocate):
            return np.asarray(cupy.asnumpy(array))

    def synchronize(self) -> None:
        with gpu_faults.Watch("the device was waited for"):
            self._cuda.deviceSynchronize()

    def driver_figures(self) -> DriverFigures | None:
        """The driver's account: this process's bytes by NVML where it can tell, else the device's used bytes."""
        free, whole = self._cuda.memGetInfo()
        segments, library = self.ledger.reserved, self.bridge.ledger.reserved
        used, source = _process_bytes(self.index)
        if used is None:
            used, source = whole - free, "cudaMemGetInfo, all processes"
        return DriverFigures(used, source, None, segments, library, used - segments - library,
                             unseen=gpu_gemm.unseen(self.index))


def _process_bytes(index: int) -> tuple[int | None, str]:
    """Bytes that NVML says this process uses, None where it cannot tell (containers, MIG)."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory), "NVML"
    except Exception as error:  # NVML is a report's footnote: whatever it cannot do, the step goes on
        return None, f"NVML: {error}"
    return None, "NVML does not know this process"


def array_over(owner: Any, offset: int, spec: TensorSpec) -> cupy.ndarray:
    """A CuPy array over part of ``owner``, as ``spec`` shows it. Needs no driver."""
    step = spec.dtype.itemsize
    pointer = memory.MemoryPointer(owner, offset + spec.offset * step)
    return cupy.ndarray(spec.shape, spec.dtype, pointer, tuple(s * step for s in spec.strides))


def export(value: Any) -> cupy.ndarray:
    """A CuPy array that shares a tensor's bytes and keeps them alive."""
    storage = value.storage
    return array_over(StorageMemory(storage, getattr(storage.device, "index", 0)), 0, value.spec)


def make_cuda(index: int) -> CudaDevice:
    """The GPU, with ``GRADCORE_MEMORY_LIMIT`` and ``GRADCORE_STRICT=1`` from the environment."""
    limit = os.environ.get("GRADCORE_MEMORY_LIMIT")
    return CudaDevice(index, limit=parse_bytes(limit) if limit else None, strict=os.environ.get("GRADCORE_STRICT") == "1")
