"""Reads and writes at positions on the GPU. No kernel allocates, and only the one for extremes at positions uses atomics.

A read at a position out of range gives NaN (0 for integers), a write is skipped, since an error would need a wait for the
device. On the CPU it is an IndexError. Writes at many positions along a dimension sort the positions: see kernels/group.cu.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.kernels import split_workspace
from gradcore.tiling import BUSY, DIGIT, RUN, Groups, groups_of

#: Accesses of a thread of the kernel ``take`` at once, if that leaves enough blocks.
_TAKEN = 4
#: Stands for an invalid position.
_NOWHERE = -(1 << 62)


class _Positions(NamedTuple):
    """What kernels need to know of positions along a dimension of ``length``, whose elements are ``stride`` apart."""

    index: Any
    length: np.int64
    stride: np.int64
    #: What is added to a negative position: the length if it counts from the end, else 0, which leaves it out of range.
    back: np.int64
    #: The position at which nothing is written, and which is read as zeros.
    skipped: np.int64


def _positions(x: Any, index: Any, dim: int, wrap: bool, skipped: int = _NOWHERE) -> _Positions:
    length = x.shape[dim]
    return _Positions(index, *map(np.int64, (length, gl.elements(x)[dim], length if wrap else 0, skipped)))


def _lines(x: Any, dim: int) -> tuple[int, ...]:
    """The strides of ``x`` in elements, by which a position along ``dim`` is counted from the beginning of its line."""
    steps = gl.elements(x)
    return (*steps[:dim], 0, *steps[dim + 1:])


def _padded(padding: int | None, length: int) -> int:
    return _NOWHERE if padding is None else padding % length


# -- positions of whole slices -----------------------------------------------------------------------------------------


def _taken(x: Any, index: Any, out: Any, dim: int, wrap: bool, padding: int = _NOWHERE) -> None:
    at, tail = _positions(x, index, dim, wrap, padding), math.prod(x.shape[dim + 1:])
    length = gl.length_of(tail, x, out)
    count = out.size // length
    threads = min(count, max(-(-count // _TAKEN), BUSY * gl.BLOCK))
    gl.run("index", "take", (x.dtype, index.dtype, length), threads, x, index, out, np.int64(out.size), at.length,
           np.int64(index.size), np.int64(tail), at.skipped, at.back)


def _added(dy: Any, index: Any, out: Any, workspace: Any, dim: int, wrap: bool, padding: int = _NOWHERE) -> None:
    if not out.size:
        return
    at, tail = _positions(out, index, dim, wrap, padding), math.prod(out.shape[dim + 1:])
    groups = groups_of(index.size, out.shape[dim], out.size // out.shape[dim], out.dtype)
    if groups:
        gl.zero(out)
        _write_groups(groups, out, dy, _slices(out, index, dy, dim), at, workspace, add=True, fresh=True)
        return
    rows = math.prod(out.shape[:dim + 1])
    gl.run_blocks("index", "take_grad", (dy.dtype, index.dtype), min(rows, gl.GRID), dy, index, out, at.length,
                  np.int64(index.size), np.int64(tail), at.skipped, at.back, np.int64(rows))


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


def _slices(x: Any, index: Any, values: Any, dim: int) -> Any:
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


def _write(x: Any, index: Any, values: Any, workspace: Any, dim: int, wrap: bool, add: bool) -> None:
    if not (x.size and index.size):
        return
    where, at, length = _slices(x, index, values, dim), _positions(x, index, dim, wrap), x.shape[dim]
    groups = groups_of(index.size, length, x.size // length if add else 0, x.dtype)
    if groups:
        _write_groups(groups, x, values, where, at, workspace, add)
        return
    name, types = ("add_at", (x.dtype, index.dtype)) if add else ("put", (x.dtype, values.dtype, index.dtype))
    gl.run_blocks("index", name, types, length, x, values, index, where, at.length, at.stride, at.back)


@gl.kernel
def put_(x: Any, index: Any, values: Any, workspace: Any, *, dim: int, wrap: bool = True) -> None:
    _write(x, index, values, workspace, dim, wrap, add=False)


@gl.kernel
def add_at_(x: Any, index: Any, values: Any, workspace: Any = None, *, dim: int, wrap: bool = True) -> None:
    _write(x, index, values, workspace, dim, wrap, add=True)


# -- positions of single elements --------------------------------------------------------------------------------------


@gl.kernel
def take_along(x: Any, index: Any, out: Any, *, dim: int, wrap: bool = True) -> None:
    at = _positions(x, index, dim, wrap)
    gl.run("index", "take_along", (x.dtype, index.dtype), out.size, x, index, out, gl.axes(index.shape, _lines(x, dim)),
           np.int64(out.size), at.length, at.stride, at.back)


def _in_lines(x: Any, index: Any, given: tuple[int, ...], dim: int) -> Any:
    """The layouts of index, values and ``x`` for positions that have one element each, in the order of their lines."""
    return gl.layout_of(index.shape, (*[d for d in range(index.ndim) if d != dim], dim), gl.elements(index), given,
                        _lines(x, dim))


@gl.kernel
def take_along_grad(dy: Any, index: Any, out: Any, workspace: Any = None, *, shape: Any, dim: int) -> None:
    gl.zero(out)
    if not dy.size:
        return
    at, steps = _positions(out, index, dim, True), gl.elements(index)
    groups = groups_of(index.size, shape[dim], 1, out.dtype, blocks=False)
    if groups:
        _write_groups(groups, out, dy, _in_lines(out, index, gl.elements(dy), dim), at, workspace, add=True, fresh=True)
        return
    where = gl.layout_of(index.shape, (dim,), steps, gl.elements(out))
    gl.run("index", "take_along_grad", (dy.dtype, index.dtype), int(where["rows"]) * shape[dim], dy, index, out, where,
           at.length, at.stride, np.int64(steps[dim]), at.back)


def _write_along(x: Any, index: Any, values: Any, workspace: Any, dim: int, add: bool) -> None:
    if not index.size:
        return
    at, lie, given = _positions(x, index, dim, False), gl.elements(index), gl.broadcast(values, index.ndim)
    groups = groups_of(index.size, x.shape[dim], int(add), x.dtype, blocks=False)
    if groups:
        _write_groups(groups, x, values, _in_lines(x, index, given, dim), at, workspace, add)
        return
    where = gl.layout_of(index.shape, (dim,), lie, given, gl.elements(x))
    gl.run("index", "along", (x.dtype, index.dtype, str(add).lower()), int(where["rows"]) * x.shape[dim], x, values, index,
           where, at.length, at.stride, np.int64(lie[dim]), np.int64(given[dim]))


@gl.kernel
def put_along_(x: Any, index: Any, values: Any, workspace: Any = None, *, dim: int) -> None:
    _write_along(x, index, values, workspace, dim, add=False)


@gl.kernel
def add_along_(x: Any, index: Any, values: Any, workspace: Any = None, *, dim: int) -> None:
    _write_along(x, index, values, workspace, dim, add=True)


@gl.kernel
def extreme_along_(x: Any, index: Any, values: Any, *, dim: int, largest: bool) -> None:
    at = _positions(x, index, dim, False)
    where = gl.axes(index.shape, gl.elements(index), gl.broadcast(values, index.ndim), _lines(x, dim))
    gl.run("index", "extreme_along", (x.dtype, index.dtype, str(largest).lower()), index.size, x, values, index, where,
           np.int64(index.size), at.length, at.stride)


# -- by sorted positions: ``where`` is the layout of index, values and ``x``, the dimensions of the positions folded ----


def _write_groups(groups: Groups, x: Any, values: Any, where: Any, at: _Positions, workspace: Any, add: bool,
                  fresh: bool = False) -> None:
    """Add the values at their positions, where ``fresh`` says that ``x`` is zeros; or write them: the last one stays."""
    order, parts = _grouped(groups, where, at, workspace)
    if not add:
        _run("writes", (x.dtype, values.dtype, at.index.dtype, RUN), where, 128, x, values, order, where, *at)
        return
    length = _length(x, values, where, at)
    types = x.dtype, at.index.dtype, str(fresh).lower(), RUN, length
    _run("sums", types, where, 32 * length if length > 1 else 128, x, values, order, parts, where, *at)
    _run("joins", types, where, 32 * length, x, order, parts, where, *at)


def _length(x: Any, values: Any, where: Any, at: _Positions) -> int:
    """Neighbors in one access: 16 bytes, but at most 8 elements, if rows are contiguous and all that is
    accessed begins at a multiple of that."""
    kept, length = where["kept"], min(16 // x.itemsize, 8)
    beside, apart = kept["strides"][1:3, :1], where["folded"]["strides"][1:3]
    even = not (where["rows"] % length or int(at.stride) % length or np.any(apart % length))
    return length if (even and kept["count"] == 1 and where["rows"] >= 32 and np.all(beside == 1) and x.dtype == values.dtype
                      and gl.packed(x, values)) else 1


def _run(name: str, types: tuple[Any, ...], where: Any, strip: int, *arguments: Any) -> None:
    """Launch a kernel with a warp for each run of positions and strip of rows."""
    units = -(-int(where["width"]) // RUN) * -(-int(where["rows"]) // strip)
    gl.run("group", name, types, 32 * units, *arguments, np.int64(units))


def _grouped(groups: Groups, where: Any, at: _Positions, workspace: Any) -> tuple[Any, Any]:
    """The numbers of the positions, sorted by the positions, and memory for parts of sums."""
    into, other, table, parts = split_workspace(workspace, *groups.pieces)
    order = None  # in the order of the index at first
    # Skipped positions count as the length.
    for shift in range(0, int(at.length).bit_length(), DIGIT):
        how = where, *at, np.int64(groups.share), np.int32(shift)
        gl.run_blocks("group", "tally", (at.index.dtype,), table.size >> DIGIT, order, table, *how)
        gl.run_blocks("group", "deal", (at.index.dtype,), table.size >> DIGIT, order, into, table, *how)
        order, into, other = into, other, into
    return order, parts
