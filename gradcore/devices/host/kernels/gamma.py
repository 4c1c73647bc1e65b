"""The gamma function's logarithm and its derivatives, and the error function's complement and inverse, on the CPU.

All are computed in double precision, over parts of pieces, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import HOST_KERNELS, Array, horner, kernel
from gradcore.devices.host.kernels.erf import erfc_into
from gradcore.devices.host.pointwise import walk
from gradcore.devices.host.scratch import over, scratched
from gradcore.tiling import INTRICATE


def _numbers(*values: float) -> tuple[Array, ...]:
    """Coefficients, that of the highest power first, as arrays, since NumPy converts a Python number anew for each call."""
    return tuple(map(np.asarray, reversed(values)))


# lgamma(x) / ((x - 1) (x - 2)) for 1.5 <= x <= 3, by powers of (x - 2.25) / 0.75: interpolated at Chebyshev's points, to 1e-17.
_LGAMMA = _numbers(
    0.3995894876556691, -0.064410635663445746, 0.014213449664599836, -0.0035707605441645715, 0.0009622289503533653,
    -0.00027076146618303885, 7.8427431066879826e-5, -2.3187394880057882e-5, 6.9601296853606481e-6, -2.1135805815356252e-6,
    6.4771541441462975e-7, -1.9996411312369093e-7, 6.2118306062880247e-8, -1.9392781946177795e-8, 6.0639886372495659e-9,
    -1.9084124345482395e-9, 6.2253030499485721e-10, -1.9722406542054363e-10, 4.7776849466291912e-11, -1.5168501314867926e-11,
    1.1085958437633991e-11, -3.5490961579075878e-12)
# digamma(x) / (x - root) for 1 <= x <= 2, by powers of (x - 1.5) / 0.5; the root in two parts.
_DIGAMMA = _numbers(
    0.95105587603183288, -0.21181371064073025, 0.06013562106019684, -0.018550615381739702, 0.0059367952783018757,
    -0.0019350666647392833, 0.00063688803038479007, -0.00021074841284590126, 6.9950188265504409e-5, -2.3258232758953131e-5,
    7.7412344413683949e-6, -2.5781337016107129e-6, 8.589062683365892e-7, -2.8621216825577647e-7, 9.5432615707604287e-8,
    -3.1807298477301726e-8, 1.0528133851878113e-8, -3.5092354924107181e-9, 1.246669023186403e-9, -4.1555064115551964e-10,
    8.7484200374362866e-11, -2.9161179626023812e-11, 2.9160936010853641e-11, -9.7203004042022443e-12)
_ROOT, _ROOT_REST = 1.4616321449683622, 9.549995429965697e-17
# Bernoulli's numbers B_2k over 2k (2k - 1), over 2k and over (2k)!: Stirling's series, its derivative, Euler's and Maclaurin's.
_STIRLING = _numbers(1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400, 43867 / 244188)
_SLOPE = _numbers(1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160, 43867 / 14364)
_ZETA = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 2.0876756987868099e-8, -5.2841901386874932e-10, 1.3382536530684679e-11,
         -3.3896802963225829e-13, 8.5860620562778446e-15, -2.1748686985580619e-16, 5.5090028283602295e-18)
# Wichura, Algorithm AS 241, 1988: numerators and denominators near 0, in the tails and far out.
_CENTER = (
    _numbers(3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    _numbers(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4,
     3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3))
_TAIL = (
    _numbers(1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    _numbers(1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
     1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9))
_FAR = (
    _numbers(6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    _numbers(1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4,
     1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15))


def _in_doubles(function: Callable[..., Any]) -> Callable[..., None]:
    """The kernel of a function of doubles."""

    def piece(x: Array, **attrs: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(x.astype(np.float64), **attrs)

    def run(*arrays: Any, **attrs: Any) -> None:
        walk(piece, arrays[:-1], arrays[-1], INTRICATE * arrays[-1].itemsize, **attrs)

    return run


def _double(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register the kernel of a function of doubles, by its name."""
    HOST_KERNELS[function.__name__] = _in_doubles(function)
    return function


def _series(x: Array, coefficients: tuple[Array, ...]) -> Array:
    """The sum of coefficients[k] / x^(2k)."""
    return horner(1 / (x * x), coefficients)


def _from_whole(x: Array) -> Array:
    """pi (x - the nearest integer), whose sine and tangent are those of pi x but for the sign of the sine."""
    return math.pi * (x - np.rint(x))


def _on(mask: Array, function: Callable[[Array], Array], x: Array, out: Array) -> None:
    """Write the function of the elements of ``x`` that are set in the mask to those of ``out``: of these alone, since each
    branch takes tens of calls."""
    if mask.all():
        out[...] = function(x)
        return
    at = np.flatnonzero(mask)
    if at.size:
        out[at] = function(x[at])


@_double
def lgamma(x: Array) -> Array:
    # Reflected where that loses nothing; near 0 the recurrence has no difference of large terms.
    turned = x < -0.5
    a = np.where(turned, 1 - x, x) if turned.any() else x
    found = np.abs(a)  # for infinities and NaN
    _on(a < 3, _lgamma_low, a, found)
    _on((a >= 3) & (a < np.inf), _lgamma_high, a, found)
    turned &= x > -np.inf
    if turned.any():
        found = np.where(turned, math.log(math.pi) - np.log(np.abs(np.sin(_from_whole(x)))) - found, found)
    return found


def _lgamma_low(a: Array) -> Array:
    """For -0.5 <= a < 3."""
    least, low = a < 0.5, a < 1.5
    u = np.where(low, a + 1, a)
    np.copyto(u, a + 2, where=least)
    np.subtract(u, 2.25, u)
    np.divide(u, 0.75, u)
    u = horner(u, _LGAMMA)
    # The logarithm of a and a - 1 are accurate near the root at 1, and a - 2 is at 2.
    before = np.where(low, a, 1.0)
    np.copyto(before, a * (a + 1), where=least)
    factor = np.where(low, a, a - 2)
    factor *= a - 1
    np.copyto(factor, before, where=least)
    u *= factor
    np.abs(before, before)
    u -= np.log(before, before)
    return u


def _lgamma_high(a: Array) -> Array:
    """For a >= 3: by Stirling's series, before which the recurrence leads beyond 10."""
    low = a < 10
    s = np.where(low, a + 7, a)
    found = _series(s, _STIRLING)
    found /= s
    found += 0.5 * math.log(2 * math.pi) - 0.5
    logs = np.log(s)
    logs -= 1
    s -= 0.5
    logs *= s
    found += logs
    del logs
    product = np.where(low, a, 1.0)
    for k in range(1, 7):
        product *= np.add(a, k, s)
    np.copyto(product, 1, where=~low)
    found -= np.log(product, product)
    return found


@_double
def digamma(x: Array) -> Array:
    turned = x < 0
    a = np.where(turned, 1 - x, x) if turned.any() else x
    found = a.copy()
    _on(a < 2, _digamma_low, a, found)
    _on(a >= 2, _digamma_high, a, found)
    if turned.any():
        found = np.where(turned, np.where(x == np.rint(x), np.nan, found - math.pi / np.tan(_from_whole(x))), found)
    # A pole has both signs; that of 0 says from where it was reached.
    return np.where(x == 0, np.copysign(np.inf, -x), found)


def _digamma_low(a: Array) -> Array:
    """For 0 < a < 2."""
    low = a < 1
    found = horner((np.where(low, a + 1, a) - 1.5) / 0.5, _DIGAMMA)
    found *= np.where(low, a - (_ROOT - 1), a - _ROOT) - _ROOT_REST
    return found - np.where(low, 1 / a, 0)


def _digamma_high(a: Array) -> Array:
    """For a >= 2: by the series, before which the recurrence leads beyond 10."""
    low = a < 10
    before = 1 / a
    for k in range(1, 8):
        before += 1 / (a + k)
    np.copyto(before, 0, where=~low)
    s = np.where(low, a + 8, a)
    before += _series(s, _SLOPE) / (s * s)
    before += 0.5 / s
    return np.subtract(np.log(s, s), before, before)


def _inverse_power(x: Array, n: int) -> Array:
    """x^-n. A few products take a tenth of the time of a power."""
    if n > 6:
        return x ** -float(n)
    inverse = 1 / x
    power = inverse.copy()
    for _ in range(n - 1):
        power *= inverse
    return power


def _zeta(a: Array, n: int) -> Array:
    """The sum of (a + k)^-(n+1) over k from 0 on, for a > 0, by Euler's and Maclaurin's formula."""
    total = _inverse_power(a, n + 1)
    for k in range(1, 10):
        total += _inverse_power(a + k, n + 1)
    s = a + 10
    power = _inverse_power(s, n)
    total += power / n + power / s / 2
    term = power * (n + 1) / (s * s)
    for k, b in enumerate(_ZETA):
        total += b * term
        term = term * ((n + 2 * k + 2) * (n + 2 * k + 3)) / (s * s)
    return total


@_double
def polygamma(x: Array, *, n: int) -> Array:
    """(-1)^(n+1) n! times the sum of (x + k)^-(n+1), for n from 1 on."""
    sign, factorial = (1 if n % 2 else -1), math.gamma(n + 1) if n < 171 else math.inf
    low = np.floor(x)
    total = _zeta(np.where(x > 0, x, x - low), n)
    if (left := x <= 0).any():
        # The terms below 0: from the distance to the integer above on, less those from 0 on, with the sign of an odd power. In
        # this order, since the first may cancel what is there.
        above = np.ceil(x) - x
        both = left & (x != low)
        total += np.where(both, sign * _zeta(above, n), 0)
        total -= np.where(both, sign * _zeta(above - low, n), 0)
    return sign * factorial * total


@scratched("dddd?")
def erfc(x: Array, out: Array, found: Array, *room: Array) -> None:
    erfc_into(x, found, *room)
    np.copyto(out, found, casting="unsafe")


@_in_doubles
def _erfinv_double(x: Array) -> Array:
    out = _quotient(0.180625 - x * x / 4, _CENTER) * x / 2
    beyond = ~(np.abs(x) <= 0.85)
    _on(beyond, _erfinv_tail, x, out)
    return np.multiply(out, math.sqrt(0.5), out)


def _erfinv_tail(x: Array) -> Array:
    t = np.sqrt(-np.log((1 - np.abs(x)) / 2))
    out = _quotient(t - 1.6, _TAIL)
    _on(t > 5, lambda far: _quotient(far - 5, _FAR), t, out)
    return np.copysign(np.where(np.abs(x) == 1, np.inf, out), x)


def _quotient(y: Array, coefficients: tuple[tuple[Array, ...], tuple[Array, ...]]) -> Array:
    above = horner(y, coefficients[0])
    return np.divide(above, horner(y, coefficients[1]), above)


# erfinv(x) / x by powers of w = -log(1 - x^2), up to 16.7, which is that of the last float32 below 1: a least-squares fit
# within 3e-9, a twentieth of the distance of two such numbers.
_INVERSE = (
    _numbers(0.8862269232206857, 0.31368091465418324, 0.06298415419808741, 0.008536616212164502, 0.0007569430557970709,
             3.657043196341312e-05, 9.519287851964008e-08),
    _numbers(1.0, 0.09215154584866012, 0.03391311148932864, 0.002187420615214052, 0.0002273686871418972,
             3.0026271484248396e-06))


def _erfinv_single(x: Array, out: Array, z: Array, w: Array, above: Array, below: Array, mask: Array) -> None:
    """In doubles, without branches."""
    with np.errstate(all="ignore"):
        np.copyto(z, x)
        np.multiply(z, z, w)
        np.subtract(1, w, w)
        ends = bool(np.equal(w, 0, mask).any())
        np.log(w, w)
        np.negative(w, w)
        np.divide(horner(w, _INVERSE[0], above), horner(w, _INVERSE[1], below), above)
        if ends:
            np.copyto(above, np.inf, where=mask)
        np.multiply(z, above, z)
        np.copyto(out, z, casting="unsafe")


@kernel
def erfinv(x: Array, out: Array) -> None:
    if out.dtype == np.float32:
        over(_erfinv_single, (x,), out, "dddd?")
    else:
        _erfinv_double(x, out)
