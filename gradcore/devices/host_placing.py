"""Sorting, windows and writes at positions on the CPU; see ``ops.arrangement`` and ``ops.placing``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from gradcore.devices.host_indexing import LISTED, NARROW, add_rows
from gradcore.devices.host_kernels import Array, kernel
from gradcore.devices.kernels import check_bounds, turned

#: Bytes that temporary positions may take, and the bytes of one position for each dimension.
_ROOM, _POSITION = 48 << 10, 8


@kernel
def flip(x: Array, out: Array, *, dims: tuple[int, ...]) -> None:
    out[...] = np.flip(x, dims)


@kernel
def roll(x: Array, out: Array, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> None:
    for source, target in turned(x.shape, shifts, dims):
        out[target] = x[source]


@kernel
def windows_grad(dy: Array, out: Array, *, shape: Any, dim: int, size: int, step: int, dilation: int) -> None:
    if not out.ndim:
        # One window of one element, or of none.
        np.sum(dy, out=out)
        return
    out.fill(0)
    reach = (dy.shape[dim] - 1) * step + 1
    for k in range(size):
        first = k * dilation
        target = out[(*(slice(None),) * dim, slice(first, first + reach, step))]
        np.add(target, dy[..., k], target)


# -- positions ---------------------------------------------------------------------------------------------------------


def _counted(index: Array, length: int, wrap: bool = False) -> Array:
    """Positions counted from the front; with ``wrap`` negative ones count from the end. Raises IndexError for one outside."""
    check_bounds(int(index.min()), int(index.max()), length, wrap)
    return np.remainder(index, length)


def _index_pieces(index: Array, shape: Any, values: Array, dim: int) -> Iterator[tuple[tuple[Array, ...], Array]]:
    """Pieces of an index along ``dim``: the positions that it writes to, and the values."""
    values = np.broadcast_to(values, index.shape)
    some = _ROOM // (_POSITION * (2 * index.ndim + 3))
    for start in range(0, index.size, some):
        place = list(np.unravel_index(np.arange(start, min(start + some, index.size)), index.shape))
        given = values[tuple(place)]
        place[dim] = _counted(index[tuple(place)], shape[dim])
        yield tuple(place), given


@kernel
def put_along_(x: Array, index: Array, values: Array, workspace: Any = None, *, dim: int) -> None:
    for place, given in _index_pieces(index, x.shape, values, dim):
        x[place] = given


@kernel
def add_along_(x: Array, index: Array, values: Array, workspace: Any = None, *, dim: int) -> None:
    for place, given in _index_pieces(index, x.shape, values, dim):
        if x.flags.c_contiguous:
            # NumPy is faster with one index than with several.
            np.add.at(x.reshape(-1), np.ravel_multi_index(place, x.shape), given)
        else:
            np.add.at(x, place, given)


@kernel
def add_at_(x: Array, index: Array, values: Array, workspace: Any = None, *, dim: int, wrap: bool = True) -> None:
    if not index.size:
        return
    length, shape = x.shape[dim], (*x.shape[:dim], *index.shape, *x.shape[dim + 1:])
    check_bounds(int(index.min()), int(index.max()), length, wrap)
    pieces = (np.remainder(index.flat[k:k + LISTED], length, dtype=np.int64) for k in range(0, index.size, LISTED))
    lead, tail = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1:])
    if lead * tail <= NARROW and values.shape == shape and values.flags.c_contiguous and x.flags.c_contiguous:
        target, given = x.reshape(lead, length, tail), values.reshape(lead, index.size, tail)
        for k, places in enumerate(pieces):
            for part, rows in zip(target, given[:, k * LISTED:(k + 1) * LISTED], strict=True):
                add_rows(part, places, rows)
        return
    before = (slice(None),) * dim
    source = np.broadcast_to(values, shape)
    # One position at a time, in order: positions may repeat, and a fixed order keeps sums the same from run to run.
    for spot, place in zip(np.ndindex(index.shape), chain.from_iterable(map(np.ndarray.tolist, pieces)), strict=True):
        part = x[(*before, place, ...)]
        np.add(part, source[(*before, *spot, ...)], part)
