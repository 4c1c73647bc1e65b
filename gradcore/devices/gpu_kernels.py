"""The kernel table of the GPU: CUDA C++ of our own for every op that has it, CuPy's functions for what is left.

Elementwise functions, reductions, products, positions and images stand in files of their own; random numbers, losses, norms
and optimizers here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.devices.attention import build_attention
from gradcore.devices.batch_norm import build_batch_norm
from gradcore.devices.convolution import build_convolution
from gradcore.devices.gpu_attention import own_attention
from gradcore.devices.gpu_elementwise import ELEMENTWISE, wide
from gradcore.devices.gpu_folds import FOLDS
from gradcore.devices.gpu_images import IMAGES
from gradcore.devices.gpu_indexing import INDEXING
from gradcore.devices.gpu_linalg import LINALG
from gradcore.devices.kernels import build_kernels, split_workspace
from gradcore.devices.pooling import build_pooling

#: The kernels of our own.
KERNELS: dict[str, Callable[..., Any]] = {**ELEMENTWISE, **FOLDS, **IMAGES, **INDEXING, **LINALG}


def kernel(fn: Callable[..., Any]) -> Callable[..., Any]:
    KERNELS[fn.__name__] = fn
    return fn


def build_cuda_kernels() -> dict[str, Callable[..., Any]]:
    """Every kernel of the GPU by op name."""
    return {**build_kernels(cupy), **build_convolution(cupy), **build_pooling(cupy), **build_batch_norm(cupy),
            **KERNELS}


# -- random numbers ----------------------------------------------------------------------------------------------------


@kernel
def advance(state: Any, out: Any, *, numel: int) -> None:
    gl.start("random", "advance", 1, 1, (state, out, np.uint64(numel // 4 + 2)))


@kernel
def uniform(state: Any, low: Any, high: Any, out: Any, *, shape: Any, dtype: Any) -> None:
    gl.run("random", "uniform", (out.dtype,), -(-out.size // 4), state, np.float64(low), np.float64(high - low), out,
           np.int64(out.size))


@kernel
def normal(state: Any, mean: Any, std: Any, out: Any, workspace: Any, *, shape: Any, dtype: Any) -> None:
    gl.run("random", "normal", (out.dtype,), -(-out.size // 4), state, np.float64(mean), np.float64(std), out,
           np.int64(out.size))


@kernel
def dropout(x: Any, state: Any, p: Any, out: Any, workspace: Any) -> None:
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)
    gl.run("random", "dropout", (x.dtype,), -(-x.size // 8), x, state, np.float32(p), np.float64(scale), out,
           np.int64(x.size))


# Wider heads than a multiprocessor has room for run over CuPy.
KERNELS.update(own_attention(build_attention(cupy, uniform)))


# -- losses ------------------------------------------------------------------------------------------------------------


@kernel
def cross_entropy(logits: Any, target: Any, weight: Any, out: Any, workspace: Any, *, reduction: str = "mean",
                  ignore_index: int = -100) -> None:
    rows, classes = logits.shape
    types = (logits.dtype, target.dtype)
    losses, weights = split_workspace(workspace, (rows, logits.dtype), (rows, logits.dtype))
    gl.run_rows("loss", "cross_entropy_rows", types, rows, gl.lanes_of(classes), logits, target, weight,
                out if reduction == "none" else losses, weights, np.int64(rows), np.int32(classes), np.int64(ignore_index))
    if reduction != "none":
        gl.run_blocks("loss", "cross_entropy_reduce", types[:1], 1, losses, weights, out, np.int64(rows),
                      np.int32(reduction == "mean"))


@kernel
def cross_entropy_grad(dy: Any, logits: Any, target: Any, weight: Any, out: Any, workspace: Any, *, reduction: str,
                       ignore_index: int) -> None:
    rows, classes = logits.shape
    types = (logits.dtype, target.dtype)
    whole = None
    if reduction == "mean" and rows:
        whole = split_workspace(workspace, (1, wide(logits.dtype)))[0]
        gl.run_blocks("loss", "whole_weight", types, 1, target, weight, whole, np.int64(rows), np.int32(classes),
                      np.int64(ignore_index))
    gl.run_rows("loss", "cross_entropy_grad", types, rows, gl.lanes_of(classes), dy, logits, target, weight, whole, out,
                np.int64(rows), np.int32(classes), np.int64(ignore_index), np.int32(reduction == "none"))


@kernel
def mse_loss(x: Any, target: Any, out: Any, workspace: Any, *, reduction: str = "mean") -> None:
    divisor = np.float64(x.size if reduction == "mean" else 1)
    # Up to 4096 elements are one block's; beyond, the workspace, a piece of x, has room for the sums of 256.
    blocks = min(-(-x.size // gl.BLOCK), gl.BLOCK) if x.size > 4096 else 1
    gl.run_blocks("loss", "mse_loss", (x.dtype,), blocks, x, target, workspace, out, np.int64(x.size), divisor)
    if blocks > 1:
        gl.run_blocks("loss", "mse_total", (x.dtype,), 1, workspace, out, np.int32(blocks), divisor)


# -- norms -------------------------------------------------------------------------------------------------------------


@kernel
def layer_norm(x: Any, weight: Any, bias: Any, out: Any, mean: Any, rstd: Any, workspace: Any, *, dims: int,
               eps: float) -> None:
    width = math.prod(x.shape[x.ndim - dims:])
    gl.run_rows("norm", "layer_norm", (x.dtype, "true"), mean.size, gl.lanes_of(width), x, weight, bias, out, mean, rstd,
                np.int64(mean.size), np.int64(width), np.float64(eps))


@kernel
def layer_norm_apply(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, out: Any, *, dims: int) -> None:
    gl.run("norm", "affine", (x.dtype,), x.size, x, weight, bias, mean, rstd, out, np.int64(x.size),
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
def batch_norm(x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, out: Any, mean: Any, rstd: Any,
               workspace: Any, *, momentum: float, eps: float) -> None:
    count, inner, channels, parts, made = _shares(x, workspace)
    gl.run_blocks("norm", "batch_parts", (x.dtype,), int(channels) * int(parts), x, made, count, inner, channels, parts)
    gl.run("norm", "batch_statistics", (x.dtype,), int(channels), made, mean, rstd, running_mean, running_var, count, channels,
           parts, np.float64(eps), np.float64(momentum))
    batch_norm_apply(x, weight, bias, mean, rstd, out, workspace)


@kernel
def batch_norm_apply(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, out: Any, workspace: Any) -> None:
    gl.run("norm", "affine", (x.dtype,), x.size, x, weight, bias, mean, rstd, out, np.int64(x.size),
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


# -- optimizers: a launch for up to 64 parameters -----------------------------------------------------------------------

_GROUP, _CHUNK = 64, 4096
GROUP = np.dtype([("count", "i8"), ("first", "i8", (_GROUP,)), ("sizes", "i8", (_GROUP,)), ("tensors", "u8", (4, _GROUP))])
SGD = np.dtype([(name, "f8") for name in ("rate", "momentum", "dampening", "decay")]
               + [(name, "i8") for name in ("nesterov", "maximize", "first")])
ADAM = np.dtype([(name, "f8") for name in ("rate", "correction", "root", "beta1", "beta2", "eps", "decay")]
                + [(name, "i8") for name in ("decoupled", "maximize")])


def _update(name: str, how: Any, *lists: Sequence[Any]) -> None:
    """One launch for each type and each 64 tensors; a list may be empty."""
    by_type: dict[Any, list[int]] = {}
    for k, param in enumerate(lists[0]):
        if param.size:
            by_type.setdefault(param.dtype, []).append(k)
    for dtype, whole in by_type.items():
        for start in range(0, len(whole), _GROUP):
            some = whole[start:start + _GROUP]
            group, blocks = np.zeros((), GROUP), 0
            group["count"] = len(some)
            for place, k in enumerate(some):
                group["first"][place] = blocks
                group["sizes"][place] = lists[0][k].size
                blocks += -(-lists[0][k].size // _CHUNK)
                for row, tensors in enumerate(lists):
                    if tensors:
                        group["tensors"][row, place] = tensors[k].data.ptr
            gl.run_blocks("optim", name, (dtype,), blocks, group, how)


@kernel
def sgd_(params: Sequence[Any], grads: Sequence[Any], moments: Sequence[Any], lr: Any, workspace: Any, *, momentum: float,
         dampening: float, weight_decay: float, nesterov: bool, maximize: bool, first: bool) -> None:
    how = np.array((float(lr), momentum, dampening, weight_decay, nesterov, maximize, first), SGD)
    _update("sgd", how, params, grads, moments)


@kernel
def adam_(params: Sequence[Any], grads: Sequence[Any], means: Sequence[Any], squares: Sequence[Any], lr: Any, step: Any,
          workspace: Any, *, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool,
          maximize: bool) -> None:
    correction, root = 1 - beta1 ** float(step), (1 - beta2 ** float(step)) ** -0.5
    how = np.array((float(lr), correction, root, beta1, beta2, eps, weight_decay, decoupled, maximize), ADAM)
    _update("adam", how, params, grads, means, squares)
