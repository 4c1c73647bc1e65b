"""Pinned memory: host memory that a GPU can copy from and to while the host continues.

It is a place and no device of its own: its tensors are on ``cpu``, ops on them run there and make ordinary tensors. The
pool has a ledger of its own, under the name ``pinned``. Without a GPU the bytes are plain host memory, and the records the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradcore.devices.availability import cuda_status
from gradcore.devices.device import Device, get_device, register
from gradcore.devices.host import HostDevice
from gradcore.memory.driver import CudaDriver, PinnedSource
from gradcore.memory.pinned import AfterCopies
from gradcore.memory.resource import Stream
from gradcore.memory.sources import HostSource
from gradcore.memory.stack import build
from gradcore.memory.streams import NoDriver
from gradcore.units import limit_from

#: Serials of pinned blocks begin here: in a log of the CPU, which ops read them in, no number means two buffers.
_FIRST = 1 << 40


class PinnedDevice(HostDevice):
    """The pool of pinned memory; ``locked`` says whether its pages are locked, so that a GPU copies them by itself.

    ``runtime`` is the CUDA runtime, None where there is no GPU. Dispatch remembers no calls here, and looks on the CPU instead.
    """

    def __init__(self, runtime: Any = None, limit: int | None = None) -> None:
        driver = NoDriver() if runtime is None else CudaDriver(runtime)
        stack = build(HostSource() if runtime is None else PinnedSource(runtime), driver, limit=limit)
        stack.pool.serial = _FIRST
        super().__init__("pinned", stack, Stream(0), {})
        self.memory = AfterCopies(stack.top, driver)
        self.locked = runtime is not None

    @property
    def compute(self) -> Device:
        return get_device("cpu")

    def kernel(self, name: str) -> Callable[..., Any]:
        raise AssertionError(f"{name} runs on {self.compute.name}")


def make_pinned(index: int = 0) -> PinnedDevice:
    """Page-locked memory where there is a GPU; ``GRADCORE_PINNED_LIMIT`` limits the pool."""
    return PinnedDevice(_runtime(), limit_from("GRADCORE_PINNED_LIMIT"))


def _runtime() -> Any:
    """The CUDA runtime, None where there is no GPU."""
    if not cuda_status().available:
        return None
    from cupy.cuda import runtime

    return runtime


register("pinned", make_pinned)
