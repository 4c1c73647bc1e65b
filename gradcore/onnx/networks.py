"""Converters to ONNX of matrix products, convolution, pooling, norms, softmax, attention and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.functional.sampling import shares
from gradcore.onnx.folds import mean
from gradcore.onnx.graph import Graph, Value
from gradcore.onnx.table import Refused, converts, enter
from gradcore.ops.convolution import covered
from gradcore.spec import TensorSpec
from gradcore.tiling import Pair


def _turned(g: Graph, x: Value) -> Value:
    return g.transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


enter({
    "matmul": lambda g, out, a, b, *, transpose_a, transpose_b: g.node(
        "MatMul", _turned(g, a) if transpose_a else a, _turned(g, b) if transpose_b else b, shape=out.shape),
    "softmax": lambda g, out, x, *, dim: g.node("Softmax", x, axis=dim) if x.ndim else g.constant(1.0, x.dtype),
    "log_softmax": lambda g, out, x, *, dim: g.node("LogSoftmax", x, axis=dim) if x.ndim else g.constant(0.0, x.dtype),
    "cross_entropy": lambda g, out, logits, target, weight, *, reduction, ignore_index: g.node(
        "SoftmaxCrossEntropyLoss", logits, target, weight, shape=out.shape, reduction=reduction, ignore_index=ignore_index)})


@converts("linear")
def _linear(g: Graph, out: TensorSpec, x: Value, weight: Value, bias: Value | None) -> Value:
    if x.ndim == 2:
        return g.node("Gemm", x, weight, bias, shape=out.shape, transB=1)
    made = g.node("MatMul", x, _turned(g, weight), shape=out.shape)
    return made if bias is None else made + bias


@converts("conv2d")
def _conv2d(g: Graph, out: TensorSpec, x: Value, weight: Value, bias: Value | None, *, stride: Pair, padding: Pair,
            dilation: Pair, groups: int) -> Value:
    return g.node("Conv", x, weight, bias, shape=out.shape, kernel_shape=list(weight.shape[2:]), strides=list(stride),
                  pads=[*padding, *padding], dilations=list(dilation), group=groups)


@converts("conv2d_input_grad")
def _conv_transpose2d(g: Graph, out: TensorSpec, x: Value, weight: Value, *, shape: tuple[int, ...], stride: Pair,
                      padding: Pair, dilation: Pair, groups: int) -> Value:
    """What a transposed convolution computes; rows and columns that no window reaches are its output padding."""
    more = [n - covered(*along) for n, *along in zip(
        shape[2:], x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)]
    if any(not 0 <= extra < max(s, d) for extra, s, d in zip(more, stride, dilation, strict=True)):
        raise Refused(f"a result of {list(shape[2:])} rows and columns needs an output padding of {more}")
    return g.node("ConvTranspose", x, weight, shape=out.shape, kernel_shape=list(weight.shape[2:]), strides=list(stride),
                  pads=[*padding, *padding], output_padding=more, dilations=list(dilation), group=groups)


# -- pooling -----------------------------------------------------------------------------------------------------------


def _ends(out: TensorSpec, x: Value, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
          ceil_mode: bool) -> tuple[Sequence[int], int]:
    """The padding at the ends and ``ceil_mode`` in ONNX, where windows that begin in the padding at the end count, too."""
    spans = [(n, m, d * (k - 1) + 1, s, p) for n, m, k, s, p, d in
             zip(out.shape[2:], x.shape[2:], kernel, stride, padding, dilation, strict=True)]
    if all(n == -(-(m + 2 * p - k) // s) + 1 for n, m, k, s, p in spans) or not ceil_mode:
        return padding, int(ceil_mode)
    return [max((n - 1) * s + k - m - p, 0) for n, m, k, s, p in spans], 0


@converts("max_pool2d")
def _max_pool2d(g: Graph, out: TensorSpec, x: Value, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
                ceil_mode: bool) -> list[Value | None]:
    ends, ceil = _ends(out, x, kernel, stride, padding, dilation, ceil_mode)
    if any(end >= k for end, k in zip(ends, kernel, strict=True)):
        raise Refused("dilated windows extend beyond the end by as much as the kernel, which onnxruntime does not take")
    made = g.node("MaxPool", x, shape=out.shape, kernel_shape=list(kernel), strides=list(stride), pads=[*padding, *ends],
                  dilations=list(dilation), ceil_mode=ceil)
    return [made, None]


@converts("avg_pool2d")
def _avg_pool2d(g: Graph, out: TensorSpec, x: Value, *, kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool,
                count_pad: bool, divisor: int | None) -> Value:
    spans = zip(out.shape[2:], x.shape[2:], kernel, stride, padding, strict=True)
    if ceil_mode and (divisor is not None or any((n - 1) * s + k > m + 2 * p for n, m, k, s, p in spans)):
        raise Refused("windows extend beyond the padding, for which runtimes use different divisors")
    ends, ceil = _ends(out, x, kernel, stride, padding, (1, 1), ceil_mode)
    made = g.node("AveragePool", x, shape=out.shape, kernel_shape=list(kernel), strides=list(stride), pads=[*padding, *ends],
                  ceil_mode=ceil, count_include_pad=int(count_pad or divisor is not None))
    return made if divisor is None else made * (math.prod(kernel) / divisor)


@converts("adaptive_avg_pool2d")
def _adaptive_avg_pool2d(g: Graph, out: TensorSpec, x: Value, *, size: Pair) -> Value:
    if out.shape[2:] == (1, 1):
        return g.fold("ReduceMean", x, (2, 3), True)
    for d in (2, 3):
        n, m = x.shape[d], out.shape[d]
        if n != m:
            means = shares(n, m).astype(x.dtype)
            shape = (*x.shape[:d], m, *x.shape[d + 1:])
            x = g.node("MatMul", g.constant(means), x, shape=shape) if d == 2 else g.node(
                "MatMul", x, g.constant(means.T.copy()), shape=shape)
    return x


# -- norms -------------------------------------------------------------------------------------------------------------


@converts("batch_norm_apply")
def _batch_norm_apply(g: Graph, out: TensorSpec, x: Value, weight: Value | None, bias: Value | None, mean: Value,
                      rstd: Value) -> Value:
    t = rstd.dtype
    scale = rstd if weight is None else g.cast(weight, t) * rstd
    shift = -(g.cast(mean, t) * scale)
    if bias is not None:
        shift = g.cast(bias, t) + shift
    column = (x.shape[1], *[1] * (x.ndim - 2))
    scale, shift = g.reshape(scale, column), g.reshape(shift, column)
    return g.cast(g.cast(x, t) * scale + shift, x.dtype)


@converts("batch_norm")
def _batch_norm(g: Graph, out: TensorSpec, *operands: Any, **attrs: Any) -> Value:
    raise Refused("it normalizes by the batch's statistics: call the module's eval() first")


@converts("layer_norm")
def _layer_norm(g: Graph, out: TensorSpec, x: Value, weight: Value | None, bias: Value | None, *, dims: int,
                eps: float) -> list[Value | None]:
    shape = x.shape[x.ndim - dims:]
    scale = g.expand(g.constant(1.0, x.dtype), shape) if weight is None else weight
    return [g.node("LayerNormalization", x, scale, bias, axis=-dims, epsilon=eps), None, None]


@converts("group_norm")
def _group_norm(g: Graph, out: TensorSpec, x: Value, weight: Value | None, bias: Value | None, *, groups: int,
                eps: float) -> list[Value | None]:
    rows = g.reshape(x, (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    scale = g.expand(g.constant(1.0, x.dtype), rows.shape[2:])
    made = g.reshape(g.node("LayerNormalization", rows, scale, None, axis=-1, epsilon=eps), x.shape)
    column = (x.shape[1], *[1] * (x.ndim - 2))
    if weight is not None:
        made = made * g.reshape(weight, column)
    return [made if bias is None else made + g.reshape(bias, column), None, None]


@converts("rms_norm")
def _rms_norm(g: Graph, out: TensorSpec, x: Value, weight: Value | None, *, dims: int, eps: float) -> Value:
    squares = g.fold("ReduceMean", x * x, range(x.ndim - dims, x.ndim), True)
    made = x / g.node("Sqrt", squares + eps)
    return made if weight is None else made * weight


# -- attention ---------------------------------------------------------------------------------------------------------


@converts("attention")
def _attention(g: Graph, out: TensorSpec, q: Value, k: Value, v: Value, mask: Value | None, state: Any, drop: Any, *,
               causal: bool, scale: float) -> list[Value | None]:
    scores = g.node("MatMul", q * scale, _turned(g, k), shape=(*q.shape[:3], k.shape[2]))
    if causal:
        rows, keys = scores.shape[2:]
        scores = g.where(g.constant(np.tri(rows, keys, dtype=np.bool_)), scores, g.constant(-np.inf, q.dtype))
    if mask is None:
        weights = g.node("Softmax", scores, axis=-1)
    else:
        scores = scores + mask
        # A query that sees no key has none of the values, where the softmax is NaN.
        blind = g.fold("ReduceMax", scores, (3,), True).equals(-np.inf)
        weights = g.where(blind, g.constant(0.0, q.dtype), g.node("Softmax", scores, axis=-1))
    return [g.node("MatMul", weights, v, shape=out.shape), None]


@converts("dropout", "advance", "uniform", "normal")
def _random(g: Graph, out: TensorSpec, *operands: Any, **attrs: Any) -> Value:
    raise Refused("it draws random numbers: call the module's eval() first")


# -- losses ------------------------------------------------------------------------------------------------------------


@converts("mse_loss")
def _mse_loss(g: Graph, out: TensorSpec, x: Value, target: Value, *, reduction: str) -> Value:
    less = g.cast(x, out.dtype) - target
    squares = less * less
    if reduction == "none":
        return squares
    dims = range(squares.ndim)
    return mean(g, out, squares, dims=dims, keepdim=False) if reduction == "mean" else g.fold("ReduceSum", squares, dims, False)
