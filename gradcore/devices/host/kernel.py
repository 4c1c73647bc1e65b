"""The kernel table of the CPU, iteration over arrays in pieces that fit in a core's cache, and polynomials.

A kernel takes its inputs, then the arrays to fill, then its workspace (one array of bytes) if the op declares one, and
attributes by keyword. It allocates nothing that grows with its operands, which tests check for every kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from gradcore.devices.kernels import split_workspace
from gradcore.spec import PIECE

Array = np.ndarray[Any, Any]
HOST_KERNELS: dict[str, Callable[..., Any]] = {}


def kernel(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function as the CPU kernel of the op that it is named after."""
    HOST_KERNELS[fn.__name__] = fn
    return fn


def pieces(*arrays: Array, length: int = PIECE) -> Iterator[list[Array]]:
    """Flat views of contiguous arrays of one size, in slices of at most ``length`` elements."""
    flat = [a.reshape(-1) for a in arrays]
    size = flat[0].size
    if size <= length:
        if size:
            yield flat
        return
    for start in range(0, size, length):
        yield [a[start:start + length] for a in flat]


def with_room(workspace: Array, temporaries: int, *arrays: Array) -> Iterator[list[Array]]:
    """Pieces of arrays of one size and dtype, then so many temporaries of a piece's length."""
    most = min(arrays[0].size, PIECE)
    room = split_workspace(workspace, *[(most, arrays[0].dtype)] * temporaries)
    for part in pieces(*arrays):
        size = part[0].size
        yield part + (room if size == most else [t[:size] for t in room])


def horner(x: Array, coefficients: Sequence[Any], out: Array | None = None) -> Array:
    """A polynomial with the given coefficients, that of the highest power first."""
    first, second, *others = coefficients
    total: Array = np.multiply(x, first, out)
    np.add(total, second, total)
    for c in others:
        np.multiply(total, x, total)
        np.add(total, c, total)
    return total


#: The most rows of a piece with a temporary of one number for each row: few enough that it need not be declared.
PIECE_ROWS = 1024


def rows(width: int) -> int:
    """The number of rows of ``width`` elements in a piece."""
    return max(PIECE // max(width, 1), 1)


def few_rows(width: int) -> int:
    """The same, but at most :data:`PIECE_ROWS`."""
    return min(rows(width), PIECE_ROWS)


def slices(count: int, step: int) -> Iterable[slice]:
    """Slices of ``step`` elements, the last perhaps of fewer, of the first dimension of arrays with ``count``."""
    # Mostly there is one, which a generator takes longer to give than a tuple.
    return (slice(0, step),) if 0 < count <= step else (slice(start, start + step) for start in range(0, count, step))


def cut(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Parts of an array of ``most`` elements or fewer: several of its first dimension, or parts of one of them."""
    rest = math.prod(shape[1:])
    step = max(most // max(rest, 1), 1)
    for here in slices(shape[0], step):
        for others in cut(shape[1:], most) if rest > most else [(slice(None),) * (len(shape) - 1)]:
            yield here, *others
