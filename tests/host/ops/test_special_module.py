"""``gradcore.special`` where a formula written down would lose its digits, and as a module of PyTorch's name."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest

import gradcore
from gradcore import special
from gradcore.autograd import grad
from tests.conftest import raises


def log_tail(x: float) -> float:
    """log of the normal distribution function far below 0, by its continued fraction."""
    below = -x
    for k in range(60, 0, -1):
        below = -x + k / below
    return -x * x / 2 - math.log(math.sqrt(2 * math.pi) * below)


def test_a_tail_keeps_its_digits_in_float32() -> None:
    points = np.array([-13, -11.3, -9.7, -6.1, -5, -3.3, -1, 0, 2], np.float32)
    exact = np.array([0.5 * math.erfc(-float(x) / math.sqrt(2)) for x in points])
    np.testing.assert_allclose(special.ndtr(gradcore.tensor(points)).numpy(), exact, 2e-5)
    far = np.array([-4, -8, -8.6, -12, -100, -1e4, -1e15], np.float32)
    x = gradcore.tensor(far, requires_grad=True)
    made = special.log_ndtr(x)
    np.testing.assert_allclose(made.detach().numpy(), [log_tail(float(v)) for v in far], 5e-7)
    slope, = grad(made.sum(), x)
    # The ratio of density and distribution function.
    np.testing.assert_allclose(slope.numpy(), [math.exp(-v * v / 2 - log_tail(v)) / math.sqrt(2 * math.pi) if v > -50 else
                                               -v - 1 / v for v in far.astype(float)], 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_quantile_is_the_inverse_from_the_smallest_share_on(dtype: type) -> None:
    least = float(np.finfo(dtype).tiny)
    shares = np.array([least, least ** 0.5, 1e-14, 1e-8, 0.01, 0.135, 0.136, 0.5, 0.9, 1 - 1e-6], dtype)
    p = gradcore.tensor(shares, requires_grad=True)
    x = special.ndtri(p)
    logs = special.log_ndtr(x.detach().double()).numpy()
    np.testing.assert_allclose(logs, np.log(shares.astype(np.float64)), 30 * np.finfo(dtype).eps)
    slope, = grad(x.sum(), p)
    np.testing.assert_allclose(np.log(slope.double().numpy()), x.detach().double().numpy() ** 2 / 2 + math.log(2 * math.pi) / 2,
                               200 * np.finfo(dtype).eps)


def test_erfcx_neither_underflows_nor_loses_digits() -> None:
    points = np.array([0.5, 3, 5.97, 6.03, 9, 30, 1e6, 1e30], np.float32)
    found = special.erfcx(gradcore.tensor(points)).numpy()
    exact = [math.exp(v * v) * math.erfc(v) if v < 6 else math.exp(log_tail(-v * math.sqrt(2)) + v * v) * 2 if v < 29 else
             (1 - 0.5 / v**2 + 0.75 / v**4) / (v * math.sqrt(math.pi)) for v in points.astype(float)]
    np.testing.assert_allclose(found, exact, 5e-7)


def test_half_precision_is_rounded_once() -> None:
    x = np.array([-5, -2.5, -0.3, 0, 1.2], np.float16)
    for name, low in (("ndtr", x), ("log_ndtr", x), ("erfcx", x[1:]), ("ndtri", np.array([1e-4, 0.1, 0.7], np.float16))):
        function = getattr(special, name)
        wide = function(gradcore.tensor(low.astype(np.float32))).numpy()
        np.testing.assert_array_equal(function(gradcore.tensor(low)).numpy(), wide.astype(np.float16), name)


def test_entropy_of_certainty_has_pytorchs_slope() -> None:
    x = gradcore.tensor([0.0, -0.0, 1.0, -1.0], requires_grad=True)
    slope, = grad(special.entr(x).sum(), x)
    np.testing.assert_array_equal(slope.numpy(), [math.inf, math.inf, -1, math.nan])


@pytest.mark.parametrize("name", ["entr", "erfcx", "log_ndtr", "ndtr", "ndtri"])
def test_nan_has_a_gradient_of_nan(name: str) -> None:
    x = gradcore.tensor([math.nan, 0.5], requires_grad=True)
    slope, = grad(getattr(special, name)(x).sum(), x)
    assert np.isnan(slope.numpy()).tolist() == [True, False]


def test_it_is_a_module() -> None:
    assert importlib.import_module("gradcore.special") is special
    with raises(RuntimeError, "p has to be greater than or equal to 1"):
        special.multigammaln(gradcore.ones(2), 0)
    with raises(NotImplementedError, "torch.special.i1e is not implemented by gradcore. Nearest: scipy.special"):
        _ = special.i1e
    out = gradcore.ones(2)
    assert special.ndtr(gradcore.zeros(2), out=out) is out and out.tolist() == [0.5, 0.5]
