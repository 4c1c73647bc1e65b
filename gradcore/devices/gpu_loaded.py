"""Bytes of a card that code takes, of our kernels and of cuBLASLt.

The driver loads code when it is first needed, and does not say how much memory that takes: the card's free bytes are read
before and after. What other processes allocate in between is counted, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cupy.cuda import runtime

from gradcore.report.step import LibraryBytes

#: By index of a device: the bytes that the pools hold on it, which the CUDA device registers.
HELD: dict[int, Callable[[], int]] = {}
#: By index of a device: bytes by whose code it is.
_TAKEN: dict[int, Counter[str]] = {}


@contextmanager
def loading(whose: str, index: int) -> Iterator[None]:
    """Count as code what the used bytes of the current device, number ``index``, grow by inside, but for the pools' part."""
    before = _outside(index)
    try:
        yield
    finally:
        after = _outside(index)
        if before is not None and after is not None and after > before:
            _TAKEN.setdefault(index, Counter())[whose] += after - before


def code(index: int) -> list[LibraryBytes]:
    """The bytes of loaded code on a device."""
    return [LibraryBytes(f"code of {whose}", nbytes) for whose, nbytes in _TAKEN.get(index, Counter()).most_common()]


def _outside(index: int) -> int | None:
    """Used bytes of the card that are not the pools', or None without a driver."""
    try:
        free, total = runtime.memGetInfo()
    except runtime.CUDARuntimeError:
        return None
    held = HELD.get(index)
    return int(total - free) - (0 if held is None else held())
