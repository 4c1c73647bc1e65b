"""``gradcore.accelerator``: the GPU, if there is one, by PyTorch's names for whatever device speeds up the machine."""

from __future__ import annotations

from gradcore.cuda import (
    current_device,
    current_stream,
    device_count,
    empty_cache,
    get_device_capability,
    is_available,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
    set_device,
    set_stream,
    synchronize,
)
from gradcore.devices.device import Device, get_device

__all__ = ["current_accelerator", "current_device_idx", "current_device_index", "current_stream", "device_count",
           "empty_cache", "get_device_capability", "get_memory_info", "is_available", "max_memory_allocated",
           "max_memory_reserved", "memory_allocated", "memory_reserved", "memory_stats", "reset_peak_memory_stats",
           "set_device_idx", "set_device_index", "set_stream", "synchronize"]

current_device_index = current_device_idx = current_device
set_device_index = set_device_idx = set_device
get_memory_info = mem_get_info


def current_accelerator(check_available: bool = False) -> Device | None:
    """The GPU, or None where there is none that gradcore can use."""
    return get_device("cuda") if is_available() else None
