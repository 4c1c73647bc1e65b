"""Convolution and pooling on the GPU: one launch each, two for a weight's gradient, without a copy of the windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.gpu.kernels.elementwise import apply, wide
from gradcore.devices.gpu.kernels.reductions import fold
from gradcore.devices.precision import rounded
from gradcore.tiling import BUSY, SHARE, Pair, shares_alone, tiles_alone

CONVOLUTION = np.dtype([(name, "i8") for name in (
    "images", "groups", "channels", "height", "width", "outputs", "rows", "columns")]
    + [(name, "i8", (2,)) for name in ("kernel", "stride", "padding", "dilation")])
POOLING = np.dtype([(name, "i8") for name in ("height", "width", "rows", "columns")]
                   + [(name, "i8", (2,)) for name in ("kernel", "stride", "padding", "dilation")])

# -- convolution -------------------------------------------------------------------------------------------------------


def _convolution(x: Any, weight: Any, out: Any, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Any:
    """The kernels' argument of sizes, from the shapes of the input, the weight and the output."""
    # As places in an image and in the weight have 32 bits, those of rows and columns fewer.
    beyond = [(taps - 1) * step for taps, step in zip(weight[2:], dilation, strict=True)]
    most = max(math.prod(weight), *(math.prod(image[1:]) + beyond[0] * image[3] + beyond[1] for image in (x, out)))
    longest = max(*stride, *(n + 2 * p for n, p in zip(x[2:], padding, strict=True)))
    if most >= 1 << 32 or longest >= 1 << 29:
        raise NotImplementedError("convolution on the GPU takes fewer than 2^32 elements in an image, with what a window "
                                  "reaches beyond it, and in the weight, and padded sides and strides below 2^29, but got "
                                  f"{most:,} and {longest:,}")
    return np.array((x[0], groups, weight[1], *x[2:], weight[0] // groups, *out[2:], weight[2:], stride, padding, dilation),
                    CONVOLUTION)


#: Threads of a block, bytes of the product that it computes, and columns if there are no tiles.
_THREADS, _TILE, _FEW = 128, 1 << 14, 512


def _tiles(dtype: Any, groups: int, rows: int, columns: int) -> tuple[int, int]:
    """The rows of a tile, so that few of its elements are outside the product, and the number of tiles."""
    tile = _TILE // wide(dtype).itemsize
    counts = {height: -(-rows // height) * -(-columns // (tile // height)) for height in (64, 32)}
    height = min(counts, key=counts.__getitem__)
    return height, groups * counts[height]


def _blocks(dtype: Any, groups: int, rows: int, columns: int, deep: int) -> tuple[int, int]:
    """The same, or 1 and a number of blocks if the rows and steps are too few for tiles, as in depthwise convolution."""
    return (1, groups * -(-columns // _FEW)) if rows <= 4 and deep <= 64 else _tiles(dtype, groups, rows, columns)


def _cores(dtype: Any, height: int) -> bool:
    """Do tensor cores multiply tiles of so many rows?"""
    return height > 1 and (dtype.itemsize == 2 or (dtype == np.float32 and rounded()[1]))


def _multiply(name: str, dtype: Any, height: int, blocks: int, *arguments: Any, types: tuple[Any, ...] = (),
              threads: int = _THREADS) -> None:
    if blocks:
        instance = gl.instance(name, dtype, height, int(_cores(dtype, height)), *types)
        gl.start("convolution", instance, blocks, threads, arguments)


#: Threads of a block that has a multiprocessor alone.
_MANY = 512


@gl.kernel
def conv2d(x: Any, weight: Any, bias: Any, out: Any, workspace: Any, *, stride: Pair, padding: Pair, dilation: Pair,
           groups: int) -> None:
    how = _convolution(x.shape, weight.shape, out.shape, stride, padding, dilation, groups)
    height, blocks = _blocks(x.dtype, groups, weight.shape[0] // groups, out.shape[0] * math.prod(out.shape[2:]),
                             math.prod(weight.shape[1:]))
    _multiply("conv2d", x.dtype, height, blocks, x, weight, bias, out, how)


@gl.kernel
def conv2d_input_grad(dy: Any, weight: Any, out: Any, workspace: Any, *, shape: Any, stride: Pair, padding: Pair,
                      dilation: Pair, groups: int) -> None:
    how = _convolution(shape, weight.shape, dy.shape, stride, padding, dilation, groups)
    height, blocks = _blocks(dy.dtype, groups, weight.shape[1], shape[0] * math.prod(shape[2:]),
                             weight.shape[0] // groups * math.prod(weight.shape[2:]))
    _multiply("conv2d_input_grad", dy.dtype, height, blocks, dy, weight, out, how, types=(int(stride == (1, 1)),))


@gl.kernel
def conv2d_weight_grad(dy: Any, x: Any, out: Any, *sums_and_workspace: Any, shape: Any, stride: Pair, padding: Pair,
                       dilation: Pair, groups: int, bias: bool = False) -> None:
    *sums, workspace = sums_and_workspace
    how = _convolution(x.shape, shape, dy.shape, stride, padding, dilation, groups)
    rows, columns = shape[0] // groups, math.prod(shape[1:])
    compute = wide(x.dtype)
    alone = rows * columns > 256 and not _cores(x.dtype, 64)
    if alone:
        height, tiles = tiles_alone(rows, columns, compute.itemsize)
        tiles *= groups
    elif rows * columns > 256:
        height, tiles = _tiles(x.dtype, groups, rows, columns)
    else:
        # Few elements, as of a depthwise convolution, are summed up four by four.
        height, tiles = 1, groups * rows * -(-columns // 4)
    threads = _MANY if alone else _THREADS
    length = dy.shape[0] * math.prod(dy.shape[2:])
    # A tile adds up dy as it is multiplied: in TF32 that is rounded.
    rounding = x.dtype == np.float32 and _cores(x.dtype, height)
    total = sums[0] if sums and height > 1 and not rounding else None
    if sums and total is None:
        fold("Sum", dy, sums[0], (0, 2, 3))
    # The windows are split into as many shares as keep the device busy and as the workspace has room for sums.
    biases = 0 if total is None else total.size
    each = (out.size + biases) * compute.itemsize
    parts = max(min(workspace.nbytes // max(each, 1), length // SHARE, BUSY // max(tiles, 1)), 1)
    if alone:
        parts = shares_alone(parts, tiles)
    if parts == 1 and compute == out.dtype:
        _multiply("conv2d_weight_grad", x.dtype, height, tiles, dy, x, out, total, how, np.int32(1),
                  threads=threads)
        return
    made = workspace[:parts * each].view(compute)
    slopes, levels = made[:parts * out.size], made[parts * out.size:]
    _multiply("conv2d_weight_grad", x.dtype, height, tiles * parts, dy, x, slopes, levels if biases else None, how,
              np.int32(parts), threads=threads)
    gl.run_blocks("convolution", "conv2d_weight_total", (x.dtype,), -(-(out.size + biases) // 32), slopes, levels, out, total,
                  np.int64(out.size), np.int64(biases), np.int32(parts))


# -- pooling -----------------------------------------------------------------------------------------------------------


def _pooling(image: Any, small: Any, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> Any:
    return np.array((*image[2:], *small[2:], kernel, stride, padding, dilation), POOLING)


def _pool(name: str, types: Any, result: Any, *arguments: Any) -> None:
    gl.run("pooling", name, types, result.size, *arguments)


def _halves(image: tuple[int, ...], how: tuple[Pair, ...], *arrays: Any) -> bool:
    """Do windows of 2 by 2 cover the image side by side, and does it consist of rows of whole accesses?"""
    return how == ((2, 2), (2, 2), (0, 0), (1, 1)) and not image[2] % 2 and gl.length_of(image[3], *arrays) > 1


@gl.kernel
def max_pool2d(x: Any, out: Any, index: Any, workspace: Any, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
               ceil_mode: bool) -> None:
    if _halves(x.shape, (kernel, stride, padding, dilation), x, out, index):
        gl.run("pooling", "max_pool2d_halved", (x.dtype, index.dtype), out.size // (8 // x.itemsize), x, out, index,
               np.int64(out.shape[3]), np.int64(out.size))
        return
    _pool("max_pool2d", (x.dtype, index.dtype), out, x, out, index, _pooling(x.shape, out.shape, kernel, stride, padding,
                                                                           dilation), np.int64(out.size))


@gl.kernel
def max_pool2d_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, kernel: Pair, stride: Pair, padding: Pair,
                    dilation: Pair) -> None:
    if _halves(shape, (kernel, stride, padding, dilation), out, dy, index):
        gl.run("pooling", "max_pool2d_halved_grad", (dy.dtype, index.dtype), dy.size // (8 // dy.itemsize), dy, index, out,
               np.int64(dy.shape[3]), np.int64(dy.size))
        return
    _pool("max_pool2d_grad", (dy.dtype, index.dtype), out, dy, index, out,
          _pooling(shape, dy.shape, kernel, stride, padding, dilation), np.int64(out.size))


@gl.kernel
def max_pool2d_take(x: Any, index: Any, out: Any, workspace: Any, *, kernel: Pair, stride: Pair, padding: Pair,
                    dilation: Pair) -> None:
    _pool("max_pool2d_take", (x.dtype, index.dtype), out, x, index, out,
          _pooling(x.shape, out.shape, kernel, stride, padding, dilation), np.int64(out.size))


@gl.kernel
def max_pool2d_places(index: Any, out: Any, *, shape: Any, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> None:
    _pool("max_pool2d_places", (index.dtype,), out, index, out,
          _pooling(shape, out.shape, kernel, stride, padding, dilation), np.int64(out.size))


def _mean(x: Any, out: Any) -> None:
    """The mean of each image, by a team of threads instead of one."""
    if out.size:
        fold("Sum", x, out, (2, 3), math.prod(x.shape[2:]))


def _mean_grad(dy: Any, out: Any) -> None:
    apply("Div", wide(dy.dtype), out, dy, float(math.prod(out.shape[2:])))


def _takes_all(shape: Any, kernel: Pair, padding: Pair, divisor: int | None) -> bool:
    """Does a window take the whole image, and divide by its size?"""
    return kernel == tuple(shape[2:]) and padding == (0, 0) and not divisor


@gl.kernel
def avg_pool2d(x: Any, out: Any, *, kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool, count_pad: bool,
               divisor: int | None) -> None:
    if _takes_all(x.shape, kernel, padding, divisor):
        _mean(x, out)
        return
    _pool("avg_pool2d", (x.dtype,), out, x, out, _pooling(x.shape, out.shape, kernel, stride, padding), np.int64(out.size),
          np.int32(count_pad), np.int64(divisor or 0))


@gl.kernel
def avg_pool2d_grad(dy: Any, out: Any, workspace: Any, *, shape: Any, kernel: Pair, stride: Pair, padding: Pair,
                    ceil_mode: bool, count_pad: bool, divisor: int | None) -> None:
    if _takes_all(shape, kernel, padding, divisor):
        _mean_grad(dy, out)
        return
    _pool("avg_pool2d_grad", (dy.dtype,), out, dy, out, _pooling(shape, dy.shape, kernel, stride, padding),
          np.int64(out.size), np.int32(count_pad), np.int64(divisor or 0))


@gl.kernel
def adaptive_avg_pool2d(x: Any, out: Any, *, size: Pair) -> None:
    if size == (1, 1):
        _mean(x, out)
        return
    _pool("adaptive_avg_pool2d", (x.dtype,), out, x, out, *map(np.int64, (*x.shape[2:], *size, out.size)))


@gl.kernel
def adaptive_avg_pool2d_grad(dy: Any, out: Any, workspace: Any, *, shape: Any) -> None:
    if dy.shape[2:] == (1, 1):
        _mean_grad(dy, out)
        return
    _pool("adaptive_avg_pool2d_grad", (dy.dtype,), out, dy, out, *map(np.int64, (*shape[2:], *dy.shape[2:], out.size)))
