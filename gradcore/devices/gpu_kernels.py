"""The kernel table of the GPU: the shared kernels over CuPy, CUDA C++ where that is not enough.

The CUDA sources are compiled by NVRTC when first launched, to machine code for the device at hand.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from cupyx.scipy import special

from gradcore.devices.attention import build_attention
from gradcore.devices.batch_norm import build_batch_norm
from gradcore.devices.convolution import build_convolution
from gradcore.devices.kernels import build_kernels, folded_shape, split_workspace
from gradcore.devices.pooling import build_pooling

_TYPES = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
_BLOCK = 256

KERNELS: dict[str, Callable[..., Any]] = {}


def kernel(fn: Callable[..., Any]) -> Callable[..., Any]:
    KERNELS[fn.__name__] = fn
    return fn


def build_cuda_kernels() -> dict[str, Callable[..., Any]]:
    """Every kernel of the GPU by op name."""
    return {**build_kernels(cupy), **build_convolution(cupy), **build_pooling(cupy), **build_batch_norm(cupy),
            **build_attention(cupy), **KERNELS}


def source_folder() -> Path:
    """Where the .cu files are: inside an installed wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_kernels", package.parent / "kernels"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the CUDA sources are in neither {package / '_kernels'} nor {package.parent / 'kernels'}")


@functools.cache
def module(family: str, names: tuple[str, ...]) -> cupy.RawModule:
    """The compiled instances of one file."""
    code = (source_folder() / f"{family}.cu").read_text()
    return cupy.RawModule(code=code, options=("--std=c++17",), name_expressions=names)


def run(family: str, name: str, dtype: Any, threads: int, *arguments: Any, blocks: int | None = None) -> None:
    """Launch an instance of a template with enough blocks for ``threads`` threads."""
    if np.dtype(dtype) not in _TYPES:
        raise NotImplementedError(f"kernel {name!r} has no instance for {np.dtype(dtype).name}: float32 and float64 only")
    if not threads:
        return
    instance = f"{name}<{_TYPES[np.dtype(dtype)]}>"
    grid = min(-(-threads // _BLOCK), 1 << 16) if blocks is None else blocks
    module(family, (instance,)).get_function(instance)((grid,), (_BLOCK,), arguments)


# -- random numbers ----------------------------------------------------------------------------------------------------


@kernel
def advance(state: Any, out: Any, *, numel: int) -> None:
    module("random", ()).get_function("advance")((1,), (1,), (state, out, np.uint64(numel // 4 + 2)))


@kernel
def uniform(state: Any, low: Any, high: Any, out: Any, *, shape: Any, dtype: Any) -> None:
    run("random", "uniform", out.dtype, out.size, state, np.float64(low), np.float64(high - low), out, np.int64(out.size))


@kernel
def normal(state: Any, mean: Any, std: Any, out: Any, workspace: Any, *, shape: Any, dtype: Any) -> None:
    run("random", "normal", out.dtype, (out.size + 1) // 2, state, np.float64(mean), np.float64(std), out,
        np.int64(out.size))


@kernel
def dropout(x: Any, state: Any, p: Any, out: Any, workspace: Any) -> None:
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)
    run("random", "dropout", x.dtype, x.size, x, state, np.float32(p), np.float64(scale), out, np.int64(x.size))


# -- losses ------------------------------------------------------------------------------------------------------------


@kernel
def cross_entropy(logits: Any, target: Any, weight: Any, out: Any, workspace: Any, *, reduction: str = "mean",
                  ignore_index: int = -100) -> None:
    rows, classes = logits.shape
    losses, weights = split_workspace(workspace, (rows, logits.dtype), (rows, logits.dtype))
    # A null pointer where there are no weights of classes.
    given = np.uintp(0) if weight is None else weight
    run("loss", "cross_entropy_rows", logits.dtype, rows * 32, logits, target.astype(np.int64, copy=False), given,
        out if reduction == "none" else losses, weights, np.int64(rows), np.int32(classes), np.int64(ignore_index))
    if reduction != "none":
        run("loss", "cross_entropy_reduce", logits.dtype, 1, losses, weights, out, np.int64(rows),
            np.int32(reduction == "mean"), blocks=1)


@kernel
def cross_entropy_grad(dy: Any, logits: Any, target: Any, weight: Any, out: Any, workspace: Any, *, reduction: str,
                       ignore_index: int) -> None:
    rows, classes = logits.shape
    target = target.astype(np.int64, copy=False)
    given = np.uintp(0) if weight is None else weight
    whole: Any = np.uintp(0)
    if reduction == "mean" and rows:
        whole = split_workspace(workspace, (1, logits.dtype))[0]
        run("loss", "whole_weight", logits.dtype, 1, target, given, whole, np.int64(rows), np.int32(classes),
            np.int64(ignore_index), blocks=1)
    run("loss", "cross_entropy_grad", logits.dtype, rows * 32, dy, logits, target, given, whole, out, np.int64(rows),
        np.int32(classes), np.int64(ignore_index), np.int32(reduction == "none"))


@kernel
def mse_loss(x: Any, target: Any, out: Any, workspace: Any, *, reduction: str = "mean") -> None:
    room = workspace.view(x.dtype)
    out.fill(0 if x.size or reduction == "sum" else math.nan)
    xs, ts = x.reshape(-1), target.reshape(-1)
    for start in range(0, x.size, max(room.size, 1)):
        part = room[:min(room.size, x.size - start)]
        cupy.subtract(xs[start:start + part.size], ts[start:start + part.size], part)
        cupy.multiply(part, part, part)
        out += part.sum()
    if reduction == "mean" and x.size:
        cupy.multiply(out, 1.0 / x.size, out)


@kernel
def log_softmax(x: Any, out: Any, workspace: Any, *, dim: int) -> None:
    fold = workspace[:x.size // max(x.shape[dim] if x.ndim else 1, 1) * x.itemsize].view(x.dtype)
    fold = fold.reshape(folded_shape(x.shape, dim))
    axis = dim if x.ndim else None
    cupy.amax(x, axis=axis, out=fold, keepdims=True)
    cupy.subtract(x, fold, out)
    cupy.log(cupy.exp(out).sum(axis=axis, keepdims=True), fold)
    cupy.subtract(out, fold, out)


# -- activations and norms ---------------------------------------------------------------------------------------------


@kernel
def erf(x: Any, out: Any, workspace: Any) -> None:
    special.erf(x, out)


_gelu = cupy.ElementwiseKernel("T x", "T out", "out = x * normcdf(x)", "gradcore_gelu")
_gelu_tanh = cupy.ElementwiseKernel(
    "T x", "T out", "out = (T)0.5 * x * ((T)1 + tanh((T)0.7978845608028654 * (x + (T)0.044715 * x * x * x)))",
    "gradcore_gelu_tanh")
_gelu_grad = cupy.ElementwiseKernel(
    "T dy, T x", "T out", "out = dy * (normcdf(x) + x * exp((T)-0.5 * x * x) * (T)0.3989422804014327)",
    "gradcore_gelu_grad")
_gelu_tanh_grad = cupy.ElementwiseKernel(
    "T dy, T x", "T out", """
    T t = tanh((T)0.7978845608028654 * (x + (T)0.044715 * x * x * x));
    T du = (T)0.7978845608028654 * ((T)1 + (T)0.134145 * x * x);
    out = dy * ((T)0.5 * ((T)1 + t) + (T)0.5 * x * ((T)1 - t * t) * du);
    """, "gradcore_gelu_tanh_grad")


@kernel
def gelu(x: Any, out: Any, workspace: Any, *, tanh: bool = False) -> None:
    (_gelu_tanh if tanh else _gelu)(x, out)


@kernel
def gelu_grad(dy: Any, x: Any, out: Any, workspace: Any, *, tanh: bool = False) -> None:
    (_gelu_tanh_grad if tanh else _gelu_grad)(dy, x, out)


@kernel
def layer_norm(x: Any, weight: Any, bias: Any, out: Any, mean: Any, rstd: Any, workspace: Any, *, dims: int,
               eps: float) -> None:
    axes = tuple(range(x.ndim - dims, x.ndim))
    cupy.mean(x, axis=axes, out=mean, keepdims=True)
    cupy.subtract(x, mean, out)
    cupy.reciprocal(cupy.sqrt(cupy.mean(out * out, axis=axes, keepdims=True) + eps), rstd)
    cupy.multiply(out, rstd, out)
    if weight is not None:
        cupy.multiply(out, weight, out)
    if bias is not None:
        cupy.add(out, bias, out)


@kernel
def layer_norm_apply(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, out: Any, *, dims: int) -> None:
    cupy.subtract(x, mean, out)
    cupy.multiply(out, rstd, out)
    if weight is not None:
        cupy.multiply(out, weight, out)
    if bias is not None:
        cupy.add(out, bias, out)


@kernel
def layer_norm_grad(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any, workspace: Any,
                    *, dims: int, needs: Any) -> None:
    rows = tuple(range(x.ndim - dims))
    axes = tuple(range(x.ndim - dims, x.ndim))
    hat = (x - mean) * rstd
    cupy.sum(dy * hat, axis=rows, out=dweight)
    cupy.sum(dy, axis=rows, out=dbias)
    scaled = dy if weight is None else dy * weight
    slope = cupy.mean(scaled * hat, axis=axes, keepdims=True)
    cupy.subtract(scaled, cupy.mean(scaled, axis=axes, keepdims=True), dx)
    cupy.subtract(dx, hat * slope, dx)
    cupy.multiply(dx, rstd, dx)


# -- indexing: a position outside wraps around, since the host cannot be asked without waiting -------------------------


@kernel
def arange(start: Any, step: Any, out: Any, *, length: int, dtype: Any) -> None:
    _range(start, step, out)


_range = cupy.ElementwiseKernel("float64 start, float64 step", "T out", "out = (T)(start + step * (double)i)",
                                "gradcore_range")


@kernel
def take(x: Any, index: Any, out: Any, workspace: Any, *, dim: int) -> None:
    cupy.take(x, index, axis=dim, out=out)


@kernel
def take_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, dim: int) -> None:
    out.fill(0)
    cupy.add.at(out, (slice(None),) * dim + (index,), dy)


@kernel
def embedding(weight: Any, index: Any, out: Any, workspace: Any, *, padding: Any) -> None:
    take(weight, index, out, workspace, dim=0)


@kernel
def embedding_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, padding: Any) -> None:
    take_grad(dy, index, out, workspace, shape=shape, dim=0)
    if padding is not None:
        out[padding] = 0


@kernel
def embedding_unpadded(weight: Any, index: Any, out: Any, workspace: Any, *, padding: Any) -> None:
    take(weight, index, out, workspace, dim=0)
    if padding is not None:
        cupy.copyto(out, 0, where=(index == padding)[..., None])


@kernel
def put_(x: Any, index: Any, values: Any, workspace: Any, *, dim: int) -> None:
    x[(slice(None),) * dim + (index,)] = values


@kernel
def take_along(x: Any, index: Any, out: Any, workspace: Any, *, dim: int) -> None:
    out[...] = cupy.take_along_axis(x, index, dim)


@kernel
def take_along_grad(dy: Any, index: Any, out: Any, workspace: Any, *, shape: Any, dim: int) -> None:
    out.fill(0)
    places = list(cupy.ogrid[tuple(slice(n) for n in index.shape)])
    places[dim] = index
    cupy.add.at(out, tuple(places), dy)


# -- optimizers: a launch a parameter ----------------------------------------------------------------------------------


@kernel
def sgd_(params: list[Any], grads: list[Any], moments: list[Any], lr: Any, workspace: Any, *, momentum: float,
         dampening: float, weight_decay: float, nesterov: bool, maximize: bool, first: bool) -> None:
    for k, (p, g) in enumerate(zip(params, grads, strict=True)):
        run("optim", "sgd", p.dtype, p.size, p, g, moments[k] if moments else np.uintp(0), np.int64(p.size),
            np.float64(lr), np.float64(momentum), np.float64(dampening), np.float64(weight_decay), np.int32(nesterov),
            np.int32(maximize), np.int32(first))


@kernel
def adam_(params: list[Any], grads: list[Any], means: list[Any], squares: list[Any], lr: Any, step: Any, workspace: Any, *,
          beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool, maximize: bool) -> None:
    correction, root = 1 - beta1 ** float(step), (1 - beta2 ** float(step)) ** -0.5
    for p, g, m, v in zip(params, grads, means, squares, strict=True):
        run("optim", "adam", p.dtype, p.size, p, g, m, v, np.int64(p.size), np.float64(lr), np.float64(correction),
            np.float64(root), np.float64(beta1), np.float64(beta2), np.float64(eps), np.float64(weight_decay),
            np.int32(decoupled), np.int32(maximize))
