"""The CUDA device: segments from cudaMalloc, with CuPy arrays over blocks of the pool.

The CUDA runtime is an argument, so that a mock can replace it on a machine without a driver; memory/driver.py lists the calls
but for those that copy. CuPy's arrays over blocks work without a driver.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from cupy.cuda import memory, runtime

from gradcore.devices.adapting import numbers_fitted
from gradcore.devices.availability import cuda_status
from gradcore.devices.calls import Operands, Steps
from gradcore.devices.device import Device
from gradcore.devices.gpu import faults, gemm, loaded, workspaces
from gradcore.devices.gpu.again import again
from gradcore.devices.gpu.current import OnDevice
from gradcore.devices.gpu.faults import WatchedDriver, WatchedSource
from gradcore.devices.gpu.fused import fused
from gradcore.devices.gpu.graphs import Graphs, Refusing, refuse
from gradcore.devices.gpu.kernels import KERNELS
from gradcore.devices.gpu.launch import extent, refuse_notes
from gradcore.devices.storage import Storage
from gradcore.errors import OutOfMemory, UndeclaredAllocation
from gradcore.events import Site, Tag
from gradcore.memory.driver import DEVICE_TO_HOST, HOST_TO_DEVICE
from gradcore.memory.ledger import Ledger
from gradcore.memory.resource import Block, Segment, Stream
from gradcore.memory.stack import build
from gradcore.report.driver import DriverAccount
from gradcore.report.step import DriverFigures, LibraryBytes
from gradcore.spec import TensorSpec
from gradcore.units import limit_from, switch_from

_PAGE_LOCKED = 1  # cudaMemoryTypeHost


class SegmentMemory(memory.BaseMemory):  # type: ignore[misc]
    """The owner of internal arrays: an address range of the pool. By itself it keeps nothing alive and frees nothing."""

    def __init__(self, ptr: int, size: int, device_id: int) -> None:
        self.ptr = ptr
        self.size = size
        self.device_id = device_id


class ForeignMemory(SegmentMemory):
    """The owner of arrays over the memory of another library's array, which it keeps alive."""

    def __init__(self, array: cupy.ndarray, nbytes: int) -> None:
        super().__init__(array.data.ptr, nbytes, array.data.device_id)
        self.array = array


class StorageMemory(SegmentMemory):
    """The owner of an array that the user gets: it holds the storage, so the block lives as long as the array.

    If the export is to be accounted for, it holds ``shown`` instead, which holds the storage.
    """

    def __init__(self, storage: Storage, device_id: int, shown: Any) -> None:
        super().__init__(storage.block.address, storage.block.size, device_id)
        self._block = storage.block
        self._held = storage if shown is None else shown

    @property
    def tag(self) -> Tag:
        """The tag of the owner of the bytes."""
        return self._block.tag


class ScratchMemory(SegmentMemory):
    """The owner of memory that CuPy allocated for itself: it returns the block to the scratch pool when it is freed."""

    def __init__(self, ledger: Ledger, block: Block, device_id: int) -> None:
        # First, so that an interrupt in a call leaves no block without an owner.
        self._ledger = ledger
        self._block = block
        super().__init__(block.address, block.size, device_id)

    def __del__(self) -> None:
        self._ledger.release(self._block)


class Bridge:
    """Serves CuPy's own allocations during gradcore's kernels from a scratch pool.

    That memory is reported separately and is not in the log, since it depends on CuPy's version, not only on shapes. In strict
    mode such an allocation raises :class:`UndeclaredAllocation` at once, as CuPy may be inside a kernel of its own.
    """

    def __init__(self, ledger: Ledger, current: Callable[[], Stream], device_id: int, strict: bool) -> None:
        self.ledger = ledger
        self.strict = strict
        #: The id of the thread that is capturing and may not allocate, or None.
        self.capturing: int | None = None
        #: By op: the number of allocations and their bytes.
        self.seen: dict[str, tuple[int, int]] = {}
        self._current = current
        # A stream object holds the free lists of one pool, so this pool has its own object for each stream of the device.
        self._streams: dict[Stream, Stream] = {}
        self._device_id = device_id
        self._op = ""

    def allocate(self, nbytes: int) -> memory.MemoryPointer:
        """The allocator that CuPy calls for every array that it makes."""
        refuse_notes()
        refuse(self.capturing, nbytes)
        if self.strict:
            raise UndeclaredAllocation(f"CuPy allocated {nbytes} bytes in the kernel of op {self._op!r}, which declares no "
                                       "such workspace")
        count, total = self.seen.get(self._op, (0, 0))
        self.seen[self._op] = count + 1, total + nbytes
        tag = Tag(self._op, "", "library", "workspace", Site("<cupy>", 0, self._op), None, None)
        return memory.MemoryPointer(self._take(nbytes, tag), 0)

    def reserve(self, nbytes: int, library: str, op: str) -> ScratchMemory:
        """Workspace of ``nbytes`` for a library in ops like ``op``, as long as the result is held; allowed in strict mode. It
        belongs to the current stream, like the work that uses it."""
        tag = Tag(op, "", "library", "workspace", Site(f"<{library}>", 0, ""), None, None)
        return self._take(nbytes, tag)

    def _take(self, nbytes: int, tag: Tag) -> ScratchMemory:
        current = self._current()
        stream = self._streams.setdefault(current, Stream(current.index, current.handle))
        return ScratchMemory(self.ledger, self.ledger.allocate(nbytes, stream, tag), self._device_id)

    def libraries(self) -> list[LibraryBytes]:
        """The bytes of the scratch pool by library and op, and those that are cached."""
        held: Counter[str] = Counter()
        for block in self.ledger.live.values():
            tag = block.tag
            held[f"{tag.site.file.strip('<>')} in {tag.op}"] += block.size
        cached = self.ledger.reserved - sum(held.values())
        rows = [LibraryBytes(name, nbytes) for name, nbytes in held.most_common()]
        names = ", ".join(sorted(op for op in self.seen if op))
        return [*rows, LibraryBytes(f"cached scratch memory (of {names or 'no op'})", cached)] if cached else rows

    def wrap(self, op: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel, which runs with this allocator in place of CuPy's own."""

        @functools.wraps(kernel, updated=())
        def launch(*arrays: Any) -> None:
            before, self._op = self._op, op
            try:
                with cupy.cuda.using_allocator(self.allocate):
                    kernel(*arrays)
            finally:
                self._op = before

        return launch


class CudaDevice(Device):
    """One GPU. Work goes to CUDA's default stream, so that it is ordered with the user's own CuPy code.

    With ``strict`` undeclared allocations by CuPy are errors; with ``poison`` blocks are filled with ones when they are
    allocated and freed. ``staged``: a copy from pageable memory has read it when the call returns.
    """

    type = "cuda"
    index: int

    def __init__(self, index: int, *, cuda: Any = runtime, limit: int | None = None, strict: bool = False,
                 poison: bool = False, staged: bool = True) -> None:
        def owner(address: int, nbytes: int) -> SegmentMemory:
            return SegmentMemory(address, nbytes, index)

        stream = Stream(0, 0)
        stack = build(WatchedSource(index, cuda, owner), WatchedDriver(cuda, index), limit=limit,
                      poison=self._fill_with_ones if poison else None)
        stream.driver = stack.driver
        super().__init__(f"cuda:{index}", stack, stream, dict(KERNELS))
        self.index = index
        self._cuda = cuda
        self.staged = staged
        # Before anything else on the device, since it measures the bytes of the context.
        self._account = DriverAccount(index, cuda)
        scratch = build(WatchedSource(index, cuda, owner), WatchedDriver(cuda, index))
        self.bridge = Bridge(scratch.ledger, lambda: self.current, index, strict)
        workspaces.RESERVES[index] = self._reserve
        workspaces.FLUSHES[index] = lambda: self.ledger.flush() + self.bridge.ledger.flush()
        loaded.FIGURES[index] = self._held_and_used
        self._blocking = faults.blocking()
        # Waiting after each kernel is impossible if all are one launch.
        self.graphs = None if self._blocking else Graphs(self, cuda)

    def _held_and_used(self) -> tuple[int, int | None]:
        """The bytes that the pools hold, and those that the driver says this process uses, or None."""
        held = self.ledger.reserved + self.bridge.ledger.reserved
        return held, self._account.of_process(held)

    def _reserve(self, nbytes: int, library: str, op: str) -> ScratchMemory:
        try:
            return self.bridge.reserve(nbytes, library, op)
        except OutOfMemory:
            # Free what the pool of tensors has cached on the card, and try again.
            self.ledger.flush()
            return self.bridge.reserve(nbytes, library, op)

    def _fill_with_ones(self, block: Block) -> None:
        """Poison a block, on its own stream, after all work that used it."""
        for user in block.users or ():
            self.order(user, block.stream)
        self._cuda.memsetAsync(block.address, 0xFF, block.size, block.stream.handle)

    def activate(self, stream: Stream) -> Callable[[], Any]:
        theirs = cupy.cuda.get_current_stream(self.index)
        self.launch_on(stream)
        # The user's own CuPy code goes there, too.
        self.here(self._of_cupy(stream).use)()
        return self.here(theirs.use)

    def _of_cupy(self, stream: Stream) -> Any:
        """CuPy's object for a stream, which newer versions of CuPy take for one of the device that is current now."""
        return self.here(workspaces.of_cupy)(stream.handle)

    def launch_on(self, stream: Stream) -> None:
        """Launch this thread's kernels on ``stream`` from now on; CuPy's current stream stays what it is."""
        workspaces.choose(self.index, self._of_cupy(stream))

    def prepare_capture(self, stream: Stream) -> None:
        """Allocate the workspaces of a stream that is going to capture, if kernels that need them have run.

        The workspaces are ready when it returns: what used their bytes before is done, and counters in them are cleared, since
        nothing orders the streams that the graph will be launched on after this one.
        """
        library, shared = gemm.LIBRARIES.get(self.index), workspaces.SHARED.get(self.index)
        for found in (library.workspaces if isinstance(library, gemm.CublasLt) else None, shared):
            if found is not None:
                self.here(found.of)(stream.handle)
        # Behind the allocations, which may have made the current stream wait for those whose memory they took.
        self.order(self.current, stream)
        self._cuda.streamSynchronize(stream.handle)

    def refuse_memory(self, thread: int | None) -> None:
        """Refuse allocations by the thread that captures; None allows all threads again."""
        self.bridge.capturing = thread
        self.memory = self.stack.top if thread is None else Refusing(self.stack.top, thread)

    def suited(self, kernel: Callable[..., Any], operands: Operands) -> tuple[Callable[..., Any], int]:
        return numbers_fitted(kernel, operands), 0

    def bind(self, kernel: Callable[..., Any], op: str = "", any_strides: bool = False) -> Callable[..., Any]:
        launch = self.bridge.wrap(op, kernel)
        return self.here(faults.wait_after(launch, self._cuda) if self._blocking else again(launch, any_strides))

    def here(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called with this device current."""
        return self._cuda.wrap(function) if isinstance(self._cuda, OnDevice) else function

    def fused(self, kind: str, steps: Steps) -> Steps | None:
        found: Steps | None = self.here(fused)(kind, steps, self.bind)
        return found

    def foreign(self, array: cupy.ndarray, nbytes: int) -> Segment:
        return Segment(nbytes, array.data.ptr, ForeignMemory(array, nbytes))

    def array_for_others(self, value: Any, shown: Any) -> cupy.ndarray:
        # CuPy lets others wait for its own stream.
        workspaces.lend(self, value.storage.block)
        return export(value, shown)

    def array_of_others(self, given: Any) -> cupy.ndarray:
        return cupy.from_dlpack(given)

    def make_array(self, block: Block, spec: TensorSpec) -> cupy.ndarray:
        return array_over(block.segment.memory, block.offset, spec)

    def copy_in(self, array: cupy.ndarray, values: np.ndarray[Any, Any]) -> None:
        values = np.ascontiguousarray(values, array.dtype)
        if values.nbytes:
            # From pageable memory the call returns once the values are staged, if so, and they may change afterwards.
            with faults.Watch("writing a tensor"):
                self._cuda.memcpyAsync(array.data.ptr, values.ctypes.data, values.nbytes, HOST_TO_DEVICE,
                                       self.current.handle)
                if not self.staged or self._cuda.pointerGetAttributes(values.ctypes.data).type == _PAGE_LOCKED:
                    self._cuda.streamSynchronize(self.current.handle)

    def copy_across(self, array: cupy.ndarray, pinned: Any, back: bool = False) -> None:
        host = pinned.array
        if back and not array.flags.c_contiguous:
            np.copyto(host, self.copy_out(array))
            return
        if not back:
            # If elements are not contiguous, this makes a pageable copy, which is staged when the call returns.
            host = np.ascontiguousarray(host)
        if array.nbytes:
            pinned.storage.block.use_on(self.copies)
            ends = (host.ctypes.data, array.data.ptr) if back else (array.data.ptr, host.ctypes.data)
            with faults.Watch("reading a tensor" if back else "writing a tensor"):
                self._cuda.memcpyAsync(*ends, array.nbytes, DEVICE_TO_HOST if back else HOST_TO_DEVICE, self.copies.handle)
                if not self.staged and host is not pinned.array:
                    self._cuda.streamSynchronize(self.copies.handle)

    def copy_out(self, array: cupy.ndarray) -> np.ndarray[Any, Any]:
        if not array.size:
            return np.empty(array.shape, array.dtype)
        # CuPy would first gather strided elements in memory of its own on the device, so the whole span is copied instead.
        start, end = extent(array)
        span = np.empty(end - start, np.uint8)
        with faults.Watch("reading a tensor"):
            self._cuda.memcpyAsync(span.ctypes.data, start, span.nbytes, DEVICE_TO_HOST, self.current.handle)
            self._cuda.streamSynchronize(self.current.handle)
        found = np.ndarray(array.shape, array.dtype, span, array.data.ptr - start, array.strides)
        return found if found.flags.c_contiguous else found.copy()

    def driver_figures(self) -> DriverFigures | None:
        """The driver's figures for this process, compared with what the pools hold."""
        return self._account.figures(self.ledger.reserved, [*self.bridge.libraries(), *loaded.code(self.index)],
                                     gemm.unseen(self.index))


def array_over(owner: Any, offset: int, spec: TensorSpec) -> cupy.ndarray:
    """A CuPy array over ``owner`` with the layout of ``spec``, ``offset`` bytes from its start. Needs no driver."""
    step = spec.dtype.itemsize
    pointer = memory.MemoryPointer(owner, offset + spec.offset * step)
    return cupy.ndarray(spec.shape, spec.dtype, pointer, tuple(s * step for s in spec.strides))


def export(value: Any, shown: Any = None) -> cupy.ndarray:
    """A CuPy array that shares a tensor's memory and keeps it, and ``shown``, alive."""
    storage = value.storage
    return array_over(StorageMemory(storage, getattr(storage.device, "index", 0), shown), 0, value.spec)


def make_cuda(index: int) -> CudaDevice:
    """The GPU, with ``GRADCORE_MEMORY_LIMIT``, ``GRADCORE_STRICT=1`` and ``GRADCORE_POISON=1`` from the environment."""
    cuda = OnDevice(runtime, index) if cuda_status().devices > 1 else runtime
    # A GPU that is coherent with its CPU (Grace) copies from pageable memory by itself, and may come to it late.
    staged = not runtime.getDeviceProperties(index).get("pageableMemoryAccessUsesHostPageTables")
    return CudaDevice(index, cuda=cuda, limit=limit_from("GRADCORE_MEMORY_LIMIT"),
                      strict=switch_from("GRADCORE_STRICT"), poison=switch_from("GRADCORE_POISON"),
                      staged=staged)
