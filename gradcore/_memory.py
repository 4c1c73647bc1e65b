"""Figures and limits of a device's memory, under PyTorch's names."""

from __future__ import annotations

from typing import Any

from gradcore.devices.device import Device, get_device
from gradcore.engine.exports import settle
from gradcore.memory.arena import in_arenas
from gradcore.memory.stack import explain_live
from gradcore.units import format_bytes, parse_limit

AnyDevice = str | int | Device | None


def memory_allocated(device: AnyDevice = None) -> int:
    """Live allocated bytes on the device, rounded up to the pool's granularity. The default device is the CPU."""
    return get_device(device).ledger.allocated


def memory_requested(device: AnyDevice = None) -> int:
    """Live requested bytes, without rounding."""
    return get_device(device).ledger.requested


def memory_reserved(device: AnyDevice = None) -> int:
    """Bytes of the segments that the pool holds."""
    return get_device(device).ledger.reserved


def max_memory_allocated(device: AnyDevice = None) -> int:
    """The most allocated bytes live at once, since the start or :func:`reset_peak_memory_stats`."""
    return get_device(device).ledger.peaks[1]


def max_memory_requested(device: AnyDevice = None) -> int:
    """The most bytes requested at once, before rounding, since the start or :func:`reset_peak_memory_stats`."""
    return get_device(device).ledger.peaks[0]


def max_memory_reserved(device: AnyDevice = None) -> int:
    """The most bytes reserved from the device at once, in segments, since the start or :func:`reset_peak_memory_stats`."""
    return get_device(device).ledger.peaks[2]


def reset_peak_memory_stats(device: AnyDevice = None) -> None:
    """Restart the measurement of peaks from the present live bytes."""
    get_device(device).ledger.reset_peaks()


def empty_cache(device: AnyDevice = None) -> int:
    """Return segments without live bytes to the system or the driver; the result is the number of bytes returned."""
    return get_device(device).ledger.flush()


def set_memory_limit(limit: str | int | None, device: AnyDevice = None) -> None:
    """Let the pool reserve at most ``limit`` (``"64MiB"`` or bytes); None removes it. Raises ValueError for 0 and for a float.

    If more is reserved already, segments without live bytes are returned, and the others stay; an allocation fails if the pool
    would have to grow past the limit. The environment variable ``GRADCORE_MEMORY_LIMIT`` sets it at start.
    """
    stack = get_device(device).stack
    stack.limit.limit = wanted = parse_limit(limit)
    if wanted is not None and stack.limit.used > wanted:
        # What an earlier, larger step left cached would be served without regard to the limit.
        stack.ledger.flush()


def memory_stats(device: AnyDevice = None) -> dict[str, Any]:
    """The figures as a dictionary, in bytes except for the counts ``segments`` and ``allocations``.

    ``reserved`` is the sum of ``allocated``, ``cached`` and ``arenas``: what the arenas of compiled functions hold besides
    their live tensors, which are in ``allocated``.
    """
    ledger = get_device(device).ledger
    # As a whole, so that the figures are of one moment, whatever other threads do.
    with ledger.lock:
        ledger.drain()
        peaks = ledger.peaks
        return {"requested": ledger.requested, "allocated": ledger.allocated, "reserved": ledger.reserved,
                "max_requested": peaks[0], "max_allocated": peaks[1], "max_reserved": peaks[2],
                "cached": ledger.pool.cached, "largest_free": ledger.pool.largest_free,
                "arenas": in_arenas(ledger), "segments": len(ledger.pool.segments), "allocations": ledger.allocations}


def memory_summary(device: AnyDevice = None) -> str:
    """The figures as text, with the largest owners of live bytes and what holds them, such as ``outputs[0] in __main__``."""
    settle()
    stats, on = memory_stats(device), get_device(device)
    lines = [f"Memory of {on}:"]
    lines += [f"  {name:16}{value:>16,}" + ("" if name in ("segments", "allocations") else f"  {format_bytes(value)}")
              for name, value in stats.items()]
    return "\n".join([*lines, *explain_live(on.ledger)])
