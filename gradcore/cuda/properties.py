"""What the driver says of a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradcore.devices.device import Device, get_device

AnyDevice = str | Device | int | None


class DeviceProperties(NamedTuple):
    """A GPU, by PyTorch's names; sizes are in bytes."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    is_integrated: bool
    is_multi_gpu_board: bool
    max_threads_per_multi_processor: int
    warp_size: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int


def named(device: AnyDevice = None) -> str | int | Device:
    """A device as given, and ``cuda`` for None."""
    return "cuda" if device is None else device


def gpu(device: AnyDevice = None) -> Device:
    """A GPU by its name or number. Raises :class:`DeviceError` where there is none, ValueError for another device."""
    found = get_device(named(device))
    if found.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {found}")
    return found


def get_device_properties(device: AnyDevice = None) -> DeviceProperties:
    """Name, compute capability, memory and sizes of a GPU. Raises :class:`DeviceError` where there is none, ValueError for no
    GPU.
    """
    index = gpu(device).index
    from cupy.cuda import runtime

    found: dict[str, Any] = runtime.getDeviceProperties(index)
    return DeviceProperties(
        found["name"].decode(), found["major"], found["minor"], found["totalGlobalMem"], found["multiProcessorCount"],
        bool(found["integrated"]), bool(found["isMultiGpuBoard"]), found["maxThreadsPerMultiProcessor"], found["warpSize"],
        found["regsPerMultiprocessor"], found["sharedMemPerBlock"], found["sharedMemPerBlockOptin"],
        found["sharedMemPerMultiprocessor"], found["l2CacheSize"])


def get_device_name(device: AnyDevice = None) -> str:
    """The name of a GPU, such as ``NVIDIA H200``. Raises as :func:`get_device_properties`."""
    return get_device_properties(device).name


def get_device_capability(device: AnyDevice = None) -> tuple[int, int]:
    """The compute capability of a GPU, such as (9, 0). Raises as :func:`get_device_properties`."""
    found = get_device_properties(device)
    return found.major, found.minor


def mem_get_info(device: AnyDevice = None) -> tuple[int, int]:
    """The free and the total bytes of a GPU, all processes considered. Raises as :func:`get_device_properties`.

    What the pool keeps cached is not free; :func:`gradcore.cuda.empty_cache` returns it.
    """
    found: Any = gpu(device)
    from cupy.cuda import runtime

    free, total = found.here(runtime.memGetInfo)()
    return int(free), int(total)
