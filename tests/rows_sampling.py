"""Sample calls of draws by rejection, and of the incomplete gamma functions, beside loops over elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.rows import Row, floats, ints

ROWS: list[Row] = []
_state = ints(4, given=(7, 0, 3, 0))


def _uniforms(state: Any, element: int, attempt: int) -> Any:
    return np.random.Generator(np.random.Philox(key=[int(state[0]), 0],
                                                counter=[int(state[2]) + element, attempt, 0, 0])).random(4)


def _gamma(concentrations: Any, state: Any) -> Any:
    """Marsaglia and Tsang's method."""
    found = []
    for i, alpha in enumerate(concentrations.astype(np.float64).reshape(-1).tolist()):
        attempt = 0
        d = max(alpha, alpha + 1 if alpha < 1 else 0) - 1 / 3
        while True:
            u = _uniforms(state, i, attempt)
            z = math.sqrt(-2 * math.log(1 - u[0])) * math.cos(2 * math.pi * u[1])
            v = (1 + z / math.sqrt(9 * d)) ** 3
            if v > 0 and math.log(1 - u[2]) < z * z / 2 + d * (1 - v + math.log(v)):
                break
            attempt += 1
        found.append(d * v * ((1 - u[3]) ** (1 / alpha) if alpha < 1 else 1))
    return np.array(found).reshape(concentrations.shape).astype(concentrations.dtype)


def _poisson(rates: Any, state: Any) -> Any:
    """Summed probabilities below a rate of 10, else Hoermann's PTRS."""
    found = []
    for i, rate in enumerate(rates.astype(np.float64).reshape(-1).tolist()):
        count, attempt = 0, 0
        if rate < 10:
            u, total = _uniforms(state, i, 0)[0], 0.0
            while (total := total + math.exp(-rate + count * math.log(rate) - math.lgamma(count + 1))) < u:
                count += 1
        else:
            b = 0.931 + 2.53 * math.sqrt(rate)
            a = 0.02483 * b - 0.059
            while True:
                u, v, *_ = _uniforms(state, i, attempt)
                u, v, attempt = u - 0.5, 1 - v, attempt + 1
                us = 0.5 - abs(u)
                count = math.floor((2 * a / us + b) * u + rate + 0.43)
                if us >= 0.07 and v <= 0.9277 - 3.6224 / (b - 2):
                    break
                if count < 0 or (us < 0.013 and v > us):
                    continue
                if math.log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / us ** 2 + b)) <= (
                        count * math.log(rate) - rate - math.lgamma(count + 1)):
                    break
        found.append(count)
    return np.array(found).reshape(rates.shape).astype(rates.dtype)


def _binomial(counts: Any, chances: Any, state: Any) -> Any:
    """Summed probabilities below a mean of 10, else Hoermann's BTRS."""
    found = []
    pairs = zip(*(x.astype(np.float64).reshape(-1).tolist() for x in (counts, chances)), strict=True)
    for i, (n, chance) in enumerate(pairs):
        n, p, count, attempt = math.floor(n), min(chance, 1 - chance), 0, 0

        def log_probability(k: int, n: int = n, p: float = p) -> float:
            ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
            return ways + (k * math.log(p) if k else 0) + (n - k) * math.log1p(-p)

        if n * p < 10:
            u, total = _uniforms(state, i, 0)[0], 0.0
            while (total := total + math.exp(log_probability(count))) < u:
                count += 1
        else:
            spread = math.sqrt(n * p * (1 - p))
            b = 1.15 + 2.53 * spread
            a = 0.0248 * b - 0.0873 + 0.01 * p
            while True:
                u, v, *_ = _uniforms(state, i, attempt)
                u, v, attempt = u - 0.5, 1 - v, attempt + 1
                us = 0.5 - abs(u)
                count = math.floor((2 * a / us + b) * u + n * p + 0.5)
                if us >= 0.07 and v <= 0.92 - 4.2 / b:
                    break
                if not 0 <= count <= n or (us < 0.013 and v > us):
                    continue
                ratio = log_probability(count) - log_probability(math.floor((n + 1) * p))
                if math.log(v * (2.83 + 5.1 / b) * spread / (a / us ** 2 + b)) <= ratio:
                    break
        found.append(count if chance <= 0.5 else n - count)
    return np.array(found).reshape(counts.shape).astype(counts.dtype)


def _share(a: float, x: float) -> float:
    """The distribution function of Gamma(a, 1) at x, by its series."""
    term = total = 1.0
    n = 0
    while term > 1e-18 * total:
        n += 1
        term *= x / (a + n)
        total += term
    return total * math.exp(a * math.log(x) - x - math.lgamma(a + 1))


def _each(function: Any) -> Any:
    """A function of two numbers as one of two arrays."""
    return lambda a, x: np.vectorize(function, otypes=[np.float64])(a.astype(np.float64), x.astype(np.float64)).astype(a.dtype)


def _slope(a: float, x: float) -> float:
    """By a central difference of the distribution function, over its density."""
    h = 1e-4 * a
    return (_share(a - h, x) - _share(a + h, x)) / (2 * h) / math.exp((a - 1) * math.log(x) - x - math.lgamma(a))


_wide = floats(3, 50, low=0.05, high=40.0)
ROWS += [
    *[Row("standard_gamma", k, (x, _state), numpy=_gamma, tolerance=1e-4, smooth=False) for k, x in {
        "small": floats(40, low=0.05, high=1.0), "plain": floats(4, 5, low=0.5, high=5.0), "wide": _wide,
        "layouts": floats(4, 3, low=0.5, high=5.0, layout="transposed"), "large": floats(9, low=1e3, high=1e6),
        "empty": floats(0, 3), "many": floats(1500, low=0.5, high=3.0), "tiny": floats(900, low=1e-4, high=1e-3),
        "one": floats(3, given=(1, 1, 1))}.items()],
    *[Row("standard_gamma_slope", k, (a, x), numpy=_each(_slope), tolerance=1e-4, gradient=False) for k, (a, x) in {
        "small": (floats(30, low=0.05, high=1.0), floats(30, low=0.01, high=2.0)),
        "plain": (floats(5, 4, low=0.5, high=5.0), floats(5, 4, low=0.1, high=9.0)),
        "layouts": (floats(5, 4, low=0.5, high=5.0, layout="transposed"), floats(5, 4, low=0.1, high=9.0)),
        "middle": (floats(20, low=90.0, high=110.0), floats(20, low=70.0, high=130.0)),
        "empty": (floats(0), floats(0))}.items()],
    *[Row("poisson", k, (x, _state), numpy=_poisson) for k, x in {
        "few": floats(4, 30, low=0.01, high=9.9), "many": floats(4, 30, low=10.0, high=300.0), "both": _wide,
        "layouts": floats(4, 3, low=1.0, high=20.0, layout="transposed"), "empty": floats(0)}.items()],
    *[Row("binomial", k, (n, p, _state), numpy=_binomial) for k, (n, p) in {
        "few": (floats(4, 30, low=1.0, high=15.0), floats(4, 30, low=0.0, high=1.0)),
        "many": (floats(4, 30, low=60.0, high=900.0), floats(4, 30, low=0.2, high=0.8)),
        "layouts": (floats(4, 3, low=10.0, high=100.0, layout="transposed"), floats(4, 3, low=0.0, high=1.0)),
        "empty": (floats(0), floats(0))}.items()],
    *[Row(name, k, (a, x), torch=lambda t, a, x, n=name: getattr(t.special, n)(a, x), tolerance=1e-4, gradient=False)
      for name in ("gammainc", "gammaincc") for k, (a, x) in {
          "plain": (floats(4, 5, low=0.3, high=5.0), floats(4, 5, low=0.1, high=9.0)),
          "small": (floats(4, 5, low=1e-5, high=0.5), floats(4, 5, low=0.01, high=1.0)),
          "large": (floats(20, low=80.0, high=300.0), floats(20, low=80.0, high=300.0)),
          # Where torch has an expansion, too, and where all is 0 or 1.
          "vast": (floats(7, given=(20000, 3e5, 1e7, 1e8, 1e8, 1e12, 4e6)),
                   floats(7, given=(20300, 3e5, 10003000, 99990000, 1e8, 2e12, 2e6))),
          "broadcast": (floats(4, 1, low=0.3, high=5.0), floats(3, low=0.1, high=9.0)),
          "ends": (floats(9, given=(0, 1, 0, 2, math.inf, math.inf, -1, 3, 0)),
                   floats(9, given=(1, 0, 0, math.inf, 2, math.inf, 1, -1, 0.5))),
          "empty": (floats(0), floats(0))}.items()],
    *[Row(name, "by both", (floats(4, 5, low=0.3, high=5.0), floats(4, 5, low=0.1, high=9.0)), numpy=_each(share),
          tolerance=1e-4, smooth=False)
      for name, share in (("gammainc", _share), ("gammaincc", lambda a, x: 1 - _share(a, x)))],
]
