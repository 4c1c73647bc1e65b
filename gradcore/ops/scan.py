"""Running sums, products and extremes along a dimension, and the recurrence that their gradients are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.errors import SpecError
from gradcore.ops.arrangement import flip
from gradcore.ops.creation import new_full
from gradcore.ops.movement import cat, narrow, reshape, slice_grad
from gradcore.ops.op import op
from gradcore.ops.reduce import reduced
from gradcore.ops.shapes import need_float, same
from gradcore.spec import TensorSpec

#: The longest dimension along which a recurrence, which takes a step for each position on the CPU, is faster than two scans.
_SHORT = 64


def _whole(x: TensorSpec) -> Any:
    return x.dtype if x.floating else np.int64


def _cumsum_spec(x: TensorSpec, *, dim: int, reverse: bool = False) -> TensorSpec:
    return x.like(_whole(x))


def _cumprod_spec(x: TensorSpec, *, dim: int) -> TensorSpec:
    return x.like(_whole(x))


def _cumextreme_spec(x: TensorSpec, *, dim: int, largest: bool) -> TensorSpec:
    return x.like()


def _prod_spec(x: TensorSpec, *, dim: int, keepdim: bool) -> TensorSpec:
    return TensorSpec.of(reduced(x, (dim,), keepdim), _whole(x))


def _recurrence_spec(b: TensorSpec, a: TensorSpec, *, dim: int, reverse: bool = False) -> TensorSpec:
    need_float("recurrence", b=b, a=a)
    same("recurrence", b, a)
    if not b.ndim:
        raise SpecError("recurrence: expected operands with at least one dimension, but got 0-d operands")
    return b.like()


def before(x: Any, dim: int, first: float) -> Any:
    """Each element's predecessor along ``dim``; the first one's is a number."""
    shape = x.spec.shape
    head = new_full(x, (*shape[:dim], min(shape[dim], 1), *shape[dim + 1:]), first)
    return cat([head, narrow(x, dim, 0, max(shape[dim] - 1, 0))], dim=dim)


def _cumprod_rule(g: Any, x: Any, out: Any, dim: int) -> Any:
    """The product of what comes before, times what follows: no division, so zeros are as good as any number."""
    return before(out, dim, 1.0) * recurrence(g, x, dim=dim, reverse=True) if x.spec.ndim else g


def _prod_rule(g: Any, x: Any, dim: int) -> Any:
    """For each element the product of what comes before it and of what follows: no division, as above."""
    shape = x.spec.shape
    if not shape:
        return g
    if not shape[dim]:
        return new_full(x, shape, 0.0)
    g = reshape(g, (*shape[:dim], 1, *shape[dim + 1:]))
    if shape[dim] <= _SHORT:
        # The last of the running products is the product: its cotangent is 0 but there.
        index = (*((0, n, 1) for n in shape[:dim]), (shape[dim] - 1, 1, 1), *((0, n, 1) for n in shape[dim + 1:]))
        follows = recurrence(slice_grad(g, shape=shape, index=index), x, dim=dim, reverse=True)
    else:
        # The cotangent comes first, as in the recurrence: the factors alone may overflow, of which 0 times is no number.
        factors = cat([g, narrow(flip(x, dims=(dim,)), dim, 0, shape[dim] - 1)], dim=dim)
        follows = flip(cumprod(factors, dim=dim), dims=(dim,))
    return before(cumprod(x, dim=dim), dim, 1.0) * follows


def _recurrence_a(g: Any, a: Any, out: Any, dim: int, reverse: bool) -> Any:
    back = recurrence(g, a, dim=dim, reverse=not reverse)
    return before(back, dim, 0.0) * out if reverse else back * before(out, dim, 0.0)


cumsum = op("cumsum", _cumsum_spec, x=lambda g, dim, reverse: cumsum(g, dim=dim, reverse=not reverse))
cumprod = op("cumprod", _cumprod_spec, x=_cumprod_rule)
cumextreme = op("cumextreme", _cumextreme_spec, doc="The largest or the smallest element so far along ``dim``; a NaN stays.")
prod = op("prod", _prod_spec, x=_prod_rule)
recurrence = op("recurrence", _recurrence_spec,
                b=lambda g, a, dim, reverse: recurrence(g, a, dim=dim, reverse=not reverse), a=_recurrence_a,
                doc="y[i] = b[i] + a[i] y[i - 1] along ``dim``; from the end, y[i] = b[i] + a[i + 1] y[i + 1]. "
                    "Blelloch, Prefix Sums and Their Applications, 1990.")
