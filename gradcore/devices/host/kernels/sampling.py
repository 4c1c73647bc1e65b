"""Draws of gamma, Poisson and binomial distributions on the CPU, in double precision; see ``ops.random``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array, kernel, pieces
from gradcore.devices.host.kernels.gamma import lgamma
from gradcore.devices.host.kernels.random import generator
from gradcore.dtypes import limits
from gradcore.tiling import INTRICATE


def _by_rejection(given: tuple[Array, ...], state: Array, out: Array, begin: Callable[..., Array],
                  attempt: Callable[..., Any]) -> None:
    """Fill ``out``: ``begin`` gives the values that need no attempt, and NaN where one is made for parameters that are numbers;
    ``attempt``, of uniforms and parameters, says which it accepts, and their values."""
    start = 0
    for *some, part in pieces(*given, out, length=INTRICATE):
        values = [x.astype(np.float64) for x in some]
        with np.errstate(all="ignore"):
            found = begin(*values)
            left = np.flatnonzero((found != found) & np.logical_and.reduce([x >= 0 for x in values]))
            k = 0
            while left.size:
                # An element's block is four doubles.
                accepted, made = attempt(generator(state, start, k).random((part.size, 4))[left].T, *[x[left] for x in values])
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


def _transformed(u: Array, center: Array, b: Array, a: Array, quick: Array) -> tuple[Array, ...]:
    """Of transformed rejection: the count, whether it is accepted at once and whether it may be, and what v is compared by."""
    away, v = u[0] - 0.5, 1 - u[1]
    inside = 0.5 - np.abs(away)
    count = np.floor((2 * a / inside + b) * away + center)
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
