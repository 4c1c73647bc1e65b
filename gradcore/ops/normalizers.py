"""Softmax and log_softmax: numbers along a dimension as probabilities, or as their logarithms."""

from __future__ import annotations

import math
from typing import Any

from gradcore.ops.elementwise import exp
from gradcore.ops.op import op, spending
from gradcore.ops.reduce import sum
from gradcore.ops.shapes import need_float, row_bytes, same, with_workspace
from gradcore.spec import FOLDED, TensorSpec


def _line_bytes(x: TensorSpec, dim: int) -> int:
    """Bytes of a number for each line along a dimension."""
    return x.numel // max(x.shape[dim] if x.ndim else 1, 1) * x.dtype.itemsize


def _grad_spec(dy: TensorSpec, x: TensorSpec, *, dim: int) -> Any:
    same("softmax_grad", dy, x)
    return with_workspace(x.like(), _line_bytes(x, dim))


def _softmax_spec(x: TensorSpec, *, dim: int) -> Any:
    need_float("softmax", x=x)
    return with_workspace(x.like(), _line_bytes(x, dim))


def _log_softmax_spec(x: TensorSpec, *, dim: int) -> Any:
    need_float("log_softmax", x=x)
    # Exponentials are summed in pieces, of rows or along the dimensions before this one.
    each = math.prod(x.shape[dim:])
    elements = min(x.numel, max(FOLDED // max(each, 1), 1) * each)
    exponentials = row_bytes(x, each) if dim == x.ndim - 1 else elements * x.dtype.itemsize
    return with_workspace(x.like(), exponentials + 32 + _line_bytes(x, dim))


def _along(x: Any, dim: int) -> Any:
    """The sum along one dimension, which stays; a 0-d tensor has none and is its own sum."""
    return sum(x, dims=(dim,) if x.spec.ndim else (), keepdim=True)


softmax = op("softmax", _softmax_spec, x=spending(lambda g, out, dim: softmax_grad(g, out, dim=dim)))
softmax_grad = op("softmax_grad", _grad_spec, may_alias=("dy",),
                  dy=lambda g, x, dim: softmax_grad(g, x, dim=dim),
                  x=lambda g, dy, x, dim: g * dy - g * _along(dy * x, dim) - dy * _along(g * x, dim),
                  doc="x * (dy - sum(dy * x)), where x is the result of softmax.")

log_softmax = op("log_softmax", _log_softmax_spec, contiguous=True, may_alias=("x",),
                 x=spending(lambda g, out, dim: log_softmax_grad(g, out, dim=dim)))
log_softmax_grad = op("log_softmax_grad", _grad_spec, may_alias=("x",),
                      dy=lambda g, x, dim: g - _along(g * exp(x), dim),
                      x=lambda g, dy, x, dim: exp(x) * g * _along(dy, dim) * -1,
                      doc="dy - exp(x) * sum(dy), where x is the result of log_softmax.")
