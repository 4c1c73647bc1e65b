"""Incomplete gamma functions on the CPU, and the derivative of a gamma distribution's quantile; see ``ops.random``.

All are computed in double precision, over parts of pieces, and rounded once. The functions are sums and continued fractions of
as many terms as the slowest element needs: Press et al., Numerical Recipes, section 6.2. For large a these would be too many,
and the expansion is Temme's: The Asymptotic Expansion of the Incomplete Gamma Functions, 1979.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.polynomial.polynomial import polyval

from gradcore.devices.host.kernel import Array, kernel, pieces
from gradcore.devices.host.kernels.erf import erfc
from gradcore.devices.host.kernels.gamma import digamma, lgamma
from gradcore.devices.host.pointwise import walk
from gradcore.tiling import INTRICATE

#: Concentrations from which the expansion of the quantile for large ones is exact to a float's last bits, and the functions
#: are expanded where x is near, or the values elsewhere are 0 and 1.
_LARGE, _NEAR, _VAST = 1e4, 0.3, 1e6
#: The coefficients of powers of eta, for each power of 1 / a.
_TEMME = ((-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -1.7875514403292181e-4, 3.9192631785224378e-5, -2.1854485106799922e-6,
           -1.85406221071516e-6, 8.296711340953086e-7, -1.7665952736826079e-7, 6.7078535434014986e-9, 1.0261809784240308e-8,
           -4.3820360184533532e-9, 9.1476995822367902e-10),
          (-1 / 540, -1 / 288, 2.6455026455026455e-3, -9.9022633744855967e-4, 2.0576131687242798e-4, -4.0187757201646091e-7,
           -1.8098550334489978e-5, 7.6491609160811101e-6, -1.6120900894563446e-6, 4.6471278028074343e-9),
          (4.1335978835978836e-3, -2.6813271604938272e-3, 7.7160493827160494e-4, 2.0093878600823045e-6,
           -1.0736653226365161e-4, 5.2923448829120125e-5))
_MOST_TERMS = 20000


def _series(a: Array, x: Array) -> tuple[Array, Array]:
    """S of gammainc(a, x) = x^a e^-x / Gamma(a + 1) S, and minus its derivative by a; all terms are positive."""
    term, total, slope, sums = np.ones_like(x), np.ones_like(x), np.zeros_like(x), np.zeros_like(x)
    for n in range(1, _MOST_TERMS):
        below = 1 / (a + n)
        term *= x * below
        sums += below
        total += term
        slope += term * sums
        if not (term * (1 + sums) > 1e-17 * total).any():
            break
    return total, slope


def _fraction(a: Array, x: Array) -> Array:
    """C of gammaincc(a, x) = x^a e^-x / Gamma(a) C, by Lentz's method; for x > a."""
    b = x + 1 - a
    c, d = np.full_like(x, 1e300), 1 / b
    total = d.copy()
    for n in range(1, _MOST_TERMS):
        step = n * (a - n)
        b += 2
        d = 1 / _nonzero(step * d + b)
        c = _nonzero(step / c + b)
        total *= c * d
        if not (np.abs(c * d - 1) > 1e-15).any():
            break
    return total


def _nonzero(x: Array) -> Array:
    return np.where(np.abs(x) < 1e-300, 1e-300, x)


def _expansion(a: Array, x: Array, upper: bool) -> Array:
    """The value for a large a. Far from a it is 0 or 1."""
    mu = np.clip((x - a) / a, -_NEAR, _NEAR)
    t = mu / (2 + mu)
    # mu - log(1 + mu), without cancellation
    half = mu * t - 2 * t ** 3 * polyval(t * t, [1 / n for n in range(3, 25, 2)])
    eta = np.copysign(np.sqrt(2 * half), mu)
    rest = sum(polyval(eta, c) / a ** k for k, c in enumerate(_TEMME)) * np.exp(-a * half) / np.sqrt(2 * np.pi * a)
    tail = eta * np.sqrt(a / 2)
    found: Array = 0.5 * erfc(tail) + rest if upper else 0.5 * erfc(-tail) - rest
    return found


def _small(a: Array, x: Array) -> Array:
    """gammaincc for small a and x, where 1 - gammainc would cancel."""
    term, total = np.ones_like(x), np.zeros_like(x)
    for n in range(1, 30):
        term *= -x / n
        total += term / (a + n)
    # log Gamma(1 + a), of which 1 + a has too few digits
    log_next = np.where(a < 1e-4, a * (-np.euler_gamma + a * (np.pi ** 2 / 12 - a * 0.40068563438653143)), lgamma(1 + a))
    power = a * np.log(x) - log_next
    found: Array = -np.expm1(power) - a * np.exp(power) * total
    return found


def _incomplete(a: Array, x: Array, upper: bool) -> Array:
    a, x = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (a, x)))
    with np.errstate(all="ignore"):
        # NaN for what is neither, and for 0 and 0, infinity and infinity.
        found = np.where((a >= 0) & (x >= 0) & ~((a == x) & ((a == 0) | (a == np.inf))), 0.0, np.nan)
        found[((x == np.inf) | (a == 0) if not upper else (a == np.inf) | (x == 0)) & (found == 0)] = 1
        inner = (a > 0) & (a < np.inf) & (x > 0) & (x < np.inf)
        large = inner & (a > _LARGE) & ((np.abs(x - a) < _NEAR * a) | (a > _VAST))
        small = inner & upper & (np.where(x < 0.5, -0.4 / np.log(x), 1.1 * x) >= a) & (x < 1.1)
        for chosen, part_of in ((large, lambda u, v: _expansion(u, v, upper)), (small, _small)):
            at = np.flatnonzero(chosen)
            if at.size:
                found[at] = part_of(a[at], x[at])
        for low in (True, False):
            at = np.flatnonzero(inner & ~large & ~small & ((x < a + 1) == low))
            if at.size:
                ak, xk = a[at], x[at]
                scale = np.exp(ak * np.log(xk) - xk - lgamma(ak))
                part = scale / ak * _series(ak, xk)[0] if low else scale * _fraction(ak, xk)
                found[at] = part if low != upper else 1 - part
    return found


@kernel
def gammainc(a: Any, x: Any, out: Array) -> None:
    walk(_incomplete, (a, x), out, INTRICATE * out.itemsize, upper=False)


@kernel
def gammaincc(a: Any, x: Any, out: Array) -> None:
    walk(_incomplete, (a, x), out, INTRICATE * out.itemsize, upper=True)


@kernel
def standard_gamma_slope(concentration: Array, drawn: Array, out: Array) -> None:
    for ak, xk, part in pieces(concentration, drawn, out, length=INTRICATE):
        with np.errstate(all="ignore"):
            part[...] = _slope(ak.astype(np.float64), xk.astype(np.float64))


def _slope(a: Array, x: Array) -> Array:
    """The density divides minus the derivative of the distribution function; for large a, Cornish and Fisher's expansion."""
    found = np.where((a > 0) & (x >= 0), 0.0, np.nan)
    at = np.flatnonzero((a > 0) & (a <= _LARGE) & (x > 0) & (x < np.inf))
    if at.size:
        ak, xk = a[at], x[at]
        total, slope = _series(ak, xk)
        found[at] = xk / ak * ((digamma(ak + 1) - np.log(xk)) * total + slope)
    at = np.flatnonzero((a > _LARGE) & (x > 0))
    if at.size:
        root = np.sqrt(a[at])
        w = (x[at] - a[at]) / root
        z = w - (w * w - 1) / (3 * root) + (7 * w ** 3 - w) / (36 * root * root)
        found[at] = 1 + z / (2 * root) - (z ** 3 - 7 * z) / (72 * root ** 3)
    return found
