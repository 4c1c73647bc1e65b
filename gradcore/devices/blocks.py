"""Slices for the blocks of a rolled array and of a sum over windows, for kernels of any device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any


def turned(shape: Any, shifts: Any, dims: Any) -> Iterator[tuple[Any, Any]]:
    """The slices that each block of a rolled array is read from and written to."""
    total = [0] * len(shape)
    for n, d in zip(shifts, dims, strict=True):
        total[d] += n
    parts = []
    for n, shift in zip(shape, total, strict=True):
        at = shift % n if n else 0
        parts.append([(slice(0, n - at), slice(at, n)), (slice(n - at, n), slice(0, at))] if at else [(slice(0, n),) * 2])
    for block in itertools.product(*parts):
        yield tuple(b[0] for b in block), tuple(b[1] for b in block)


def window_parts(dy: Any, out: Any, dim: int, size: int, step: int, dilation: int) -> Iterator[tuple[Any, Any]]:
    """For each position in a window: its elements in ``dy``, and those in ``out`` that they came from, as views."""
    if not out.ndim:
        yield dy.reshape(()), out
        return
    reach = (dy.shape[dim] - 1) * step + 1
    for k in range(size):
        first = k * dilation
        yield dy[..., k], out[(*(slice(None),) * dim, slice(first, first + reach, step))]
