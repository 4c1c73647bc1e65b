"""The names that scripts use for the GPU, as PyTorch spells them. Sizes are bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradcore import _memory
from gradcore._random import default_generator
from gradcore._streams import Event, Stream, current_stream, default_stream, set_stream, stream
from gradcore.cuda import amp
from gradcore.devices.availability import cuda_status
from gradcore.devices.device import Device, get_device
from gradcore.engine.state import SCOPES, SITES, find_site, local
from gradcore.errors import OutOfMemory as OutOfMemoryError
from gradcore.events import TAGS, Tag

AnyDevice = str | Device | None

__all__ = ["Event", "OutOfMemoryError", "Stream", "amp", "current_device", "current_stream", "default_stream", "device_count",
           "empty_cache", "get_device_name", "is_available", "manual_seed", "manual_seed_all", "max_memory_allocated",
           "max_memory_reserved", "memory_allocated", "memory_reserved", "memory_summary", "reset_peak_memory_stats",
           "set_stream", "stream", "synchronize", "use_for_cupy"]


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


def manual_seed(seed: int) -> None:
    """Start the GPU's default generator again from ``seed``; without a GPU nothing happens."""
    if is_available():
        default_generator("cuda").manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """:func:`manual_seed` of every GPU."""
    for index in range(device_count() if is_available() else 0):
        default_generator(f"cuda:{index}").manual_seed(seed)


@contextmanager
def use_for_cupy(tag: str = "cupy", device: AnyDevice = None) -> Iterator[None]:
    """Serve what this thread's CuPy code allocates inside from gradcore's pool.

    Its arrays then stand in the log, the step report and the limit like any tensor: as op ``tag``, role ``output``, of the line
    outside CuPy that made them. They may live on behind the block; their bytes go back with their last reference. Raises
    RuntimeError without a GPU, and :class:`OutOfMemoryError` where the pool does.
    """
    target: Any = get_device(device or "cuda")
    from cupy.cuda import memory, using_allocator

    from gradcore.devices.gpu import ScratchMemory

    def allocate(nbytes: int) -> Any:
        frame: Any = sys._getframe(1)
        while frame is not None and "/cupy/" in frame.f_code.co_filename:
            frame = frame.f_back
        scope = SCOPES[local.state.scope]
        site = SITES[find_site(frame)]
        block = target.ledger.allocate(nbytes, target.current, TAGS.index(
            Tag(tag, scope.layer, scope.phase, "output", site, None, None, None, scope.network)))
        return memory.MemoryPointer(ScratchMemory(target.ledger, block, target.index), 0)

    with using_allocator(allocate):
        yield
