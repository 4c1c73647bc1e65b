"""Reads and writes at positions on the GPU. No kernel allocates, and only the one for extremes at positions uses atomics.

A read at a position out of range gives NaN (0 for integers), a write is skipped, since an error would need a wait for the
device. On the CPU it is an IndexError. Writes at many positions along a dimension sort the positions: see kernels/group.cu.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.devices.kernels import split_workspace
from gradcore.tiling import BUSY, DIGIT, RUN, Groups, groups_of

#: Accesses of a thread of the kernel ``take`` at once, if that leaves enough blocks.
_TAKEN = 4
#: Stands for an invalid position.
NOWHERE = -(1 << 62)


def back(x: Any, dim: int, wrap: bool) -> Any:
    """What is added to a negative position: the length if it counts from the end, else 0, which leaves it out of range."""
    return np.int64(x.shape[dim] if wrap else 0)


def _taken(x: Any, index: Any, out: Any, dim: int, wrap: bool, padding: int = NOWHERE) -> None:
    tail = math.prod(x.shape[dim + 1:])
    length = gl.length_of(tail, x, out)
    count = out.size // length
    threads = min(count, max(-(-count // _TAKEN), BUSY * gl.BLOCK))
    gl.run("index", "take", (x.dtype, index.dtype, length), threads, x, index, out, np.int64(out.size),
           np.int64(x.shape[dim]), np.int64(index.size), np.int64(tail), np.int64(padding), back(x, dim, wrap))


def _added(dy: Any, index: Any, out: Any, workspace: Any, dim: int, wrap: bool, padding: int = NOWHERE) -> None:
    if not out.size:
        return
    length, tail = out.shape[dim], math.prod(out.shape[dim + 1:])
    groups = groups_of(index.size, length, out.size // length, out.dtype)
    if groups:
        gl.zero(out)
        where = layout_of_slices(out, index, dy, dim)
        add_groups(groups, out, dy, where, places(index, length, tail, back(out, dim, wrap), padding), workspace, fresh=True)
        return
    rows = math.prod(out.shape[:dim + 1])
    gl.run_blocks("index", "take_grad", (dy.dtype, index.dtype), min(rows, gl.GRID), dy, index, out, np.int64(length),
                  np.int64(index.size), np.int64(tail), np.int64(padding), back(out, dim, wrap), np.int64(rows))


def _padded(padding: int | None, length: int) -> int:
    return NOWHERE if padding is None else padding % length


@gl.kernel
def take(x: Any, index: Any, out: Any, workspace: Any, *, dim: int, wrap: bool = True) -> None:
    _taken(x, index, out, dim, wrap)


@gl.kernel
def take_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, dim: int) -> None:
    _added(dy, index, out, workspace, dim, True)


@gl.kernel
def embedding(weight: Any, index: Any, out: Any, workspace: Any, *, padding: Any) -> None:
    _taken(weight, index, out, 0, False)


@gl.kernel
def embedding_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, padding: Any) -> None:
    _added(dy, index, out, workspace, 0, False, _padded(padding, shape[0]))


@gl.kernel
def embedding_unpadded(weight: Any, index: Any, out: Any, workspace: Any, *, padding: Any) -> None:
    _taken(weight, index, out, 0, False, _padded(padding, weight.shape[0]))


def layout_of_slices(x: Any, index: Any, values: Any, dim: int) -> Any:
    """The layouts of index, broadcast values and ``x``, with the indexed dimension apart from the others."""
    size, many = x.shape, index.ndim
    value_steps, steps = gl.broadcast(values, x.ndim - 1 + many), gl.elements(x)
    kept = size[:dim] + size[dim + 1:]
    where = np.zeros((), gl.LAYOUT)
    where["rows"] = math.prod(kept)
    where["width"] = index.size
    where["kept"] = gl.axes(kept, [0] * len(kept), value_steps[:dim] + value_steps[dim + many:],
                            steps[:dim] + steps[dim + 1:])
    where["folded"] = gl.axes(index.shape, gl.elements(index), value_steps[dim:dim + many])
    return where


def layout_of_lines(dim: int, index: Any, places: tuple[int, ...], given: tuple[int, ...], steps: tuple[int, ...]) -> Any:
    """The layouts of index, values and ``x`` for positions that have one element each, in the order of their lines."""
    # A place along the dimension is counted from the beginning of its line.
    begin = (*steps[:dim], 0, *steps[dim + 1:])
    return gl.layout_of(index.shape, (*[d for d in range(index.ndim) if d != dim], dim), places, given, begin)


@gl.kernel
def put_(x: Any, index: Any, values: Any, workspace: Any, *, dim: int, wrap: bool = True) -> None:
    if not (x.size and index.size):
        return
    where, length, stride = layout_of_slices(x, index, values, dim), x.shape[dim], gl.elements(x)[dim]
    groups = groups_of(index.size, length, 0, x.dtype)
    if groups:
        put_groups(groups, x, values, where, places(index, length, stride, back(x, dim, wrap), NOWHERE), workspace)
        return
    gl.run_blocks("index", "put", (x.dtype, values.dtype, index.dtype), length, x, values, index, where, np.int64(length),
                  np.int64(stride), back(x, dim, wrap))


@gl.kernel
def take_along(x: Any, index: Any, out: Any, workspace: Any, *, dim: int, wrap: bool = True) -> None:
    steps = list(gl.elements(x))
    stride, steps[dim] = steps[dim], 0
    gl.run("index", "take_along", (x.dtype, index.dtype), out.size, x, index, out, gl.axes(index.shape, steps),
           np.int64(out.size), np.int64(x.shape[dim]), np.int64(stride), back(x, dim, wrap))


@gl.kernel
def take_along_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, dim: int) -> None:
    gl.zero(out)
    if not dy.size:
        return
    steps, results = gl.elements(index), gl.elements(out)
    groups = groups_of(index.size, shape[dim], 1, out.dtype, blocks=False)
    if groups:
        add_groups(groups, out, dy, layout_of_lines(dim, index, steps, gl.elements(dy), results),
                   places(index, shape[dim], results[dim], back(out, dim, True), NOWHERE), workspace, fresh=True)
        return
    where = gl.layout_of(index.shape, (dim,), steps, results)
    gl.run("index", "take_along_grad", (dy.dtype, index.dtype), int(where["rows"]) * shape[dim], dy, index, out, where,
           np.int64(shape[dim]), np.int64(results[dim]), np.int64(steps[dim]), back(out, dim, True))


def _along(x: Any, index: Any, values: Any, workspace: Any, dim: int, add: bool) -> None:
    if not index.size:
        return
    steps, lie, given, length = gl.elements(x), gl.elements(index), gl.broadcast(values, index.ndim), x.shape[dim]
    groups = groups_of(index.size, length, int(add), x.dtype, blocks=False)
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
def extreme_along_(x: Any, index: Any, values: Any, *, dim: int, largest: bool) -> None:
    steps = list(gl.elements(x))
    stride, steps[dim] = steps[dim], 0
    gl.run("index", "extreme_along", (x.dtype, index.dtype, str(largest).lower()), index.size, x, values, index,
           gl.axes(index.shape, gl.elements(index), gl.broadcast(values, index.ndim), steps), np.int64(index.size),
           np.int64(x.shape[dim]), np.int64(stride))


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


# -- by sorted positions: ``where`` is the layout of index, values and ``x``, the dimensions of the positions folded ----


def places(index: Any, length: int, stride: int, back: Any, skipped: int) -> tuple[Any, ...]:
    """What kernels need to know of positions along a dimension of ``length``, whose elements are ``stride`` apart in ``x``.

    ``back`` is added to negative ones, and nothing is written at the position ``skipped``.
    """
    return index, np.int64(length), np.int64(stride), back, np.int64(skipped)


def add_groups(groups: Groups, x: Any, values: Any, where: Any, places: tuple[Any, ...], workspace: Any,
               fresh: bool = False) -> None:
    """Add the values at their positions; ``fresh`` says that x is zeros."""
    order, parts = _grouped(groups, where, places, workspace)
    length = _length(x, values, where, places)
    types = x.dtype, places[0].dtype, str(fresh).lower(), RUN, length
    _run("sums", types, where, 32 * length if length > 1 else 128, x, values, order, parts, where, *places)
    _run("joins", types, where, 32 * length, x, order, parts, where, *places)


def _length(x: Any, values: Any, where: Any, places: tuple[Any, ...]) -> int:
    """Neighbours in one access: 16 bytes, but at most 8 elements, if rows are contiguous and all that is
    accessed begins at a multiple of that."""
    kept, length = where["kept"], min(16 // x.itemsize, 8)
    beside, apart = kept["strides"][1:3, :1], where["folded"]["strides"][1:3]
    even = not (where["rows"] % length or int(places[2]) % length or np.any(apart % length))
    return length if (even and kept["count"] == 1 and where["rows"] >= 32 and np.all(beside == 1) and x.dtype == values.dtype
                      and gl.packed(x, values)) else 1


def put_groups(groups: Groups, x: Any, values: Any, where: Any, places: tuple[Any, ...], workspace: Any) -> None:
    """Write the values at their positions, where the last one stays."""
    order, _ = _grouped(groups, where, places, workspace)
    _run("writes", (x.dtype, values.dtype, places[0].dtype, RUN), where, 128, x, values, order, where, *places)


def _run(name: str, types: tuple[Any, ...], where: Any, strip: int, *arguments: Any) -> None:
    """Launch a kernel with a warp for each run of positions and strip of rows."""
    units = -(-int(where["width"]) // RUN) * -(-int(where["rows"]) // strip)
    gl.run("group", name, types, 32 * units, *arguments, np.int64(units))


def _grouped(groups: Groups, where: Any, places: tuple[Any, ...], workspace: Any) -> tuple[Any, Any]:
    """The numbers of the positions, sorted by the positions, and memory for parts of sums."""
    index, length, *_ = places
    into, other, table, parts = split_workspace(workspace, *groups.pieces)
    order = None  # in the order of the index at first
    # Skipped positions count as `length`.
    for shift in range(0, int(length).bit_length(), DIGIT):
        how = where, *places, np.int64(groups.share), np.int32(shift)
        gl.run_blocks("group", "tally", (index.dtype,), table.size >> DIGIT, order, table, *how)
        gl.run_blocks("group", "deal", (index.dtype,), table.size >> DIGIT, order, into, table, *how)
        order, into, other = into, other, into
    return order, parts
