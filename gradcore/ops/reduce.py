"""Ops that fold dimensions away. ``dims`` is a sorted tuple, normalized by the caller."""

from __future__ import annotations

import math
from types import NoneType
from typing import Any

import numpy as np

from gradcore.errors import DimError, SpecError
from gradcore.ops.creation import zeros_of
from gradcore.ops.elementwise import abs, eq, exp, ne, pow, sign, where
from gradcore.ops.movement import cast, cast_to, expand, reshape, take_along_grad
from gradcore.ops.op import Inferred, op
from gradcore.ops.shapes import need_float, with_workspace
from gradcore.spec import FOLDED, TensorSpec, adjacent

Dims = tuple[int, ...]


def reduced(x: TensorSpec, dims: Dims, keepdim: bool) -> tuple[int, ...]:
    """The shape without ``dims``, or with 1 for each. Raises TypeError for what looks like a dimension more as ``keepdim``."""
    if not isinstance(keepdim, (bool, np.bool_, NoneType)):
        raise TypeError(f"argument 'keepdim' must be bool, not {type(keepdim).__name__}: {keepdim!r}. Several dimensions are "
                        "given in a tuple, as in x.sum((0, 1))")
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
    """The result of a fold whose kernel needs a number for each result, and a copy of ``x``, or of a piece of a large one."""
    out = TensorSpec.of(reduced(x, dims, keepdim), x.dtype)
    elements = x.numel
    if elements > FOLDED and x.contiguous and adjacent(dims):
        inner = math.prod(x.shape[dims[-1] + 1:])
        each = math.prod(x.shape[dims[0]:])
        # What is folded in several pieces also needs room for what the next one adds.
        elements = FOLDED // each * each if each <= FOLDED else (max(FOLDED // inner, 1) + 1) * inner
    return with_workspace(out, elements * x.dtype.itemsize + out.widened().nbytes + 32)


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

# -- variance and norms: each keeps its input and what it is folded to, and makes the rest again --------------------------


def _var_spec(x: TensorSpec, *, dims: Dims, correction: float, keepdim: bool) -> Inferred:
    need_float("var", input=x)
    return folded(x, dims, keepdim)


def _var_rule(g: Any, x: Any, dims: Dims, correction: float) -> Any:
    freedom = count(x.spec, dims) - correction
    return widen(g * (2 / freedom if freedom > 0 else math.nan), x.spec, dims) * (x - mean(x, dims=dims, keepdim=True))


var = op("var", _var_spec, x=_var_rule, doc="Squared distances from the mean over n - correction.")


def _norm_spec(x: TensorSpec, *, p: float, dims: Dims, keepdim: bool) -> Inferred:
    need_float("linalg.vector_norm", input=x)
    if (p < 0 or math.isinf(p)) and not count(x, dims):
        raise SpecError(f"linalg.vector_norm cannot compute the {p} norm on an empty tensor because the operation does not "
                        f"have an identity: got shape {list(x.shape)}")
    return folded(x, dims, keepdim)


def _norm_rule(g: Any, x: Any, out: Any, p: float, dims: Dims) -> Any:
    """Where the norm is 0, so is the gradient; the largest share theirs."""
    if x.spec.narrow:
        # A quotient by the norm, or a power of it, may be too small for 16 bits.
        g, wide, out = (cast_to(v, v.spec.widened()) for v in (g, x, out))
        return cast_to(_norm_rule(g, wide, out, p, dims), x.spec)
    if p == 0:
        return widen(zeros_of(g), x.spec, dims) * 1
    if p == 1:
        return sign(x) * widen(g, x.spec, dims)
    if math.isinf(p):
        winners = cast(eq(abs(x), widen(out, x.spec, dims)), dtype=g.spec.dtype)
        many = sum(winners, dims=dims, keepdim=g.spec.shape == reduced(x.spec, dims, True))
        return sign(x) * winners * widen(g / many, x.spec, dims)
    zero = eq(out, 0)
    if p == 2:
        return x * widen(where(zero, 0.0, g / where(zero, 1.0, out)), x.spec, dims)
    factor = widen(where(zero, 0.0, g * pow(where(zero, 1.0, out), 1 - p)), x.spec, dims)
    if p > 1:
        return sign(x) * pow(abs(x), p - 1) * factor
    # Below 1 the slope at 0 has no bound; torch says 0.
    some = ne(x, 0)
    return where(some, sign(x) * pow(where(some, abs(x), 1.0), p - 1), 0.0) * factor


vector_norm = op("vector_norm", _norm_spec, x=_norm_rule, doc="(sum |x|^p)^(1/p); for p = 0 how many are not 0.")
