"""The logarithm of the gamma function, its derivatives, the error function and its inverse: accuracy, poles, in place."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises

EULER = 0.57721566490153286


def double(values: Any) -> Any:
    return gradcore.tensor(values, dtype=gradcore.float64)


def test_lgamma_is_the_standard_librarys() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(0.001, 13, 3000), 10 ** rng.uniform(-300, 300, 300), 1 + np.array([1e-8, -1e-12, 1e-15]),
                        2 + np.array([1e-8, -1e-12]), -rng.uniform(0, 30, 500)])
    expected = np.array([math.lgamma(v) for v in x.tolist()])
    np.testing.assert_allclose(gradcore.lgamma(double(x)).numpy(), expected, rtol=3e-13, atol=1e-13)
    ours = gradcore.lgamma(double([1 + 2.0 ** -40, 1 - 2.0 ** -40, 2 + 2.0 ** -40])).tolist()
    assert ours == pytest.approx([-EULER * 2.0 ** -40, EULER * 2.0 ** -40, (1 - EULER) * 2.0 ** -40], rel=1e-11, abs=0)


def test_digamma_and_its_derivatives_have_their_known_values() -> None:
    log2, root = math.log(2), 1.4616321449683622
    found = gradcore.digamma(double([1, 0.5, 0.25, -0.5, 10, root])).tolist()
    assert found[:-1] == pytest.approx([-EULER, -EULER - 2 * log2, -EULER - math.pi / 2 - 3 * log2, 2 - EULER - 2 * log2,
                                        sum(1 / k for k in range(1, 10)) - EULER], rel=1e-14)
    # At the double nearest to the root, where only its distance from the root is left.
    assert found[-1] == pytest.approx(-9.549995429965697e-17 * 0.96767224544762, rel=1e-9)
    assert gradcore.polygamma(1, double([1, 0.5, -0.5])).tolist() == pytest.approx(
        [math.pi ** 2 / 6, math.pi ** 2 / 2, math.pi ** 2 / 2 + 4], rel=1e-14)
    assert gradcore.polygamma(3, double([1, 0.5])).tolist() == pytest.approx([math.pi ** 4 / 15, math.pi ** 4], rel=1e-14)
    assert double([0.3]).polygamma(0).item() == double([0.3]).digamma().item()


@pytest.mark.parametrize("n", [6, 11, 30])
def test_polygamma_left_of_zero_is_its_sum(n: int) -> None:
    """At -1.5 the largest terms of an even order cancel."""
    points = [-1e-3, -0.5, -1.5, -2.75]
    sums = [math.fsum((x + k) ** -(n + 1) for k in range(200)) for x in points]
    assert gradcore.polygamma(n, double(points)).tolist() == pytest.approx(
        [(-1) ** (n + 1) * math.factorial(n) * total for total in sums], rel=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_erf_is_precise_near_0_and_never_beyond_1(dtype: Any) -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), np.logspace(-30, 0, 301), [math.inf, -0.0]]).astype(dtype)
    y = gradcore.tensor(x).erf().numpy()
    np.testing.assert_allclose(y, [math.erf(v) for v in x.tolist()], rtol=8 * np.finfo(dtype).eps)
    assert np.abs(y).max() == 1 and np.signbit(y[-1])


def test_erfinv_is_the_normal_distributions_inverse() -> None:
    shares = [0.5 + k / 64 for k in range(1, 32)] + [1 - 2.0 ** -k for k in range(5, 50)]
    found = gradcore.erfinv(double([2 * p - 1 for p in shares])).tolist()
    assert found == pytest.approx([NormalDist().inv_cdf(p) / math.sqrt(2) for p in shares], rel=1e-14)
    y = double(np.linspace(-0.999, 0.999, 101))
    np.testing.assert_allclose(y.erfinv().erf().numpy(), y.numpy(), rtol=1e-13, atol=1e-16)


def test_erfinv_of_short_floats_is_that_of_doubles_rounded() -> None:
    """But for a twentieth of a unit in the last place."""
    draws = np.random.default_rng(0)
    shares = [draws.uniform(-1, 1, 20_000), 1 - 10 ** draws.uniform(-7, 0, 20_000), 10 ** draws.uniform(-44, 0, 20_000)]
    x = np.concatenate([*shares, [0, 1 - 2.0 ** -24]]).astype(np.float32)
    exact = gradcore.erfinv(gradcore.tensor(x.astype(np.float64))).numpy()
    for step in (1, 2):  # also of numbers that are not beside each other
        found = gradcore.erfinv(gradcore.tensor(x)[::step]).numpy()
        errors = np.abs(found - exact[::step]) / np.spacing(np.abs(exact[::step]).astype(np.float32))
        assert found.dtype == np.float32 and errors.max() <= 0.56
    assert gradcore.erfinv(gradcore.tensor([1.0, -1.0])).tolist() == [math.inf, -math.inf]


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
def test_the_ends_are_pytorchs(dtype: str, torch: Any) -> None:
    values = [0, -1, -2, 1, 2, 3] if dtype == "int32" else [0.0, -0.0, -1, -2, 1, 2, math.inf, -math.inf, math.nan, 0.75, -0.75]
    for call in (lambda t, x: t.lgamma(x), lambda t, x: t.digamma(x), lambda t, x: t.erfinv(x / 2)):
        ours, theirs = (call(t, t.tensor(values, dtype=getattr(t, dtype))) for t in (gradcore, torch))
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-3 if dtype == "float16" else 1e-6)


def test_in_place_they_are_the_same() -> None:
    x = double([0.2, 0.7]).requires_grad_()
    for name, n in (("lgamma", ()), ("digamma", ()), ("erfinv", ()), ("polygamma", (1,)), ("polygamma", (0,))):
        made, written = getattr(x, name)(*n), getattr(x.clone(), f"{name}_")(*n)
        a, b = (gradcore.autograd.grad(y.sum(), x)[0] for y in (made, written))
        assert made.tolist() == written.tolist() and a.tolist() == b.tolist()


def test_derivatives_of_all_orders() -> None:
    x = double([0.7, 2.5, -0.3]).requires_grad_()
    assert gradcore.autograd.gradgradcheck(gradcore.lgamma, (x,)) and gradcore.autograd.gradgradcheck(gradcore.digamma, (x,))
    y, found = gradcore.lgamma(x), []
    for _ in range(4):
        y, = gradcore.autograd.grad(y.sum(), x, create_graph=True)
        found.append(y.tolist())
    assert found[3] == x.polygamma(3).tolist()
    with raises(RuntimeError, "polygamma(n, x) does not support negative n."):
        x.polygamma(-1)
