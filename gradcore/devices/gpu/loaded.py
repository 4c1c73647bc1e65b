"""Bytes of a card that code takes, of our kernels and of cuBLASLt.

The driver loads code when it is first needed, and does not say how much memory that takes: what this process uses is read
before and after. Where the driver does not say that, the card's free bytes are, and what other processes allocate in between
is counted, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cupy.cuda import runtime

from gradcore.report.step import LibraryBytes

#: By index of a device, as the CUDA device registers it: the bytes that its pools hold, and those that the driver says this
#: process uses, or None.
FIGURES: dict[int, Callable[[], tuple[int, int | None]]] = {}
#: By index of a device: bytes by whose code it is.
_TAKEN: dict[int, Counter[str]] = {}


@contextmanager
def loading(whose: str, index: int) -> Iterator[None]:
    """Count as code what the used bytes of the current device, number ``index``, grow by inside, but for the pools' part."""
    source, before = _outside(index)
    try:
        yield
    finally:
        source_after, after = _outside(index)
        if source_after == source and after > before:
            _TAKEN.setdefault(index, Counter())[whose] += after - before


def code(index: int) -> list[LibraryBytes]:
    """The bytes of loaded code on a device."""
    return [LibraryBytes(f"code of {whose}", nbytes) for whose, nbytes in _TAKEN.get(index, Counter()).most_common()]


def _outside(index: int) -> tuple[str, int]:
    """Used bytes that are not the pools', behind whose they are: "this process's" or "the card's", or "" without a driver."""
    held, mine = FIGURES.get(index, lambda: (0, None))()
    if mine is not None:
        return "this process's", mine - held
    try:
        free, total = runtime.memGetInfo()
    except runtime.CUDARuntimeError:
        return "", 0
    return "the card's", int(total - free) - held
