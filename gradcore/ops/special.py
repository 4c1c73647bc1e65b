"""The logarithm of the gamma function with its derivatives, and the inverse of the error function."""

from __future__ import annotations

import math

from gradcore.ops.elementwise import exp
from gradcore.ops.op import op
from gradcore.ops.shapes import float_like
from gradcore.spec import TensorSpec


def _polygamma_spec(x: TensorSpec, *, n: int) -> TensorSpec:
    return float_like(x)


lgamma = op("lgamma", float_like, may_alias=("x",), x=lambda g, x: g * digamma(x), doc="log |Gamma(x)|.")
digamma = op("digamma", float_like, may_alias=("x",), x=lambda g, x: g * polygamma(x, n=1),
             doc="The derivative of log Gamma(x).")
polygamma = op("polygamma", _polygamma_spec, may_alias=("x",), x=lambda g, x, n: g * polygamma(x, n=n + 1),
               doc="The n-th derivative of digamma, for n from 1 on.")
erfinv = op("erfinv", float_like, may_alias=("x",), x=lambda g, out: g * (exp(out * out) * (math.sqrt(math.pi) / 2)),
            doc="The inverse of erf: infinite at -1 and 1, NaN outside of them.")

__all__ = ["digamma", "erfinv", "lgamma", "polygamma"]
