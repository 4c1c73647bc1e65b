"""``gradcore.cuda``: devices, streams, random numbers and memory figures, with PyTorch's names. Sizes are in bytes.

A device is a GPU by its name or number, the first one if None. Where there is a GPU, figures of another device are a
ValueError; the functions of :mod:`gradcore` itself, such as :func:`gradcore.memory_allocated`, take any.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from gradcore import _memory
from gradcore._random import default_generator
from gradcore._streams import Event, Stream, current_stream, default_stream, set_stream, stream
from gradcore.cuda import amp, nvtx
from gradcore.cuda.properties import get_device_capability, get_device_name, get_device_properties, gpu, mem_get_info, named
from gradcore.devices.availability import cuda_status
from gradcore.devices.device import Device, devices, get_device
from gradcore.engine.sites import find_site
from gradcore.engine.state import local
from gradcore.errors import DeviceError
from gradcore.errors import OutOfMemory as OutOfMemoryError
from gradcore.events import Tag

AnyDevice = str | Device | int | None

__all__ = ["Event", "OutOfMemoryError", "Stream", "amp", "current_device", "current_stream", "default_stream", "device",
           "device_count", "empty_cache", "get_device_capability", "get_device_name", "get_device_properties", "get_rng_state",
           "get_rng_state_all", "init", "initial_seed", "is_available", "is_bf16_supported", "is_initialized", "manual_seed",
           "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated",
           "memory_reserved", "memory_stats", "memory_summary", "nvtx", "reset_peak_memory_stats", "set_device",
           "set_per_process_memory_fraction", "set_rng_state", "set_rng_state_all", "set_stream", "stream", "synchronize",
           "use_for_cupy"]


def is_available() -> bool:
    """Whether there is a GPU that gradcore can use, which takes a driver, a device and CuPy."""
    return cuda_status().available


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether a GPU can compute in bfloat16, which takes the package ml_dtypes; any can, the older ones by float32.

    Without ``including_emulation``, whether its tensor cores can: from compute capability 8.0 on.
    """
    if not is_available() or find_spec("ml_dtypes") is None:
        return False
    return including_emulation or get_device_capability() >= (8, 0)


def device_count() -> int:
    """The number of GPUs."""
    return cuda_status().devices


def current_device() -> int:
    """The index of the current GPU, always 0."""
    return 0


def set_device(device: AnyDevice) -> None:
    """Check that ``device`` is the GPU that ``cuda`` stands for, which is always the first; do nothing for a negative number.

    Raises :class:`DeviceError` for another GPU, and where there is none, ValueError for a device that is no GPU.
    """
    if isinstance(device, int) and device < 0:
        return
    if index := gpu(device).index:
        raise DeviceError(f"cuda:{index} cannot be made the current GPU, which is cuda:0: name cuda:{index} where tensors are "
                          f"made, or set CUDA_VISIBLE_DEVICES={index} before the program starts")


class device:
    """A context manager, within which ``device`` is the current GPU; see :func:`set_device`."""

    def __init__(self, device: AnyDevice) -> None:
        self._device = device

    def __enter__(self) -> None:
        set_device(self._device)

    def __exit__(self, *error: object) -> None:
        """Nothing has been changed."""


def init() -> None:
    """Do nothing: a GPU is set up when it is first used."""


def is_initialized() -> bool:
    """Whether a GPU has been used in this process."""
    return any(device.type == "cuda" for device in devices())


def synchronize(device: AnyDevice = None) -> None:
    """Wait until all work on the device is done."""
    get_device(named(device)).synchronize()


def memory_allocated(device: AnyDevice = None) -> int:
    """Live bytes, rounded as the pool does; 0 without a GPU."""
    return _memory.memory_allocated(gpu(device)) if is_available() else 0


def memory_reserved(device: AnyDevice = None) -> int:
    """Bytes of the pool's segments; 0 without a GPU."""
    return _memory.memory_reserved(gpu(device)) if is_available() else 0


def max_memory_allocated(device: AnyDevice = None) -> int:
    """The most bytes allocated at once since the start or :func:`reset_peak_memory_stats`; 0 without a GPU."""
    return _memory.max_memory_allocated(gpu(device)) if is_available() else 0


def max_memory_reserved(device: AnyDevice = None) -> int:
    """The most bytes reserved at once since the start or :func:`reset_peak_memory_stats`; 0 without a GPU."""
    return _memory.max_memory_reserved(gpu(device)) if is_available() else 0


def reset_peak_memory_stats(device: AnyDevice = None) -> None:
    """Restart the measurement of peaks from the present live bytes; without a GPU, do nothing."""
    if is_available():
        _memory.reset_peak_memory_stats(gpu(device))


def empty_cache() -> None:
    """Return segments without live blocks to the driver; nothing without a GPU."""
    if is_available():
        _memory.empty_cache("cuda")


def memory_stats(device: AnyDevice = None) -> dict[str, int]:
    """Figures in bytes, and counts, by PyTorch's names, as far as the pool has them: ``allocated_bytes.all.peak`` and the like.

    Empty without a GPU. :func:`gradcore.memory_stats` has the pool's own, of any device.
    """
    if not is_available():
        return {}
    found = _memory.memory_stats(gpu(device))
    both = {"requested_bytes": "requested", "allocated_bytes": "allocated", "active_bytes": "allocated",
            "reserved_bytes": "reserved"}
    figures = {f"{name}.all.{when}": found[f"{prefix}{ours}"] for name, ours in both.items()
               for when, prefix in (("current", ""), ("peak", "max_"))}
    return {**figures, "inactive_split_bytes.all.current": found["cached"], "segment.all.current": found["segments"],
            "allocation.all.allocated": found["allocations"]}


def set_per_process_memory_fraction(fraction: float, device: AnyDevice = None) -> None:
    """Let the pool reserve at most this part of the GPU's memory; :func:`gradcore.set_memory_limit` takes bytes.

    Raises TypeError for anything but a float, ValueError outside of 0 to 1, :class:`DeviceError` without a GPU.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _memory.set_memory_limit(max(int(fraction * mem_get_info(device)[1]), 1), gpu(device))


def memory_summary(device: AnyDevice = None) -> str:
    """The device's figures and its largest holders, as text."""
    return _memory.memory_summary(gpu(device))


def manual_seed(seed: int) -> None:
    """Seed the default generator of the GPU; without a GPU, do nothing."""
    if is_available():
        default_generator("cuda").manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """:func:`manual_seed` of every GPU."""
    for index in range(device_count() if is_available() else 0):
        default_generator(f"cuda:{index}").manual_seed(seed)


def initial_seed() -> int:
    """The seed of the GPU's default generator."""
    return default_generator("cuda").initial_seed()


def get_rng_state(device: AnyDevice = "cuda") -> Any:
    """The state of a GPU's default generator, on the CPU. Raises :class:`DeviceError` without one."""
    return default_generator(gpu(device)).get_state().cpu()


def set_rng_state(new_state: Any, device: AnyDevice = "cuda") -> None:
    """Let a GPU's default generator continue from a state of :func:`get_rng_state`."""
    found = gpu(device)
    default_generator(found).set_state(new_state.to(found))


def get_rng_state_all() -> list[Any]:
    """:func:`get_rng_state` of every GPU; empty without one."""
    return [get_rng_state(index) for index in range(device_count() if is_available() else 0)]


def set_rng_state_all(new_states: Any) -> None:
    """:func:`set_rng_state` for every GPU."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


@contextmanager
def use_for_cupy(tag: str = "cupy", device: AnyDevice = None) -> Iterator[None]:
    """Serve the allocations of this thread's CuPy code from gradcore's pool.

    Within the block, CuPy arrays count in the log, the step report and the memory limit like tensors: as op ``tag``, with role
    ``output``, at the line outside CuPy that made them. They may outlive the block; their memory returns to the pool with the
    last reference, behind the work of the stream on which CuPy has made them. Raises RuntimeError without a GPU, and
    :class:`OutOfMemoryError` when the pool does.
    """
    target: Any = gpu(device)
    from cupy.cuda import memory, using_allocator

    from gradcore.devices.gpu.device import ScratchMemory
    from gradcore.devices.gpu.workspaces import lend

    def allocate(nbytes: int) -> Any:
        frame: Any = sys._getframe(1)
        while frame is not None and os.path.join(os.sep, "cupy", "") in frame.f_code.co_filename:
            frame = frame.f_back
        scope = local.state.scope.plain
        site = find_site(frame)
        owner = Tag(tag, scope.layer, scope.phase, "output", site, None, None, None, scope.network)
        block = target.ledger.allocate(nbytes, target.current, owner)
        found = ScratchMemory(target.ledger, block, target.index)
        lend(target, block)
        return memory.MemoryPointer(found, 0)

    with using_allocator(allocate):
        yield


class _Cuda(ModuleType):
    @property
    def _initialized(self) -> bool:
        """PyTorch's name for :func:`is_initialized`, which networks read that save the states of generators."""
        return is_initialized()


sys.modules[__name__].__class__ = _Cuda
