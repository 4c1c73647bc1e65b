"""Sorting and running sums on the GPU: no kernel allocates or uses atomics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.kernels import split_workspace
from gradcore.tiling import SORTED_AT_ONCE as TILE

# -- running sums, products and extremes -------------------------------------------------------------------------------


def _running(op: str, x: Any, out: Any, dim: int, reverse: bool) -> None:
    where, rows, lanes, length = gl.rows_of((dim,) if x.ndim else (), x, out)
    if x.size:
        # Products are computed in order by a warp at most. Four elements are one access of at most 16 bytes.
        types = op, x.dtype, out.dtype, 4 if length >= 4 and out.itemsize == x.itemsize else 1
        gl.run_rows("scan", "running", types, rows, min(lanes, 32 if op == "Times" else gl.BLOCK), x, out, where,
                    np.int32(reverse))


@gl.kernel
def cumsum(x: Any, out: Any, *, dim: int, reverse: bool = False) -> None:
    _running("Sum", x, out, dim, reverse)


@gl.kernel
def cumprod(x: Any, out: Any, *, dim: int) -> None:
    _running("Times", x, out, dim, False)


@gl.kernel
def cumextreme(x: Any, out: Any, *, dim: int, largest: bool) -> None:
    _running("Most" if largest else "Least", x, out, dim, False)


@gl.kernel
def recurrence(b: Any, a: Any, out: Any, *, dim: int, reverse: bool = False) -> None:
    where = gl.layout((dim,), b, a, out)
    if b.size:
        gl.run_rows("scan", "recurrence", (b.dtype,), int(where["rows"]), gl.lanes_for(where), b, a, out, where,
                    np.int32(reverse))


# -- ranks -------------------------------------------------------------------------------------------------------------


@gl.kernel
def ranked(x: Any, values: Any, indices: Any, workspace: Any, *, dim: int, start: int, length: int,
           descending: bool) -> None:
    if not values.size:
        return
    width, tail = (x.shape[dim], math.prod(x.shape[dim + 1:])) if x.ndim else (1, 1)
    if width >= 1 << 32:
        raise NotImplementedError(f"sorting on the GPU takes fewer than 2^32 elements along the dimension, but got {width:,}")
    lines, types, order = x.size // width, (x.dtype,), np.int32(descending)
    shape, bits = (np.int64(width), np.int64(tail)), (min(width, TILE) - 1).bit_length()

    def tiles(x: Any, positions: Any, values: Any, places: Any, start: int, length: int, merge: bool = False) -> None:
        blocks = -(-lines // (TILE >> bits)) * -(-width // TILE)
        gl.run_blocks("rank", "tiles", (*types, TILE), blocks, x, positions, values, places, np.int64(lines), *shape,
                      np.int64(start), np.int64(length), np.int32(bits), np.int32(merge), order)

    if width <= TILE:
        tiles(x, None, values, indices, start, length)
        return
    whole, places = values, indices
    if length != width:
        whole, places = split_workspace(workspace, (x.size, x.dtype), (x.size, np.dtype(np.int64)))
    tiles(x, None, whole, places, 0, width)
    size = 2 * TILE
    while size < 2 * width:
        # A merge as in a tile, whose steps over smaller distances are made in tiles.
        for mask in (size - 1, *[1 << k for k in range(size.bit_length() - 3, TILE.bit_length() - 2, -1)]):
            gl.run("rank", "exchange", types, x.size, whole, places, np.int64(x.size), *shape, np.int64(mask), order)
        tiles(whole, places, whole, places, 0, width, merge=True)
        size *= 2
    if length != width:
        gl.run("rank", "pick", types, values.size, whole, places, values, indices, np.int64(values.size), *shape,
               np.int64(start), np.int64(length))
