"""Variance and norms: each keeps its input and what it is folded to, and makes the rest again."""

from __future__ import annotations

import math
from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.creation import zeros_of
from gradcore.ops.elementwise import abs, eq, ne, pow, sign, where
from gradcore.ops.movement import cast
from gradcore.ops.op import Inferred, op
from gradcore.ops.reduce import Dims, count, folded, mean, reduced, sum, widen
from gradcore.ops.shapes import need_float
from gradcore.spec import TensorSpec


def _var_spec(x: TensorSpec, *, dims: Dims, correction: float, keepdim: bool) -> Inferred:
    need_float("var", input=x)
    return folded(x, dims, keepdim)


def _centred(x: Any, dims: Dims) -> Any:
    return x - mean(x, dims=dims, keepdim=True)


def _var_rule(g: Any, x: Any, dims: Dims, correction: float) -> Any:
    freedom = count(x.spec, dims) - correction
    return widen(g * (2 / freedom if freedom > 0 else math.nan), x.spec, dims) * _centred(x, dims)


var = op("var", _var_spec, x=_var_rule, doc="Squared distances from the mean over n - correction.")


def _norm_spec(x: TensorSpec, *, p: float, dims: Dims, keepdim: bool) -> Inferred:
    need_float("linalg.vector_norm", input=x)
    if (p < 0 or math.isinf(p)) and not count(x, dims):
        raise SpecError(f"linalg.vector_norm cannot compute the {p} norm on an empty tensor because the operation does not "
                        f"have an identity: got shape {list(x.shape)}")
    return folded(x, dims, keepdim)


def _norm_rule(g: Any, x: Any, out: Any, p: float, dims: Dims) -> Any:
    """Where the norm is 0, so is the gradient; the largest share theirs."""
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

__all__ = ["var", "vector_norm"]
