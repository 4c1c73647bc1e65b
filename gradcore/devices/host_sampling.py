"""Incomplete gamma functions, and draws of gamma, Poisson and binomial distributions on the CPU; see ``ops.sampling``.

All are computed in double precision, over parts of pieces, and rounded once. The functions are sums and continued fractions of
as many terms as the slowest element needs: Press et al., Numerical Recipes, section 6.2. For large a these would be too many,
and the expansion is Temme's: The Asymptotic Expansion of the Incomplete Gamma Functions, 1979.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial.polynomial import polyval

from gradcore.devices.host_gamma import digamma, lgamma
from gradcore.devices.host_kernels import HOST_KERNELS, Array, kernel, pieces
from gradcore.devices.host_pointwise import erfc, walk
from gradcore.spec import limits

#: Elements of a piece: of more than ten temporaries of doubles.
_LENGTH = 192
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


def _registered(name: str, upper: bool) -> None:
    def function(a: Any, x: Any, out: Array) -> None:
        # walk() takes numbers as the last operands.
        if isinstance(a, np.ndarray):
            walk(lambda u, v: _incomplete(u, v, upper), (a, x), out, _LENGTH * out.itemsize)
        else:
            walk(lambda v: _incomplete(a, v, upper), (x,), out, _LENGTH * out.itemsize)

    HOST_KERNELS[name] = function


_registered("gammainc", False)
_registered("gammaincc", True)


@kernel
def standard_gamma_slope(concentration: Array, drawn: Array, out: Array) -> None:
    for ak, xk, part in pieces(concentration, drawn, out, length=_LENGTH):
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


def _drawn(state: Array, start: int, count: int, attempt: int) -> Array:
    """The four doubles of each element's block: [count, 4]."""
    key, _, counter, _ = state.view(np.uint64).tolist()
    words = np.array([(counter + start) % 2**64, attempt, 0, 0], np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array([key, 0], np.uint64), counter=words)).random((count, 4))


def _by_rejection(given: tuple[Array, ...], state: Array, out: Array, begin: Callable[..., Array],
                  attempt: Callable[..., Any]) -> None:
    """Fill ``out``: ``begin`` gives the values that need no attempt, and NaN where one is made for parameters that are numbers;
    ``attempt``, of uniforms and parameters, says which it accepts, and their values."""
    start = 0
    for *some, part in pieces(*given, out, length=_LENGTH):
        values = [x.astype(np.float64) for x in some]
        with np.errstate(all="ignore"):
            found = begin(*values)
            left = np.flatnonzero((found != found) & np.logical_and.reduce([x >= 0 for x in values]))
            k = 0
            while left.size:
                accepted, made = attempt(_drawn(state, start, part.size, k)[left].T, *[x[left] for x in values])
                found[left[accepted]] = made[accepted]
                left, k = left[~accepted], k + 1
            part[...] = found
        start += part.size


def _gamma_attempt(u: Array, a: Array, least: float) -> Any:
    small = a < 1
    d = a + small - 1 / 3
    normal = np.sqrt(-2 * np.log(1 - u[0])) * np.cos(u[1] * (2 * np.pi))
    v = (1 + normal / np.sqrt(9 * d)) ** 3
    accepted = (v > 0) & (np.log(1 - u[2]) < 0.5 * normal * normal + d - d * v + d * np.log(np.where(v > 0, v, 1)))
    # A small concentration's draw is that of the next one, times a power of a uniform number.
    return accepted, np.maximum(d * v * np.where(small, (1 - u[3]) ** (1 / a), 1), least)


@kernel
def standard_gamma(x: Array, state: Array, out: Array) -> None:
    least = float(limits(out.dtype).tiny)
    _by_rejection((x,), state, out, lambda a: np.where(a == np.inf, np.inf, np.where(a == 0, least, np.nan)),
                  lambda u, a: _gamma_attempt(u, a, least))


def _summed(u: Array, p: Array, next_to_last: Callable[[int], Array]) -> Array:
    """The count at which the sum of probabilities passes u: from that of 0 on, each of a ratio to the one before."""
    total, count = p.copy(), np.zeros_like(p)
    for n in range(1, 1000):
        beyond = u > total
        if not beyond.any() or not p.any():
            break
        p *= next_to_last(n)
        count += beyond
        total += p
    return count


def _transformed(u: Array, centre: Array, b: Array, a: Array, quick: Array) -> tuple[Array, ...]:
    """Of transformed rejection: the count, whether it is accepted at once and whether it may be, and what v is compared by."""
    away, v = u[0] - 0.5, 1 - u[1]
    inside = 0.5 - np.abs(away)
    count = np.floor((2 * a / inside + b) * away + centre)
    at_once = (inside >= 0.07) & (v <= quick)
    return count, at_once, (count >= 0) & ((inside >= 0.013) | (v <= inside)), v / (a / (inside * inside) + b)


def _poisson_attempt(u: Array, rate: Array) -> Any:
    few = rate < 10
    low, high = np.where(few, rate, 0), np.maximum(rate, 10)
    b = 0.931 + 2.53 * np.sqrt(high)
    count, at_once, possible, v = _transformed(u, high + 0.43, b, -0.059 + 0.02483 * b, 0.9277 - 3.6224 / (b - 2))
    count = np.where(possible | at_once, count, 0)
    likely = np.log(v * (1.1239 + 1.1328 / (b - 3.4))) <= count * np.log(high) - high - lgamma(count + 1)
    return few | at_once | (possible & likely), np.where(few, _summed(u[0], np.exp(-low), lambda n: low / n), count)


@kernel
def poisson(x: Array, state: Array, out: Array) -> None:
    if x.size and not float(np.min(x)) >= 0:
        raise RuntimeError(f"invalid Poisson rate, expected rate to be non-negative, but there is {np.min(x)}")
    _by_rejection((x,), state, out, lambda rate: np.where(rate == np.inf, np.inf, np.nan), _poisson_attempt)


def _binomial_attempt(u: Array, n: Array, chance: Array) -> Any:
    turned = chance > 0.5
    p = np.where(turned, 1 - chance, chance)
    few = n * p < 10
    ratio = p / (1 - p)
    spread = np.sqrt(np.maximum(n * p, 10) * (1 - p))
    b = 1.15 + 2.53 * spread
    count, at_once, possible, v = _transformed(u, n * p + 0.5, b, -0.0873 + 0.0248 * b + 0.01 * p, 0.92 - 4.2 / b)
    possible &= count <= n
    count = np.where(possible | at_once, count, 0)
    mode = np.floor((n + 1) * p)
    likely = np.log(v * (2.83 + 5.1 / b) * spread) <= (
        lgamma(mode + 1) + lgamma(n - mode + 1) - lgamma(count + 1) - lgamma(n - count + 1) + (count - mode) * np.log(ratio))
    low = np.where(few, n, 0)
    count = np.where(few, _summed(u[0], np.exp(low * np.log1p(-p)), lambda k: np.maximum(low - k + 1, 0) / k * ratio), count)
    return few | at_once | (possible & likely), np.where(turned, n - count, count)


@kernel
def binomial(count: Array, prob: Array, state: Array, out: Array) -> None:
    for name, x, most in (("count", count, np.finfo(np.float64).max), ("prob", prob, 1.0)):
        # Written so that NaN fails too.
        if out.size and not (float(np.min(x)) >= 0 and float(np.max(x)) <= most):
            raise RuntimeError(f"binomial expects finite counts from 0 on and probabilities in [0, 1], but {name} is from "
                               f"{np.min(x)} to {np.max(x)}")
    _by_rejection((count, prob), state, out, lambda n, p: np.full(n.shape, np.nan),
                  lambda u, n, p: _binomial_attempt(u, np.floor(n), p))
