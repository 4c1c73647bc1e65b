"""``gradcore.special``: special functions, with the signatures of ``torch.special``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from gradcore.functional import mathematics as m
from gradcore.functional.composed import logit, xlog1py, xlogy
from gradcore.functional.mathematics import erf, expm1, log1p, round
from gradcore.functional.pointwise import digamma, erfc, erfinv, exp2, polygamma, sinc
from gradcore.functional.pointwise import igamma as gammainc
from gradcore.functional.pointwise import igammac as gammaincc
from gradcore.functional.pointwise import lgamma as gammaln
from gradcore.ops import elementwise, movement
from gradcore.ops import special as _special
from gradcore.ops.pointwise import erfc as _erfc

Tensor = Any

__all__ = ["digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammainc", "gammaincc", "gammaln",
           "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "multigammaln", "ndtr", "ndtri", "polygamma", "psi",
           "round", "sinc", "softmax", "xlog1py", "xlogy"]

psi, expit, logsumexp = digamma, m.sigmoid, m.logsumexp

_ROOT_HALF, _ROOT_TWO = math.sqrt(0.5), math.sqrt(2)
#: From here on erfc is taken by its continued fraction, of which so many terms are enough for float64.
_FAR, _TERMS = 6.0, 12

# Cephes' rational functions of 1 / z for the normal quantile at p, z = sqrt(-2 log p), from the lowest power on: for
# 2 <= z < 8, and above.
_NEAR_TAIL = (
    (-8.57456785154685413611e-4, -3.50424626827848203418e-2, -1.40256079171354495875e-1, 2.18663306850790267539,
     14.6849561928858024014, 44.080507389320083470, 57.1628192246421288162, 31.5251094599893866154, 4.05544892305962419923),
    (-9.33259480895457427372e-4, -3.80806407691578277194e-2, -1.42182922854787788574e-1, 2.50464946208309415979,
     15.0425385692907503408, 41.3172038254672030440, 45.3907635128879210584, 15.7799883256466749731, 1.0))
_FAR_TAIL = (
    (6.23974539184983293730e-9, 2.65806974686737550832e-6, 3.01581553508235416007e-4, 1.23716634817820021358e-2,
     2.01485389549179081538e-1, 1.33303460815807542389, 3.93881025292474443415, 6.91522889068984211695, 3.23774891776946035970),
    (6.79019408009981274425e-9, 2.89247864745380683936e-6, 3.28014464682127739104e-4, 1.34204006088543189037e-2,
     2.16236993594496635890e-1, 1.37702099489081330271, 3.67983563856160859403, 6.02427039364742014255, 1.0))


def softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """exp(input) / sum(exp(input)) along ``dim``."""
    return m.softmax(input, dim, dtype)


def log_softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """log(softmax(input)) along ``dim``."""
    return m.log_softmax(input, dim, dtype)


def entr(input: Tensor) -> Tensor:
    """-x log(x); 0 at 0, and -inf below."""
    x = movement.as_float(input)
    zero = elementwise.eq(x, 0)
    inside = -x * elementwise.log(elementwise.where(zero, 1.0, x))
    # A square root has the value and the slope that this has at 0; a sum with 0 makes one of -0.
    found = elementwise.where(zero, elementwise.sqrt(elementwise.where(zero, x, 1.0) + 0.0), inside)
    return elementwise.where(elementwise.lt(x, 0), -math.inf, found)


def multigammaln(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension ``p``. Raises RuntimeError for p < 1."""
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    x = movement.as_float(input)
    total = _special.lgamma(x) + p * (p - 1) / 4 * math.log(math.pi)
    for k in range(1, p):
        total = total + _special.lgamma(x - k / 2)
    return total


# -- the normal distribution -----------------------------------------------------------------------------------------------


def _in_float32(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The function, of integers as floats, and computed in float32 for floats of 16 bits."""
    @wraps(function)
    def computed(input: Tensor) -> Tensor:
        given = movement.as_float(input)
        found: Tensor = movement.cast_to(function(movement.cast_to(given, given.spec.widened())), given.spec)
        return found

    return computed


def _scaled_tail(z: Tensor) -> Tensor:
    """exp(z^2) erfc(z) for z >= 6."""
    below = z
    for k in range(_TERMS, 0, -1):
        below = z + k / 2 / below
    return 1 / math.sqrt(math.pi) / below


@_in_float32
def erfcx(input: Tensor) -> Tensor:
    """exp(x^2) erfc(x), which does not underflow."""
    beyond = elementwise.gt(input, _FAR)
    near = elementwise.where(beyond, _FAR, input)
    # Rounded, a square of 36 would cost the exponential two digits; that of a sixteenth is exact.
    whole = elementwise.clamp(elementwise.round(near.detach() * 16) / 16, -32.0, None)
    square = elementwise.exp(whole * whole) * elementwise.exp((near - whole) * (near + whole))
    return elementwise.where(beyond, _scaled_tail(elementwise.clamp(input, _FAR, None)), square * _erfc(near))


@_in_float32
def ndtr(input: Tensor) -> Tensor:
    """The normal distribution function; for negative x relatively exact to x^2 roundings, down to the smallest numbers."""
    return _erfc(input * -_ROOT_HALF) * 0.5


@_in_float32
def log_ndtr(input: Tensor) -> Tensor:
    """The logarithm of the normal distribution function, which is about -x^2 / 2 far below 0."""
    z = input * -_ROOT_HALF
    above = elementwise.log1p(_erfc(elementwise.clamp(-z, 0.0, None)) * -0.5)
    below = elementwise.log(_erfc(elementwise.clamp(z, 0.0, _FAR)) * 0.5)
    # Not clamped, so that a NaN stays one, with its gradient.
    far = elementwise.where(elementwise.le(z, _FAR), _FAR, z)
    beyond = elementwise.log(_scaled_tail(far) * 0.5) - far * far
    return elementwise.where(elementwise.lt(z, 0), above, elementwise.where(elementwise.le(z, _FAR), below, beyond))


@_in_float32
def ndtri(input: Tensor) -> Tensor:
    """The normal quantile function, the inverse of :func:`ndtr`; NaN outside [0, 1]."""
    upper, edge = elementwise.gt(input, 0.5), math.exp(-2)
    share = elementwise.where(upper, 1 - input, input)
    tail = elementwise.logical_and(elementwise.gt(share, 0), elementwise.lt(share, edge))
    # 2p - 1 would have lost small p, also those below 0, which are moved away from it: erfinv and its slope are NaN there.
    inside = elementwise.where(elementwise.lt(share, 0), share - 1, elementwise.where(tail, 0.5, input))
    middle = _special.erfinv(2 * inside - 1) * _ROOT_TWO
    z = elementwise.sqrt(-2 * elementwise.log(elementwise.where(tail, share, edge)))
    w = 1 / z
    near, beyond = (_polynomial(over, w) / _polynomial(under, w) for over, under in (_NEAR_TAIL, _FAR_TAIL))
    x = z - (elementwise.log(z) + elementwise.where(elementwise.lt(z, 8), near, beyond)) * w
    return elementwise.where(tail, elementwise.where(upper, x, -x), middle)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    total = x * coefficients[-1] + coefficients[-2]
    for c in coefficients[-3::-1]:
        total = total * x + c
    return total
