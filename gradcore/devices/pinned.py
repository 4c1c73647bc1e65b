"""Pinned memory: host memory that a GPU can copy from and to while the host continues.

It is not a device for the user: its tensors are on ``cpu``, and ops on them run there and make ordinary tensors. The pool has a
ledger of its own, under the name ``pinned``. Without a GPU the memory is pageable, and the records are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradcore.devices.availability import cuda_status
from gradcore.devices.device import Device, devices, get_device, register
from gradcore.devices.gpu.current import OnDevice
from gradcore.devices.host.device import HostDevice
from gradcore.memory.driver import CudaDriver, PinnedSource
from gradcore.memory.pinned import AfterCopies
from gradcore.memory.resource import Stream
from gradcore.memory.sources import HostSource
from gradcore.memory.stack import build
from gradcore.memory.streams import NoDriver
from gradcore.units import limit_from

#: The first serial of pinned blocks: they occur in logs of the CPU, whose serials must differ from them.
_FIRST = 1 << 40


class _EveryGpu(CudaDriver):
    """The driver's calls for memory that all GPUs copy from and to."""

    def synchronize(self) -> None:
        used = [device for device in devices() if device.type == "cuda"]
        for device in used:
            device.synchronize()
        if not used:
            super().synchronize()


class PinnedDevice(HostDevice):
    """The pool of pinned memory; ``locked`` says whether its pages are locked, so that a GPU can copy them asynchronously.

    ``runtime`` is the CUDA runtime, None without a GPU. Dispatch caches no calls here, but uses those of the CPU.
    """

    pinned = True

    def __init__(self, runtime: Any = None, limit: int | None = None) -> None:
        driver = NoDriver() if runtime is None else _EveryGpu(runtime)
        stack = build(HostSource() if runtime is None else PinnedSource(runtime), driver, limit=limit)
        stack.pool.serial = stack.pool.first = _FIRST
        super().__init__("pinned", stack, Stream(0), {})
        self.memory = AfterCopies(stack.top, driver, stack.pool.segments)
        self.locked = runtime is not None

    @property
    def compute(self) -> Device:
        return get_device("cpu")

    def kernel(self, name: str) -> Callable[..., Any]:
        raise AssertionError(f"{name} runs on {self.compute.name}")


def make_pinned(index: int = 0) -> PinnedDevice:
    """The device for pinned memory, page-locked if there is a GPU; ``GRADCORE_PINNED_LIMIT`` limits the pool."""
    return PinnedDevice(_runtime(), limit_from("GRADCORE_PINNED_LIMIT"))


def _runtime() -> Any:
    """The CUDA runtime, or None without a GPU."""
    if not cuda_status().available:
        return None
    from cupy.cuda import runtime

    return where_used(runtime, cuda_status().devices)


def where_used(cuda: Any, count: int) -> Any:
    """The runtime of ``count`` GPUs, which calls it on one that this process uses already, if any: page-locked memory is of a
    context, and the GPU that is current may have none. To create one takes hundreds of megabytes of its memory.
    """
    used = next((device.index for device in devices() if device.type == "cuda"), None)
    return cuda if count == 1 or used is None else OnDevice(cuda, used)


register("pinned", make_pinned)
