"""The kernel table of the GPU: CUDA C++ of our own for every op; wide heads of attention alone run over CuPy's functions.

Elementwise functions, reductions, products, positions, recurrent layers, losses and optimizers stand in files of
their own; norms here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.devices.attention import build_attention
from gradcore.devices.gpu_attention import own_attention
from gradcore.devices.gpu_decompositions import DECOMPOSITIONS
from gradcore.devices.gpu_elementwise import ELEMENTWISE, wide
from gradcore.devices.gpu_folds import FOLDS
from gradcore.devices.gpu_images import IMAGES
from gradcore.devices.gpu_indexing import INDEXING
from gradcore.devices.gpu_linalg import LINALG, CupyWithProducts
from gradcore.devices.gpu_losses import LOSSES
from gradcore.devices.gpu_optimizers import OPTIMIZERS
from gradcore.devices.gpu_ordering import ORDERING
from gradcore.devices.gpu_pointwise import POINTWISE
from gradcore.devices.gpu_random import RANDOM
from gradcore.devices.gpu_recurrent import RECURRENT

#: The kernels of our own.
KERNELS: dict[str, Callable[..., Any]] = {**ELEMENTWISE, **POINTWISE, **FOLDS, **IMAGES, **INDEXING, **LINALG,
                                          **LOSSES, **ORDERING, **DECOMPOSITIONS, **OPTIMIZERS, **RANDOM,
                                          **RECURRENT}


def kernel(fn: Callable[..., Any]) -> Callable[..., Any]:
    KERNELS[fn.__name__] = fn
    return fn


def build_cuda_kernels() -> dict[str, Callable[..., Any]]:
    """Every kernel of the GPU by op name."""
    return dict(KERNELS)


# Wider heads than a multiprocessor has room for run over CuPy.
KERNELS.update(own_attention(build_attention(CupyWithProducts(), RANDOM["uniform"])))


# -- norms -------------------------------------------------------------------------------------------------------------


@kernel
def layer_norm(x: Any, weight: Any, bias: Any, out: Any, mean: Any, rstd: Any, workspace: Any, *, dims: int,
               eps: float) -> None:
    width = math.prod(x.shape[x.ndim - dims:])
    gl.run_rows("norm", "layer_norm", (x.dtype, "true"), mean.size, gl.lanes_of(width), x, weight, bias, out, mean, rstd,
                np.int64(mean.size), np.int64(width), np.float64(eps))


@kernel
def layer_norm_apply(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, out: Any, *, dims: int) -> None:
    gl.run("norm", "affine", (x.dtype, x.dtype), x.size, x, weight, bias, mean, rstd, out, np.int64(x.size),
           np.int64(math.prod(x.shape[x.ndim - dims:])), np.int64(0))


@kernel
def layer_norm_grad(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any, workspace: Any,
                    *, dims: int, needs: Any) -> None:
    rows, width = mean.size, math.prod(x.shape[x.ndim - dims:])
    gl.run_rows("norm", "layer_norm_dx", (x.dtype, "true"), rows, gl.lanes_of(width), dy, x, weight, mean, rstd, dx,
                np.int64(rows), np.int64(width))
    tiles, compute = -(-width // 32), wide(x.dtype)
    room = workspace.nbytes // max(2 * width * compute.itemsize, 1)
    parts = max(min(room, rows // 64, gl.BUSY // max(tiles, 1)), 1)
    made = workspace[:2 * parts * width * compute.itemsize] if parts > 1 else None
    gl.run_blocks("norm", "affine_parts", (x.dtype, "true"), tiles * parts, dy, x, mean, rstd, made, dweight, dbias,
                  np.int64(rows), np.int64(width), np.int32(parts))
    if parts > 1:
        gl.run("norm", "affine_total", (x.dtype,), width, made, dweight, dbias, np.int64(width), np.int32(parts))


def _shares(x: Any, workspace: Any) -> tuple[Any, ...]:
    """Elements of a channel, of a row of it, channels, blocks that share a channel, and room for two numbers of each block."""
    channels, compute = x.shape[1], wide(x.dtype)
    count = x.size // max(channels, 1)
    each = max(2 * channels * compute.itemsize, 1)
    parts = max(min(workspace.nbytes // each, count // 2048, gl.BUSY // max(channels, 1)), 1)
    return (np.int64(count), np.int64(math.prod(x.shape[2:])), np.int64(channels), np.int32(parts),
            workspace[:parts * each].view(compute))


@kernel
def rms_norm(x: Any, weight: Any, out: Any, workspace: Any, *, dims: int, eps: float) -> None:
    width = math.prod(x.shape[x.ndim - dims:])
    rows = math.prod(x.shape[:x.ndim - dims])
    gl.run_rows("norm", "layer_norm", (x.dtype, "false"), rows if width else 0, gl.lanes_of(width), x, weight, None, out, None,
                workspace, np.int64(rows), np.int64(width), np.float64(eps))


@kernel
def batch_norm(x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, out: Any, mean: Any, rstd: Any,
               workspace: Any, *, momentum: float, eps: float) -> None:
    count, inner, channels, parts, made = _shares(x, workspace)
    gl.run_blocks("norm", "batch_parts", (x.dtype,), int(channels) * int(parts), x, made, count, inner, channels, parts)
    gl.run("norm", "batch_statistics", (x.dtype,), int(channels), made, mean, rstd, running_mean, running_var, count, channels,
           parts, np.float64(eps), np.float64(momentum))
    if made.dtype != x.dtype:
        # As they were before they were rounded.
        mean, rstd = made, made[1:]
    _batch_affine(x, weight, bias, mean, rstd, out)


@kernel
def batch_norm_apply(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, out: Any, workspace: Any) -> None:
    _batch_affine(x, weight, bias, mean, rstd, out)


def _batch_affine(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, out: Any) -> None:
    gl.run("norm", "affine", (x.dtype, mean.dtype), x.size, x, weight, bias, mean, rstd, out, np.int64(x.size),
           np.int64(math.prod(x.shape[2:])), np.int64(x.shape[1]))


@kernel
def batch_norm_grad(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any, workspace: Any, *,
                    needs: Any) -> None:
    count, inner, channels, parts, made = _shares(x, workspace)
    gl.run_blocks("norm", "batch_grad_parts", (x.dtype,), int(channels) * int(parts), dy, x, mean, rstd, made, count, inner,
                  channels, parts)
    gl.run("norm", "batch_grad_total", (x.dtype,), int(channels), made, dweight, dbias, channels, parts)
    if needs[0]:
        gl.run("norm", "batch_norm_dx", (x.dtype,), x.size, dy, x, weight, mean, rstd, made, dx, np.int64(x.size), inner,
               channels)
