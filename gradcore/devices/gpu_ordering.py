"""Sorting, windows, writes at positions, running sums, ranks and norms on the GPU, without allocations and atomics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.devices.gpu_elementwise import copy, wide
from gradcore.devices.gpu_folds import fold
from gradcore.devices.gpu_groups import add_groups, places, put_groups
from gradcore.devices.gpu_indexing import NOWHERE, back, layout_of_lines, layout_of_slices
from gradcore.devices.kernels import split_workspace, turned
from gradcore.tiling import SORTED_AT_ONCE as TILE
from gradcore.tiling import groups_of


@gl.kernel
def flip(x: Any, out: Any, *, dims: tuple[int, ...]) -> None:
    copy(x[tuple(slice(None, None, -1 if d in dims else 1) for d in range(x.ndim))], out)


@gl.kernel
def roll(x: Any, out: Any, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> None:
    for source, target in turned(x.shape, shifts, dims):
        copy(x[source], out[target])


@gl.kernel
def windows_grad(dy: Any, out: Any, *, shape: Any, dim: int, size: int, step: int, dilation: int) -> None:
    if not out.ndim:
        # One window of one element, or of none.
        fold("Sum", dy, out, (0,))
        return
    steps = gl.elements(dy)
    lead = gl.axes(out.shape, (*steps[:dim], 0, *steps[dim + 1:-1]))
    gl.run("index", "windows_grad", (dy.dtype,), out.size, dy, out, lead, *map(np.int64, (
        out.size, math.prod(out.shape[dim + 1:]), out.shape[dim], dy.shape[dim], size, step, dilation, steps[dim], steps[-1])))


# -- positions ---------------------------------------------------------------------------------------------------------


def _along(x: Any, index: Any, values: Any, workspace: Any, dim: int, add: bool) -> None:
    if not index.size:
        return
    steps, lie, given, length = gl.elements(x), gl.elements(index), gl.broadcast(values, index.ndim), x.shape[dim]
    groups = groups_of(index.size, length, int(add), x.dtype)
    if groups:
        where = layout_of_lines(dim, index, lie, given, steps)
        write = add_groups if add else put_groups
        write(groups, x, values, where, places(index, length, steps[dim], np.int64(0), NOWHERE), workspace)
        return
    where = gl.layout_of(index.shape, (dim,), lie, given, steps)
    gl.run("index", "along", (x.dtype, index.dtype, str(add).lower()), int(where["rows"]) * length, x, values, index,
           where, np.int64(length), np.int64(steps[dim]), np.int64(lie[dim]), np.int64(given[dim]))


@gl.kernel
def put_along_(x: Any, index: Any, values: Any, workspace: Any = None, *, dim: int) -> None:
    _along(x, index, values, workspace, dim, add=False)


@gl.kernel
def add_along_(x: Any, index: Any, values: Any, workspace: Any = None, *, dim: int) -> None:
    _along(x, index, values, workspace, dim, add=True)


@gl.kernel
def add_at_(x: Any, index: Any, values: Any, workspace: Any = None, *, dim: int, wrap: bool = True) -> None:
    if not (x.size and index.size):
        return
    where, length, stride = layout_of_slices(x, index, values, dim), x.shape[dim], gl.elements(x)[dim]
    groups = groups_of(index.size, length, x.size // length, x.dtype)
    if groups:
        add_groups(groups, x, values, where, places(index, length, stride, back(x, dim, wrap), NOWHERE), workspace)
        return
    gl.run_blocks("index", "add_at", (x.dtype, index.dtype), length, x, values, index, where, np.int64(length),
                  np.int64(stride), back(x, dim, wrap))


# -- running sums and products -----------------------------------------------------------------------------------------


def _running(op: str, x: Any, out: Any, dim: int, reverse: bool) -> None:
    where = gl.layout((dim,) if x.ndim else (), x, out)
    if x.size:
        gl.run_rows("scan", "running", (op, x.dtype, out.dtype), int(where["rows"]), gl.lanes_for(where), x, out, where,
                    np.int32(reverse))


@gl.kernel
def cumsum(x: Any, out: Any, *, dim: int, reverse: bool = False) -> None:
    _running("Sum", x, out, dim, reverse)


@gl.kernel
def cumprod(x: Any, out: Any, *, dim: int) -> None:
    _running("Times", x, out, dim, False)


@gl.kernel
def prod(x: Any, out: Any, *, dim: int, keepdim: bool) -> None:
    fold("Times", x, out, (dim,) if x.ndim else ())


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
    lines, types, order = x.size // width, (x.dtype,), np.int32(descending)
    shape = np.int64(width), np.int64(tail)

    def tiles(x: Any, positions: Any, values: Any, places: Any, start: int, length: int, merge: bool = False) -> None:
        blocks = -(-lines // (TILE // width)) if width <= TILE else lines * -(-width // TILE)
        gl.run_blocks("rank", "tiles", (*types, TILE), blocks, x, positions, values, places, np.int64(lines), *shape,
                      np.int64(start), np.int64(length), np.int32(merge), order)

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


# -- variance and norms ------------------------------------------------------------------------------------------------


@gl.kernel
def var(x: Any, out: Any, workspace: Any, *, dims: tuple[int, ...], correction: float, keepdim: bool) -> None:
    count, mean = math.prod(x.shape[d] for d in dims), None
    if x.size:
        # An empty input has no mean, and no room for it.
        mean, = split_workspace(workspace, (out.size, wide(x.dtype)))
        fold("Sum", x, mean.reshape([n for d, n in enumerate(x.shape) if d not in dims]), dims, count)
    fold("Deviations", x, out, dims, max(count - correction, 0), level=mean)


@gl.kernel
def vector_norm(x: Any, out: Any, workspace: Any, *, p: float, dims: tuple[int, ...], keepdim: bool) -> None:
    if math.isinf(p):
        op = "Absolute<Most>" if p > 0 else "Absolute<Least>"
    else:
        op = {0.0: "NotZero", 1.0: "Absolute<Sum>", 2.0: "Squares"}.get(p, "Powers")
    fold(op, x, out, dims, power=p)
