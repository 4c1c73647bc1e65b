"""Turns CUDA's errors into gradcore's, which say what happened, in which kernel, and what to do about it.

A kernel runs after the call that launched it has returned, so its fault is reported by some later call.
``GRADCORE_LAUNCH_BLOCKING=1`` waits after each op; then the op in the message is the op with the fault.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from gradcore.errors import DeviceError, DeviceFault, KernelError
from gradcore.memory.driver import CudaDriver, CudaSource
from gradcore.memory.resource import Segment, Stream
from gradcore.units import switch_from

#: cudaErrorInitializationError, from every call in a process that was forked from one that had used the device.
_FORKED = 3
#: Faults of running kernels by cudaError_t, with the same numbers as CUresult. The context is unusable afterwards.
FAULTS = {
    _FORKED: "CUDA cannot be used in a process that was forked from one that had used the device: start the process with "
             "multiprocessing.get_context('spawn')",
    214: "uncorrectable error in the device's memory", 220: "uncorrectable error in the connection between devices",
    226: "an error of the hardware or of the connection between devices, which the device has contained",
    700: "a kernel used an address outside any allocation", 702: "a kernel exceeded the system's time limit",
    710: "an assertion failed in a kernel", 714: "a kernel's call stack was corrupted",
    715: "a kernel executed an illegal instruction", 716: "a kernel used a misaligned address",
    717: "a kernel used an address of the wrong address space", 718: "a kernel's program counter is invalid",
    719: "a kernel failed", 721: "a kernel did not give its tensor memory back"}
#: Reasons for which a launch can be refused, by cudaError_t.
_REFUSED = {1: "an argument is invalid", 2: "the device has no memory left for the kernel's code",
            9: "the grid or the blocks are larger than the device allows",
            98: "the kernel's code was not loaded", 701: "a block needs more registers or shared memory than available"}
#: Machine code for another device, or for a newer driver.
_FOREIGN = (209, 218, 222, 223)


def _fault(error: BaseException, doing: str, blocking: bool = False) -> DeviceFault:
    """The error for a kernel's fault that was noticed while ``doing`` something."""
    status: int = error.status  # type: ignore[attr-defined]
    if status == _FORKED:
        return DeviceFault(f"CUDA error {status}: {FAULTS[status]} ({error})")
    after = "This process can no longer use the device"
    if blocking:
        return DeviceFault(f"CUDA error {status} in the op that ran last: {FAULTS[status]} ({error}). {after}")
    return DeviceFault(f"CUDA error {status}, noticed while {doing}: {FAULTS[status]} ({error}). The kernel was launched "
                       f"earlier: set GRADCORE_LAUNCH_BLOCKING=1 to find the op. {after}")


def raise_fault(error: BaseException, doing: str, blocking: bool = False) -> None:
    """Raise :class:`DeviceFault` for a CUDA error that occurred while ``doing`` something, if a kernel caused it.

    No frame of the traceback may hold it in a variable: the reference cycle would keep the tensors of all frames alive.
    """
    if getattr(error, "status", None) in FAULTS:
        raise _fault(error, doing, blocking) from error


class Watch(contextlib.AbstractContextManager[None]):
    """A context manager that raises :class:`DeviceFault` for a fault noticed inside; ``doing`` describes the work there."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            raise_fault(error, self._doing)


class WatchedSource(CudaSource):
    """Segments from cudaMalloc, with faults that the call reports raised as :class:`DeviceFault`."""

    def allocate(self, nbytes: int) -> Segment:
        with Watch("allocating memory"):
            return super().allocate(nbytes)


class WatchedDriver(CudaDriver):
    """The driver's calls on streams and events, with faults that they report raised as :class:`DeviceFault`."""

    def record(self, stream: Stream) -> Any:
        with Watch("ordering streams"):
            return super().record(stream)

    def wait(self, stream: Stream, event: Any) -> None:
        with Watch("ordering streams"):
            super().wait(stream, event)

    def synchronize(self) -> None:
        with Watch("synchronizing the device"):
            super().synchronize()

    def synchronize_stream(self, stream: Stream) -> None:
        with Watch("synchronizing a stream"):
            super().synchronize_stream(stream)

    def synchronize_event(self, event: Any) -> None:
        with Watch("synchronizing an event"):
            super().synchronize_event(event)

    def _done(self, query: Callable[[], Any]) -> bool:
        with Watch("querying a stream or an event"):
            return super()._done(query)


def wait_after(launch: Callable[..., Any], cuda: Any) -> Callable[..., Any]:
    """A launch that waits for the device, and raises :class:`DeviceFault` for a fault of the kernel."""

    @functools.wraps(launch, updated=())
    def launched(*arrays: Any) -> None:
        launch(*arrays)
        try:
            cuda.deviceSynchronize()
        except Exception as error:
            raise_fault(error, "", blocking=True)
            raise

    return launched


def blocking() -> bool:
    """Is ``GRADCORE_LAUNCH_BLOCKING=1`` set?"""
    return switch_from("GRADCORE_LAUNCH_BLOCKING")


def of_launch(error: Exception, family: str, instance: str, blocks: int, threads: int) -> Exception:
    """The exception to raise for an error in compiling, loading or launching a kernel: a :class:`KernelError` if it is the
    kernel's, a :class:`DeviceFault` if it is an earlier kernel's, a :class:`DeviceError` for a missing library."""
    name = f"kernel {instance} of {family}.cu"
    if isinstance(error, ImportError):
        return DeviceError(f"{name} cannot be compiled: {str(error).rstrip('.')}. NVRTC and CUDA's headers come with pip "
                           "install 'gradcore[cuda13]', or 'gradcore[cuda12]' for a driver of CUDA 12")
    if isinstance(error, ChildProcessError):
        return KernelError(f"{name} cannot be compiled: {str(error).strip()} CuPy has another process look for CUDA's headers, "
                           "which has some seconds for it: try again when the machine is less busy")
    if isinstance(error, OSError):
        return KernelError(f"{name} cannot be compiled: {error}. CuPy keeps machine code in ~/.cupy/kernel_cache: set "
                           "CUPY_CACHE_DIR to a folder that can be written to, or CUPY_CACHE_IN_MEMORY=1 for none")
    if type(error).__name__ == "CompileException":
        lines = [line for line in str(error).splitlines() if line.strip()]
        wrong = [line for line in lines if "error" in line.lower()] or lines
        return KernelError(f"{name} does not compile: " + "\n  ".join(wrong[:5]))
    status = getattr(error, "status", None)
    if status in FAULTS:
        return _fault(error, f"launching {name}")
    if status in _FOREIGN:
        return KernelError(f"{name} was compiled for another device or a newer driver ({error}): clear CuPy's cache "
                           "(~/.cupy/kernel_cache), and install the packages that fit the driver with "
                           "pip install 'gradcore[cuda13]' or 'gradcore[cuda12]'")
    why = _REFUSED.get(status or 0, "CUDA refused it")
    return KernelError(f"{name} cannot be launched with {blocks:,} blocks of {threads} threads: {why} ({error})")


def of_product(text: str, cuda: Any) -> Exception:
    """The exception to raise if a library refuses a matrix product: a :class:`DeviceFault` if a kernel that was launched before
    has failed, for which libraries have errors of their own, else a :class:`KernelError` with ``text``."""
    try:
        # Like any call that comes after a fault, it fails with the fault's number; and a capture allows it.
        cuda.memGetInfo()
    except cuda.CUDARuntimeError as error:
        if error.status in FAULTS:
            return _fault(error, "launching a matrix product")
    return KernelError(text)
