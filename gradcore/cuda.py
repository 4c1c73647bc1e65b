"""The names that scripts use for the GPU, as PyTorch spells them. Sizes are bytes."""

from __future__ import annotations

from gradcore import _memory
from gradcore.devices.availability import cuda_status
from gradcore.devices.device import Device, get_device
from gradcore.errors import OutOfMemory as OutOfMemoryError

AnyDevice = str | Device | None

__all__ = ["OutOfMemoryError", "current_device", "device_count", "empty_cache", "get_device_name", "is_available",
           "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved", "memory_summary",
           "reset_peak_memory_stats", "synchronize"]


def is_available() -> bool:
    """Is there a GPU that gradcore can use: a driver, a device, and CuPy?"""
    return cuda_status().available


def device_count() -> int:
    return cuda_status().devices


def current_device() -> int:
    return 0


def get_device_name(device: AnyDevice = None) -> str:
    return get_device(device or "cuda").name


def synchronize(device: AnyDevice = None) -> None:
    """Wait for all work on the device."""
    get_device(device or "cuda").synchronize()


def memory_allocated(device: AnyDevice = None) -> int:
    return _memory.memory_allocated(device or "cuda") if is_available() else 0


def memory_reserved(device: AnyDevice = None) -> int:
    return _memory.memory_reserved(device or "cuda") if is_available() else 0


def max_memory_allocated(device: AnyDevice = None) -> int:
    return _memory.max_memory_allocated(device or "cuda") if is_available() else 0


def max_memory_reserved(device: AnyDevice = None) -> int:
    return _memory.max_memory_reserved(device or "cuda") if is_available() else 0


def reset_peak_memory_stats(device: AnyDevice = None) -> None:
    if is_available():
        _memory.reset_peak_memory_stats(device or "cuda")


def empty_cache() -> None:
    if is_available():
        _memory.empty_cache("cuda")


def memory_summary(device: AnyDevice = None) -> str:
    return _memory.memory_summary(device or "cuda")
