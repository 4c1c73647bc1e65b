"""The table of the CPU's kernels, and how they go through arrays: by pieces that stay in a core's cache.

A kernel takes its inputs, then the arrays to fill, then its workspace (one array of bytes) where the op declares any;
attributes by keyword. It allocates nothing that grows with its operands: tests hold every one of them to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradcore.spec import PIECE

Array = np.ndarray[Any, Any]
HOST_KERNELS: dict[str, Callable[..., Any]] = {}


def kernel(fn: Callable[..., Any]) -> Callable[..., Any]:
    HOST_KERNELS[fn.__name__] = fn
    return fn


def pieces(*arrays: Array, length: int = PIECE) -> Iterator[list[Array]]:
    """Slices of equal length of flat views of contiguous arrays."""
    flat = [a.reshape(-1) for a in arrays]
    size = flat[0].size
    if size <= length:
        if size:
            yield flat
        return
    for start in range(0, size, length):
        yield [a[start:start + length] for a in flat]


#: Rows of a piece at most: a number for each is no temporary worth declaring.
PIECE_ROWS = 1024


def rows(width: int) -> int:
    """How many rows of ``width`` elements make a piece."""
    return max(PIECE // max(width, 1), 1)
