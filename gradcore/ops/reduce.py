"""Ops that fold dimensions away. ``dims`` is a sorted tuple, normalised by the caller."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.errors import DimError
from gradcore.ops.elementwise import eq, exp
from gradcore.ops.movement import cast, expand, reshape, take_along_grad
from gradcore.ops.op import Inferred, op
from gradcore.ops.shapes import need_float, with_workspace
from gradcore.spec import TensorSpec

Dims = tuple[int, ...]


def reduced(x: TensorSpec, dims: Dims, keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    return tuple(n for d, n in enumerate(x.shape) if d not in dims)


def _sum_spec(x: TensorSpec, *, dims: Dims, keepdim: bool) -> TensorSpec:
    return TensorSpec.of(reduced(x, dims, keepdim), x.dtype if x.floating else np.int64)


def _mean_spec(x: TensorSpec, *, dims: Dims, keepdim: bool) -> TensorSpec:
    need_float("mean", x=x)
    return TensorSpec.of(reduced(x, dims, keepdim), x.dtype)


def _extreme_spec(name: str) -> Any:
    def infer(x: TensorSpec, *, dims: Dims, keepdim: bool) -> TensorSpec:
        if 0 in [x.shape[d] for d in dims]:
            raise DimError(f"{name}(): Expected reduction dim to have non-zero size, but got shape {list(x.shape)}")
        return TensorSpec.of(reduced(x, dims, keepdim), x.dtype)

    return infer


def _bool_spec(x: TensorSpec, *, dims: Dims, keepdim: bool) -> TensorSpec:
    return TensorSpec.of(reduced(x, dims, keepdim), np.bool_)


def _arg_spec(name: str) -> Any:
    def infer(x: TensorSpec, *, dim: int, keepdim: bool) -> TensorSpec:
        if x.shape[dim] == 0:
            raise DimError(f"{name}(): Expected reduction dim {dim} to have non-zero size, but got {list(x.shape)}")
        return TensorSpec.of(reduced(x, (dim,), keepdim), np.int64)

    return infer


def _with_index_spec(name: str) -> Any:
    position = _arg_spec(name)

    def infer(x: TensorSpec, *, dim: int, keepdim: bool) -> tuple[TensorSpec, TensorSpec]:
        index = position(x, dim=dim, keepdim=keepdim)
        return index.like(x.dtype), index

    return infer


def widen(g: Any, x_spec: TensorSpec, dims: Dims) -> Any:
    """A reduced tensor shown in the shape it was reduced from."""
    return expand(reshape(g, reduced(x_spec, dims, True)), shape=x_spec.shape)


def count(spec: TensorSpec, dims: Dims) -> int:
    """How many elements are folded into one."""
    return math.prod(spec.shape[d] for d in dims)


def folded(x: TensorSpec, dims: Dims, keepdim: bool) -> Inferred:
    """The result of a fold whose kernel needs a copy of ``x``, and a number for each result."""
    out = TensorSpec.of(reduced(x, dims, keepdim), x.dtype)
    return with_workspace(out, x.nbytes + out.nbytes + 32)


sum = op("sum", _sum_spec, x=lambda g, x_spec, dims: widen(g, x_spec, dims) if x_spec.floating else None)
mean = op("mean", _mean_spec, x=lambda g, x_spec, dims: widen(g * (1 / max(count(x_spec, dims), 1)), x_spec, dims))


def _extreme_rule(g: Any, x: Any, out: Any, dims: Dims) -> Any:
    """Ties share the gradient equally, as PyTorch's amax does."""
    winners = cast(eq(x, widen(out, x.spec, dims)), dtype=g.spec.dtype)
    return winners * widen(g / reshape(sum(winners, dims=dims, keepdim=False), g.spec.shape), x.spec, dims)


amax = op("amax", _extreme_spec("amax"), x=_extreme_rule)
amin = op("amin", _extreme_spec("amin"), x=_extreme_rule)
any = op("any", _bool_spec)
all = op("all", _bool_spec)
argmax = op("argmax", _arg_spec("argmax"))
argmin = op("argmin", _arg_spec("argmin"))


def _indexed_rule(g_values: Any, indices: Any, x_spec: TensorSpec, dim: int, keepdim: bool) -> Any:
    shape = reduced(x_spec, (dim,), True)
    return take_along_grad(reshape(g_values, shape), reshape(indices, shape), shape=x_spec.shape, dim=dim)


max_with_index = op("max_with_index", _with_index_spec("max"), outputs=("values", "indices"), x=_indexed_rule)
min_with_index = op("min_with_index", _with_index_spec("min"), outputs=("values", "indices"), x=_indexed_rule)


def _logsumexp_spec(x: TensorSpec, *, dims: Dims, keepdim: bool) -> Any:
    need_float("logsumexp", x=x)
    return folded(x, dims, keepdim)


logsumexp = op("logsumexp", _logsumexp_spec,
               x=lambda g, x, out, dims: widen(g, x.spec, dims) * exp(x - widen(out, x.spec, dims)))

__all__ = ["all", "amax", "amin", "any", "argmax", "argmin", "logsumexp", "max_with_index", "mean", "min_with_index",
           "sum", "widen"]
