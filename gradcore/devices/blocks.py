"""The blocks that a rolled array and a sum over windows consist of, as slices, for kernels of any device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any


def turned(shape: Any, shifts: Any, dims: Any) -> Iterator[tuple[Any, Any]]:
    """Where each block of a rolled array comes from and goes to, as slices."""
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
    """For each element of a window, what dy has of it, and where in ``out`` those came from."""
    if not out.ndim:
        yield dy.reshape(()), out
        return
    reach = (dy.shape[dim] - 1) * step + 1
    for k in range(size):
        first = k * dilation
        yield dy[..., k], out[(*(slice(None),) * dim, slice(first, first + reach, step))]
