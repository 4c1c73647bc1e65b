"""Norms on the GPU: how blocks share rows or channels, in as few launches as possible.

A replay calls some of them with a further argument, and they do the next instruction too; see ``gpu.fused``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.gpu.kernels.elementwise import wide
from gradcore.tiling import BUSY

#: A number of blocks that keeps most devices busy, and the most that pay. The most rows for a team of fewer blocks, and the
#: fewest: it loads several at once.
_FILLED, _MOST, _TURNS, _LEAST = 128, 384, 32, 2
#: The most blocks whose sums one of them adds up alone, and the most bytes of sums.
_MEETING, _ALONE = 16, 1 << 17
#: The most elements of a channel for one block, and the most shares of a channel that blocks combine without a launch of its
#: own (the room in kernels/channels.cuh and batch_norm*.cu).
_CHANNEL, _SHARES = 4096, 32
#: Adjacent elements of a channel that fill a memory access, and elements that stay in any device's cache for other blocks.
_NEIGHBORS, _CACHED = 32, 1 << 18
#: The fewest adjacent channels of which a warp reads up to 32 together.
_ROW = 8
#: The fewest rows of adjacent channels for a block, and the most blocks, of one input and of a gradient, which all run at once:
#: each walks to the last of its rows, and then another back, of which some are in cache.
_ROWS, _SIDE = 64, (3 * BUSY // 8, BUSY // 4)

# -- rows --------------------------------------------------------------------------------------------------------------


@gl.kernel
def layer_norm(x: Any, weight: Any, bias: Any, out: Any, mean: Any, rstd: Any, workspace: Any, a: Any = None, b: Any = None, *,
               dims: int, eps: float) -> None:
    """Layer norm of ``x``; if ``a`` and ``b`` are given, their sum is written to ``x`` first."""
    _rows(x, weight, bias, out, mean, rstd, math.prod(x.shape[x.ndim - dims:]), eps, a, b)


@gl.kernel
def rms_norm(x: Any, weight: Any, out: Any, rstd: Any, a: Any = None, b: Any = None, *, dims: int, eps: float) -> None:
    """RMS norm of ``x``; if ``a`` and ``b`` are given, their sum is written to ``x`` first."""
    _rows(x, weight, None, out, None, rstd, math.prod(x.shape[x.ndim - dims:]), eps, a, b)


def _rows(x: Any, weight: Any, bias: Any, out: Any, mean: Any, rstd: Any, width: int, eps: float, a: Any = None,
          b: Any = None, inner: int = 0, groups: int = 0) -> None:
    rows = rstd.size
    length = gl.length_of(inner, x, out) if inner else gl.length_of(width, x, weight, bias, out, a, b)
    # Blocks of few threads: the registers of one that ends are free for the next only when all its rows are done.
    gl.run_rows("norm", "layer_norm", (x.dtype, length), rows, gl.lanes_of_parts(width, length), x, weight, bias, out, mean,
                rstd, np.int64(rows), np.int64(width), np.float64(eps), a, b, np.int64(inner), np.int64(groups), threads=64)


@gl.kernel
def layer_norm_apply(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, out: Any, *, dims: int) -> None:
    _affine(x, weight, bias, mean, rstd, out, math.prod(x.shape[x.ndim - dims:]), 0)


def _affine(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, out: Any, inner: int, channels: int, relu: bool = False,
            dy: Any = None) -> None:
    if _beside(inner, channels):
        count, length = x.size // channels, gl.length_of(channels, x, out, dy, weight, bias, mean, rstd)
        parts, blocks = _parts_of_columns(count, channels, length)
        gl.run_blocks("batch_norm", "affine_columns", (x.dtype, length), blocks, x, weight, bias, mean, rstd, out,
                      np.int64(count), np.int64(channels), parts, _wide(x, weight, bias), np.int32(relu), dy)
        return
    length = gl.length_of(inner, x, out, dy, *(() if channels else (weight, bias)))
    gl.run("norm", "affine", (x.dtype, length), x.size // length, x, weight, bias, mean, rstd, out,
           np.int64(x.size), np.int64(inner), np.int64(channels), _wide(x, weight, bias), np.int32(relu), dy)


@gl.kernel
def layer_norm_grad(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any, workspace: Any,
                    added: bool = False, again: Any = None, bias: Any = None, *, dims: int, needs: Any) -> None:
    """The gradients of layer norm; with ``added``, dx is added to the content of ``dx``. If ``again`` is given, layer norm with
    ``bias`` is recomputed there."""
    _rows_grad(dy, x, weight, mean, rstd, dx if needs[0] else None, dweight, dbias, workspace, dims, added, again, bias)


@gl.kernel
def rms_norm_grad(dy: Any, x: Any, weight: Any, rstd: Any, dx: Any, dweight: Any, workspace: Any, added: bool = False,
                  again: Any = None, *, dims: int, needs: Any) -> None:
    """The gradients of RMS norm; with ``added``, dx is added to the content of ``dx``; RMS norm is recomputed in ``again``."""
    _rows_grad(dy, x, weight, None, rstd, dx if needs[0] else None, dweight, None, workspace, dims, added, again)


def meeting_first(parts: int) -> int:
    """Of so many blocks with sums, the number that meet first; those that add up their sums then meet."""
    return parts if parts <= _MEETING else math.isqrt(parts - 1) + 1


def _rows_grad(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any, workspace: Any,
               dims: int, added: bool = False, again: Any = None, bias: Any = None) -> None:
    rows, width = rstd.size, math.prod(x.shape[x.ndim - dims:])
    sizes, length = (np.int64(rows), np.int64(width)), gl.length_of(width, dy, x, weight, dx, again, bias)
    compute, columns = wide(x.dtype), gl.columns_of(width, length)
    # A sum for each column, and one more for the bias.
    each = (1 if dbias is None else 2) * width * compute.itemsize
    room = workspace.nbytes // max(each, 1)
    lanes, *accesses = columns or (gl.BLOCK,)
    teams = gl.BLOCK // lanes
    blocks = max(min(room, -(-rows // (teams * _LEAST)), _MOST), 1)
    # The workspace limits the number of blocks with sums. If these are too few for many rows, or a row is too long for a team,
    # separate launches handle rows and columns, which reads them twice.
    together = dx is not None and columns and (blocks >= _FILLED or rows <= blocks * teams * _TURNS)
    tiles = -(-width // 32)
    parts = blocks if together else max(min(room, rows // 64, BUSY // max(tiles, 1)), 1)
    made = workspace[:parts * each] if parts > 1 else None
    shared = gl.SHARED if parts > 1 else None
    if together:
        gl.run_blocks("norm_grad", "layer_norm_grads", (x.dtype, length, *accesses), parts, dy, x, weight, bias, mean, rstd, dx,
                      again, made, dweight, dbias, *sizes, np.int32(parts), np.int32(added), np.int32(lanes),
                      np.int32(parts if parts * each <= _ALONE else meeting_first(parts)), shared)
    else:
        if dx is not None:
            gl.run_rows("norm_grad", "layer_norm_dx", (x.dtype, length), rows, gl.lanes_of_parts(width, length), dy, x, weight,
                        bias, mean, rstd, dx, again, *sizes, np.int64(0), np.int64(0), np.int32(added))
        gl.run_blocks("norm_grad", "affine_parts", (x.dtype,), tiles * parts, dy, x, mean, rstd, made, dweight, dbias, *sizes,
                      np.int32(parts), shared)


# -- groups of channels ------------------------------------------------------------------------------------------------


@gl.kernel
def group_norm(x: Any, weight: Any, bias: Any, out: Any, mean: Any, rstd: Any, workspace: Any, *, groups: int,
               eps: float) -> None:
    if x.size:
        _rows(x, weight, bias, out, mean, rstd, x.size // mean.size, eps, inner=math.prod(x.shape[2:]), groups=groups)


@gl.kernel
def group_norm_grad(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any, workspace: Any, *,
                    groups: int, needs: Any) -> None:
    samples, channels = x.shape[:2]
    inner, each = math.prod(x.shape[2:]), channels // groups
    length = gl.length_of(inner, dy, x, dx if needs[0] else None)
    if needs[0] and x.size:
        width = each * inner
        gl.run_rows("norm_grad", "layer_norm_dx", (x.dtype, length), mean.size, gl.lanes_of_parts(width, length), dy, x, weight,
                    None, mean, rstd, dx, None, np.int64(mean.size), np.int64(width), np.int64(inner), np.int64(groups),
                    np.int32(0))
    if needs[1] or needs[2]:
        rows = samples * channels
        made = workspace[:2 * rows * wide(x.dtype).itemsize]
        gl.run_rows("norm_grad", "group_slopes", (x.dtype, length), rows, gl.lanes_of_parts(inner, length), dy, x, mean, rstd,
                    made, np.int64(rows), np.int64(inner), np.int64(each))
        gl.run_blocks("norm_grad", "affine_total", (x.dtype,), -(-channels // 32), made, dweight, dbias, np.int64(channels),
                      np.int32(samples))


# -- channels ----------------------------------------------------------------------------------------------------------


def _beside(inner: int, channels: int) -> bool:
    """Are the elements of all channels beside each other, in rows of enough of them for a warp?"""
    return inner == 1 and channels >= _ROW


def _parts_of_columns(count: int, channels: int, length: int, gradient: bool = False) -> tuple[Any, int]:
    """The blocks that share adjacent channels of ``count`` rows, 32 accesses of ``length`` side by side, and all blocks."""
    tiles = -(-channels // (32 * length))
    parts = max(min(-(-count // _ROWS), _SIDE[gradient] // tiles), 1)
    return np.int32(parts), parts * tiles if count else 0


def _near(x: Any) -> bool:
    """Do blocks with one channel each read adjacent elements, or elements in cache?"""
    return bool(math.prod(x.shape[2:]) >= _NEIGHBORS or x.size <= _CACHED)


def _wide(x: Any, *channels: Any) -> Any:
    """Have weights and the like, as far as they are there, another dtype than ``x``? Then it is that of the computation."""
    return np.int32(any(c is not None and c.dtype != x.dtype for c in channels))


def alone(x: Any) -> bool:
    """Does one block handle a whole channel? Then the workspace is not used."""
    return bool(_near(x) and x.size <= _CHANNEL * x.shape[1])


class _Channels:
    """How blocks share the channels of ``x``: each takes one or more channels, or ``parts`` blocks share one."""

    def __init__(self, x: Any, workspace: Any, others: Sequence[Any], numbers: Sequence[Any], gradient: bool = False) -> None:
        channels, compute = x.shape[1], wide(x.dtype)
        count, inner = x.size // max(channels, 1), math.prod(x.shape[2:])
        each = max(2 * channels * compute.itemsize, 1)
        near, self.alone = _near(x), alone(x)
        #: Do blocks take adjacent channels together?
        self.columns = _beside(inner, channels) and not near
        #: The type of the elements, and how many a thread accesses together.
        self.types = x.dtype, (gl.length_of(channels, x, *others, *numbers) if self.columns else
                               gl.length_of(inner, x, *others))
        tiles = -(-channels // (32 * self.types[1])) if self.columns else channels
        least, most = (_ROWS, _SIDE[gradient]) if self.columns else (2048, BUSY)
        self.parts = 1 if self.alone else max(min(workspace.nbytes // each, count // least, most // max(tiles, 1)), 1)
        #: Do the blocks that need a channel's totals combine the shares themselves?
        self.together = near and self.parts <= _SHARES
        #: Room for two numbers from each block.
        self.made: Any = None if self.alone else workspace[:self.parts * each].view(compute)
        self.channels, self.blocks = channels, tiles * self.parts
        self.sizes = (np.int64(count), np.int64(inner), np.int64(channels))
        #: Blocks for each channel in the launch that combines the shares.
        self.shares = 1 if self.alone else max(min(-(-count // 2048), 4 * BUSY // max(channels, 1)), 1)


@gl.kernel
def batch_norm(x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, out: Any, mean: Any, rstd: Any,
               workspace: Any, relu: bool = False, batches: Any = None, *, momentum: float, eps: float) -> None:
    """Batch norm by the batch's statistics; if ``batches`` is given, it is increased by 1."""
    by, numbers = _Channels(x, workspace, (out,), (weight, bias, mean, rstd)), (np.float64(eps), np.float64(momentum), batches)
    kept, parts = (mean, rstd, running_mean, running_var), np.int32(by.parts)
    own = _wide(x, weight, bias, running_mean, running_var)
    count, inner, channels = by.sizes
    types = by.types
    if by.columns:
        gl.run_blocks("batch_norm", "batch_columns", types, by.blocks, x, by.made, count, channels, parts)
    elif not by.alone:
        gl.run_blocks("batch_norm", "batch_parts", types, by.blocks, x, by.made, *by.sizes, parts)
    if by.together:
        gl.run_blocks("batch_norm", "batch_norm", types, by.channels * by.shares, x, weight, bias, by.made, out, *kept,
                      *by.sizes, parts, np.int32(by.shares), *numbers, own, np.int32(relu))
        return
    gl.run_blocks("batch_norm", "batch_statistics", types[:1], -(-by.channels // 32), by.made, *kept, count, channels, parts,
                  *numbers, own)
    _affine(x, weight, bias, mean, rstd, out, int(inner), by.channels, relu)


@gl.kernel
def batch_norm_apply(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, out: Any, workspace: Any, relu: bool = False,
                     dy: Any = None) -> None:
    """Batch norm by given statistics; if ``dy`` is given, the gradient of relu for that cotangent instead."""
    _affine(x, weight, bias, mean, rstd, out, math.prod(x.shape[2:]), x.shape[1], relu, dy)


@gl.kernel
def batch_norm_grad(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any, workspace: Any,
                    relu: bool = False, bias: Any = None, shown: Any = None, *, needs: Any) -> None:
    """The gradients of batch norm; with ``relu``, of relu of it, whose result is in ``shown`` or recomputed with ``bias``."""
    given = dy, x, weight, mean, rstd
    by = _Channels(x, workspace, (dy, dx if needs[0] else None, shown), (weight, bias, mean, rstd), gradient=True)
    last = _wide(x, weight, bias, dweight), np.int32(relu)
    count, inner, channels = by.sizes
    family, types, parts = "batch_norm_grad", by.types, np.int32(by.parts)
    if by.columns:
        gl.run_blocks(family, "batch_grad_columns", types, by.blocks, *given, by.made, bias, shown, count, channels, parts,
                      *last)
    elif not by.alone:
        gl.run_blocks(family, "batch_grad_parts", types, by.blocks, *given, by.made, bias, shown, *by.sizes, parts, *last)
    if by.together:
        gl.run_blocks(family, "batch_norm_grads", types, by.channels * by.shares, *given, by.made, dx if needs[0] else None,
                      dweight, dbias, bias, shown, *by.sizes, parts, np.int32(by.shares), *last)
        return
    gl.run(family, "batch_grad_total", types[:1], by.channels, by.made, dweight, dbias, channels, parts, last[0])
    if needs[0] and by.columns:
        parts, blocks = _parts_of_columns(int(count), by.channels, types[1], gradient=True)
        gl.run_blocks(family, "batch_dx_columns", types, blocks, *given, by.made, dx, bias, shown, count, channels, parts,
                      *last)
    elif needs[0]:
        gl.run(family, "batch_norm_dx", types, x.size // types[1], *given, by.made, dx, bias, shown, np.int64(x.size), inner,
               channels, *last)
