"""The logarithm of the gamma function with its derivatives, its incomplete forms, and the inverse of the error function."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gradcore.ops.creation import new_full
from gradcore.ops.elementwise import exp, log
from gradcore.ops.movement import clone, expand, sum_to
from gradcore.ops.op import Inferred, op
from gradcore.ops.random import standard_gamma_slope
from gradcore.ops.shapes import Operand, broadcast, float_like, float_like_by, need_float
from gradcore.spec import TensorSpec, broadcast_shapes
from gradcore.tiling import intricate


def _polygamma_spec(x: TensorSpec, *, n: int) -> Inferred:
    return Inferred((float_like(x),), library=intricate(x, 13))


def _incomplete_spec(a: Operand, x: Operand) -> Inferred:
    spec = broadcast(a, x)
    need_float("gammainc", result=spec)
    return Inferred((spec,), library=intricate(spec, 18))


def _tensors(a: Any, x: Any) -> Iterator[Any]:
    """Both as tensors, of which one may be a number."""
    like = a if hasattr(a, "spec") else x
    for v in (a, x):
        yield v if hasattr(v, "spec") else new_full(like, (), v)


def _density(a: Any, x: Any) -> Any:
    """x^(a - 1) e^-x / Gamma(a), the derivative of gammainc by x."""
    a, x = _tensors(a, x)
    return exp((a - 1) * log(x) - x - lgamma(a))


def _by_shape(a: Any, x: Any) -> Any:
    """The derivative of gammainc by a: where a grows, quantiles move to the right."""
    a, x = _tensors(a, x)
    a, x = (clone(expand(v, shape=broadcast_shapes(a.spec.shape, x.spec.shape))) for v in (a, x))
    return -_density(a, x) * standard_gamma_slope(a, x)


lgamma = op("lgamma", float_like_by(9), may_alias=("x",), x=lambda g, x: g * digamma(x), doc="log |Gamma(x)|.")
digamma = op("digamma", float_like_by(11), may_alias=("x",), x=lambda g, x: g * polygamma(x, n=1),
             doc="The derivative of log Gamma(x).")
polygamma = op("polygamma", _polygamma_spec, may_alias=("x",), x=lambda g, x, n: g * polygamma(x, n=n + 1),
               doc="The n-th derivative of digamma, for n from 1 on.")
erfinv = op("erfinv", float_like_by(9), may_alias=("x",), x=lambda g, out: g * (exp(out * out) * (math.sqrt(math.pi) / 2)),
            doc="The inverse of erf: infinite at -1 and 1, NaN outside of them.")
gammainc = op("gammainc", _incomplete_spec, may_alias=("a", "x"),
              a=lambda g, a, x, a_spec: sum_to(g * _by_shape(a, x), to=a_spec),
              x=lambda g, a, x, x_spec: sum_to(g * _density(a, x), to=x_spec),
              doc="The regularized lower incomplete gamma function: the distribution function of Gamma(a, 1) at x.")
gammaincc = op("gammaincc", _incomplete_spec, may_alias=("a", "x"),
               a=lambda g, a, x, a_spec: sum_to(-g * _by_shape(a, x), to=a_spec),
               x=lambda g, a, x, x_spec: sum_to(-g * _density(a, x), to=x_spec),
               doc="1 - gammainc(a, x), without cancellation.")
