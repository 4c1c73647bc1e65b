"""Reductions on the GPU: sums, variances, extremes and their positions, softmax and related functions. None allocates."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from gradcore.devices.gpu import launch as gl
from gradcore.devices.gpu.kernels.elementwise import wide
from gradcore.devices.kernels import split_workspace, summed

#: Elements of a row that are enough work for a block.
_PART = 8192
#: Blocks that long rows, and tiles of columns, are split over, or up to twice as many: enough loads under way, while all run at
#: once and few arrive. On an H200, 264 and 792 take a tenth longer.
_BLOCKS = 512


def fold(op: str, x: Any, out: Any, dims: tuple[int, ...], divisor: float = 1, power: float = 0, level: Any = None) -> None:
    """Write ``x`` reduced over ``dims`` to ``out``, whose shape is that of ``x`` without them, or with ones in their place.

    ``power`` is that of a norm; ``level``, contiguous, has for each result the number that deviations are measured from.
    """
    if out.ndim == x.ndim - len(dims):
        steps = iter(gl.elements(out))
        placed = [0 if d in dims else next(steps) for d in range(x.ndim)]
    else:
        placed = [0 if d in dims else s for d, s in enumerate(gl.elements(out))]
    where, kernel, blocks, number = _plan(x.shape, dims, gl.elements(x), tuple(placed))
    more = () if kernel == "fold" else (gl.SHARED,)
    gl.run_blocks("reduce", kernel, (op, x.dtype, out.dtype), blocks, x, out, where, np.float64(divisor), np.float64(power),
                  level, number, *more)


@functools.lru_cache(maxsize=4096)
def _plan(shape: tuple[int, ...], dims: tuple[int, ...], *strides: tuple[int, ...]) -> tuple[Any, str, int, np.int32]:
    """The layout, the kernel and its blocks, and the parts of a row, or the threads for it."""
    where = gl.layout_of(shape, dims, *strides)
    rows, width = int(where["rows"]), int(where["width"])
    if gl.interleaved(where) and rows >= 32:
        tiles = -(-rows // 32)
        parts = max(min(width // 64, -(-_BLOCKS // tiles)), 1)
        return where, "fold_columns", tiles * parts, np.int32(parts)
    parts = _parts(rows, width)
    if parts > 1:
        return where, "fold_split", rows * parts, np.int32(parts)
    lanes = gl.lanes_to_fold(where)
    return where, "fold", -(-rows // (gl.BLOCK // lanes)), np.int32(lanes)


def _parts(rows: int, width: int) -> int:
    """The number of blocks for each row."""
    return min(width // _PART, -(-_BLOCKS // max(rows, 1)))


def _reduction(op: str) -> Any:
    def reduce(x: Any, out: Any, *, dims: tuple[int, ...], keepdim: bool) -> None:
        fold(op, x, out, dims)

    return reduce


gl.KERNELS |= {"sum": _reduction("Sum"), "amax": _reduction("Most"), "amin": _reduction("Least"), "any": _reduction("Any"),
               "all": _reduction("All")}


@gl.kernel
def mean(x: Any, out: Any, *, dims: tuple[int, ...], keepdim: bool) -> None:
    fold("Sum", x, out, dims, math.prod(x.shape[d] for d in dims))


@gl.kernel
def sum_to_shape(x: Any, out: Any, *, shape: tuple[int, ...]) -> None:
    dims = summed(x.shape, shape)
    fold("Sum", x, out.reshape([n for d, n in enumerate(x.shape) if d not in dims]), dims)


def _find(side: str, x: Any, *results: Any, dim: int, keepdim: bool) -> None:
    """Write the positions of extremes, and before them the extremes if there is a place for them."""
    *values, indices = results
    where = gl.layout((dim,) if x.ndim else (), x)
    rows, lanes, given = int(where["rows"]), gl.lanes_to_fold(where), (x, indices, values[0] if values else None, where)
    parts = _parts(rows, int(where["width"])) if lanes > 1 else 1
    if parts > 1:
        gl.run_blocks("reduce", "find_split", (side, x.dtype), rows * parts, *given, np.int32(parts), gl.SHARED)
    else:
        gl.run_rows("reduce", "find", (side, x.dtype), rows, lanes, *given)


_highest, _lowest = (functools.partial(_find, side) for side in ("Most", "Least"))
gl.KERNELS |= {"argmax": _highest, "argmin": _lowest, "max_with_index": _highest, "min_with_index": _lowest}


@gl.kernel
def prod(x: Any, out: Any, *, dim: int, keepdim: bool) -> None:
    fold("Times", x, out, (dim,) if x.ndim else ())


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


def _over(name: str, types: tuple[Any, ...], dims: tuple[int, ...], *arrays: Any, out: Any = None) -> None:
    where, rows, lanes, length = gl.rows_of(dims, *arrays)
    ends = () if out is None else (out,)
    gl.run_rows("softmax", name, (arrays[0].dtype, *types, length), rows, lanes, *arrays, *ends, where)


def _softmax(name: str, log: str) -> Any:
    def run(*arrays: Any, dim: int) -> None:
        *given, _ = arrays
        _over(name, (log,), (dim,) if given[0].ndim else (), *given)

    return run


gl.KERNELS |= {f"{'log_' * (log == 'true')}{name}": _softmax(name, log)
               for name in ("softmax", "softmax_grad") for log in ("false", "true")}


@gl.kernel
def logsumexp(x: Any, out: Any, workspace: Any, *, dims: tuple[int, ...], keepdim: bool) -> None:
    _over("logsumexp", (), dims, x, out=out)
