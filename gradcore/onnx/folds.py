"""Converters to ONNX of reductions, of ops that move elements, and of constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.devices.kernels import basic_view
from gradcore.onnx.graph import Graph, Value
from gradcore.onnx.table import Refused, converts, enter
from gradcore.spec import TensorSpec

Dims = tuple[int, ...]

# -- folds -------------------------------------------------------------------------------------------------------------


def _fold(kind: str) -> Any:
    return lambda g, out, x, *, dims, keepdim: g.fold(kind, g.cast(x, out.dtype), dims, keepdim)


enter({
    "sum": _fold("ReduceSum"), "amax": _fold("ReduceMax"), "amin": _fold("ReduceMin"),
    "prod": lambda g, out, x, *, dim, keepdim: g.fold("ReduceProd", g.cast(x, out.dtype), (dim,) if x.ndim else (), keepdim)})


@converts("mean")
def mean(g: Graph, out: TensorSpec, x: Value, *, dims: Sequence[int], keepdim: bool) -> Value:
    x = g.cast(x, out.dtype)
    if all(x.shape[d] for d in dims):
        return g.fold("ReduceMean", x, dims, keepdim)
    # onnxruntime's ReduceMean of nothing is 0.
    return g.fold("ReduceSum", x, dims, keepdim) / 0.0


@converts("any")
def _any(g: Graph, out: TensorSpec, x: Value, *, dims: Dims, keepdim: bool) -> Value:
    count = g.fold("ReduceSum", g.cast(g.cast(x, np.bool_), np.int32), dims, keepdim)
    return count > 0


@converts("all")
def _all(g: Graph, out: TensorSpec, x: Value, *, dims: Dims, keepdim: bool) -> Value:
    return ~_any(g, out, ~g.cast(x, np.bool_), dims=dims, keepdim=keepdim)


def _arg(kind: str) -> Any:
    return lambda g, out, x, *, dim, keepdim: g.node(
        kind, x, shape=out.shape, dtype=np.int64, axis=dim, keepdims=int(keepdim))


def _with_index(fold: str, arg: str) -> Any:
    return lambda g, out, x, *, dim, keepdim: [g.fold(fold, x, (dim,), keepdim),
                                               _arg(arg)(g, out, x, dim=dim, keepdim=keepdim)]


enter({"argmax": _arg("ArgMax"), "argmin": _arg("ArgMin"), "max_with_index": _with_index("ReduceMax", "ArgMax"),
       "min_with_index": _with_index("ReduceMin", "ArgMin")})


@converts("logsumexp")
def _logsumexp(g: Graph, out: TensorSpec, x: Value, *, dims: Dims, keepdim: bool) -> Value:
    top = g.fold("ReduceMax", x, dims, True)
    # inf - inf would be NaN.
    infinite = g.node("IsInf", top, dtype=np.bool_)
    top = g.where(infinite, g.constant(0.0, x.dtype), top)
    total = g.fold("ReduceSum", g.node("Exp", x - top), dims, True)
    return g.reshape(g.node("Log", total) + top, out.shape)


@converts("var")
def _var(g: Graph, out: TensorSpec, x: Value, *, dims: Dims, correction: float, keepdim: bool) -> Value:
    less = x - g.fold("ReduceMean", x, dims, True)
    total = g.fold("ReduceSum", less * less, dims, keepdim)
    return total / max(math.prod(x.shape[d] for d in dims) - correction, 0.0)


@converts("vector_norm")
def _vector_norm(g: Graph, out: TensorSpec, x: Value, *, p: float, dims: Dims, keepdim: bool) -> Value:
    if p in (1, 2):
        return g.fold("ReduceL1" if p == 1 else "ReduceL2", x, dims, keepdim)
    if math.isinf(p):
        return g.fold("ReduceMax" if p > 0 else "ReduceMin", abs(x), dims, keepdim)
    if p == 0:
        return g.fold("ReduceSum", g.cast(~x.equals(0.0), x.dtype), dims, keepdim)
    return g.fold("ReduceSum", abs(x) ** p, dims, keepdim) ** (1 / p)


@converts("cumsum")
def _cumsum(g: Graph, out: TensorSpec, x: Value, *, dim: int, reverse: bool) -> Value:
    if not x.ndim:
        return g.cast(x, out.dtype)
    return g.node("CumSum", g.cast(x, out.dtype), g.constant(dim, np.int64), reverse=int(reverse))


@converts("cumextreme")
def _cumextreme(g: Graph, out: TensorSpec, x: Value, *, dim: int, largest: bool) -> Value:
    """By doubling strides: ONNX has no running maximum."""
    n = x.shape[dim] if x.ndim else 1
    for step in (1 << k for k in range(max(n - 1, 0).bit_length())):
        head, before, here = (g.slice(x, [part if d == dim else (0, m, 1) for d, m in enumerate(x.shape)])
                              for part in ((0, step, 1), (0, n - step, 1), (step, n, 1)))
        later = g.pointwise("Max" if largest else "Min", before, here, dtype=x.dtype)
        x = g.node("Concat", head, later, shape=x.shape, axis=dim)
    return x


@converts("ranked")
def _ranked(g: Graph, out: TensorSpec, x: Value, *, dim: int, start: int, length: int, descending: bool) -> list[Value]:
    if not x.ndim:
        return [x, g.constant(0, np.int64)]
    shape = (*x.shape[:dim], start + length, *x.shape[dim + 1:])
    found = g.several("TopK", [x, g.constant([start + length], np.int64)], [(shape, x.dtype), (shape, np.int64)],
                      axis=dim, largest=int(descending), sorted=1)
    parts = [(0, n, 1) for n in shape]
    parts[dim] = (start, start + length, 1)
    return [g.slice(v, parts) if start else v for v in found]


# -- movement ----------------------------------------------------------------------------------------------------------


enter({
    "cat": lambda g, out, tensors, *, dim: g.node(
        "Concat", *[g.cast(t, out.dtype) for t in tensors], shape=out.shape, axis=dim),
    "flip": lambda g, out, x, *, dims: g.slice(x, [
        (n - 1, -n - 1, -1) if d in dims else (0, n, 1) for d, n in enumerate(x.shape)]),
    "tril": lambda g, out, x, *, diagonal: g.node("Trilu", x, g.constant(diagonal, np.int64), upper=0),
    "triu": lambda g, out, x, *, diagonal: g.node("Trilu", x, g.constant(diagonal, np.int64), upper=1),
    "embedding": lambda g, out, weight, index, *, padding: g.node("Gather", weight, index, shape=out.shape, axis=0),
    "take": lambda g, out, x, index, *, dim, wrap=True: g.node(
        "Gather", x, g.cast(index, np.int64), shape=out.shape, axis=dim),
    "take_along": lambda g, out, x, index, *, dim, wrap=True: g.node(
        "GatherElements", x, _along(g, x, index, dim), shape=out.shape, axis=dim),
    "put_along_": lambda g, out, x, index, values, *, dim: g.node(
        "ScatterElements", x, _along(g, x, index, dim), g.expand(values, index.shape), axis=dim)})


@converts("roll")
def _roll(g: Graph, out: TensorSpec, x: Value, *, shifts: Dims, dims: Dims) -> Value:
    for shift, dim in zip(shifts, dims, strict=True):
        n = x.shape[dim]
        at = -shift % n if n else 0
        if at:
            parts = [[(a, b, 1) if d == dim else (0, m, 1) for d, m in enumerate(x.shape)] for a, b in ((at, n), (0, at))]
            x = g.node("Concat", *[g.slice(x, p) for p in parts], shape=x.shape, axis=dim)
    return x


def _along(g: Graph, x: Value, index: Value, dim: int) -> Value:
    """The index of a gather or scatter along ``dim``, as ONNX takes it. Raises :class:`Refused` if it is larger elsewhere."""
    if any(m > n for d, (m, n) in enumerate(zip(index.shape, x.shape, strict=True)) if d != dim):
        raise Refused(f"an index of shape {list(index.shape)} reaches beyond {list(x.shape)}")
    return g.cast(index, np.int64)


@converts("slice_grad")
def _padded(g: Graph, out: TensorSpec, x: Value, *, shape: Dims, index: tuple[tuple[int, ...], ...]) -> Value:
    """Zeros around a slice, as padding with zeros is computed."""
    if any(len(part) != 3 or part[2] != 1 for part in index):
        places = basic_view(np.arange(out.numel).reshape(shape), index).reshape(-1)
        zeros = g.constant(np.zeros(out.numel, out.dtype))
        return g.reshape(g.node("ScatterElements", zeros, g.constant(places), g.reshape(x, places.shape), axis=0), shape)
    rest = shape[len(index):]
    before = [*(part[0] for part in index), *(0 for _ in rest)]
    after = [*(n - part[0] - part[1] for n, part in zip(shape, index, strict=False)), *(0 for _ in rest)]
    return g.node("Pad", x, g.constant(np.array([*before, *after], np.int64)), g.constant(0, x.dtype), shape=out.shape)


# -- constants ---------------------------------------------------------------------------------------------------------


enter({
    "full": lambda g, out, value, *, shape, dtype: g.expand(g.number(value, out.dtype), out.shape),
    # Uninitialized memory is written before it is read, so any value does.
    "empty": lambda g, out, *, shape, dtype: g.expand(g.constant(0, out.dtype), out.shape),
    "arange": lambda g, out, start, step, *, length, dtype: g.constant((start + np.arange(length) * step).astype(out.dtype)),
    "eye": lambda g, out, *, rows, columns, dtype: g.constant(np.eye(rows, columns, dtype=out.dtype))})
