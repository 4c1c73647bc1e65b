"""Draws of gamma, Poisson and binomial distributions: streams, ends, replays; and the incomplete gamma functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import distributions
from gradcore.errors import NoSecondDerivative
from tests.conftest import raises


def _gamma(x: Any) -> Any:
    return distributions.Gamma(x, 1.0).rsample()


DRAWS = {"gamma": _gamma, "poisson": gradcore.poisson,
         "binomial": lambda x: gradcore.binomial(x * 10, gradcore.full_like(x, 0.1))}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_each_draw_takes_other_numbers(draw: Any) -> None:
    gradcore.manual_seed(0)
    x = gradcore.full((50,), 30.0)
    first, second = draw(x), draw(x)
    between = gradcore.rand(50)
    gradcore.manual_seed(0)
    assert (draw(x) == first).all() and (draw(x) == second).all() and not (first == second).all()
    assert (gradcore.rand(50) == between).all()
    # Neighbors draw different numbers.
    assert len(set(first.tolist())) > 10


def test_ends_of_concentrations_and_rates() -> None:
    x = gradcore.tensor([0.0, math.inf, math.nan, -1.0, 1e-4])
    tiny = float(np.finfo(np.float32).tiny)
    found = _gamma(x).tolist()
    assert found[0] == np.float32(tiny) and found[1] == math.inf and math.isnan(found[2]) and math.isnan(found[3])
    assert found[4] >= np.float32(tiny)
    assert gradcore.poisson(gradcore.tensor([0.0, math.inf])).tolist() == [0.0, math.inf]
    for bad in (-1.0, math.nan):
        live = gradcore.memory_allocated("cpu")
        with raises(RuntimeError, "invalid Poisson rate, expected rate to be non-negative, but there is", str(bad)):
            gradcore.poisson(gradcore.tensor([2.0, bad]))
        assert gradcore.memory_allocated("cpu") == live


@pytest.mark.parametrize("dtype", [gradcore.float16, gradcore.bfloat16, gradcore.float64])
def test_draws_have_the_dtype_of_what_is_given(dtype: Any) -> None:
    x = gradcore.full((200,), 9.0).to(dtype)
    for draw in DRAWS.values():
        found = draw(x)
        assert found.dtype == dtype and 7 < found.double().mean().item() < 11


@pytest.mark.parametrize("rate", [0.3, 4.0, 9.9, 10.1, 60.0, 5000.0])
def test_poisson_counts_have_their_probabilities(rate: float) -> None:
    """Of the counts within two deviations."""
    gradcore.manual_seed(1)
    found = gradcore.poisson(gradcore.full((40000,), rate, dtype=gradcore.float64)).numpy()
    assert abs(found.mean() - rate) < 0.03 * math.sqrt(rate) and abs(found.var() - rate) < 0.04 * rate
    counts = np.arange(max(0, int(rate - 2 * math.sqrt(rate))), int(rate + 2 * math.sqrt(rate)) + 1)
    expected = np.exp([k * math.log(rate) - rate - math.lgamma(k + 1) for k in counts])
    seen = np.array([(found == k).mean() for k in counts])
    assert np.abs(seen - expected).max() < 0.01


@pytest.mark.parametrize(("count", "chance"), [(1, 0.3), (12, 0.9), (40, 0.24), (41, 0.26), (100, 0.5), (100, 0.97),
                                                (5000, 0.7)])
def test_binomial_counts_have_their_probabilities(count: int, chance: float) -> None:
    gradcore.manual_seed(1)
    found = distributions.Binomial(count, gradcore.full((40000,), chance, dtype=gradcore.float64)).sample().numpy()
    ways = [math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(count + 1)]
    expected = np.exp(ways + np.arange(count + 1) * math.log(chance) + np.arange(count, -1, -1) * math.log1p(-chance))
    seen = np.bincount(found.astype(np.int64), minlength=count + 1) / 40000
    assert len(seen) == count + 1 and np.abs(seen - expected).max() < 0.01
    assert abs(found.mean() - count * chance) < 0.03 * math.sqrt(count * chance * (1 - chance))


def test_replays_draw_on() -> None:
    def step(x: Any) -> Any:
        return sum(draw(x).sum() for draw in DRAWS.values())

    x = gradcore.full((20,), 5.0)
    gradcore.manual_seed(3)
    eager = [step(x).item() for _ in range(4)]
    gradcore.manual_seed(3)
    compiled = gradcore.compile(step)
    assert [compiled(x).item() for _ in range(4)] == eager and len(set(eager)) == 4


def test_incomplete_gamma_functions_are_known_ones() -> None:
    x = gradcore.tensor([1e-3, 0.5, 2.0, 7.0, 30.0], dtype=gradcore.float64)
    half = gradcore.special.gammainc(gradcore.full_like(x, 0.5), x)
    np.testing.assert_allclose(half.numpy(), [math.erf(math.sqrt(v)) for v in x.tolist()], rtol=1e-13)
    rest = gradcore.igammac(gradcore.full_like(x, 0.5), x)
    np.testing.assert_allclose(rest.numpy(), [math.erfc(math.sqrt(v)) for v in x.tolist()], rtol=1e-12)
    for n in (1, 4, 150):
        sums = [math.fsum(math.exp(k * math.log(v) - v - math.lgamma(k + 1)) for k in range(n)) for v in x.tolist()]
        np.testing.assert_allclose(x.new_full((5,), float(n)).igammac(x).numpy(), sums, rtol=1e-12)


def test_incomplete_gamma_functions_of_large_and_of_small_parameters() -> None:
    a = gradcore.tensor([2e4, 1e6, 3e7, 1e8, 1e12, 1e300], dtype=gradcore.float64)
    half = 0.5 + 1 / (3 * np.sqrt(2 * np.pi * a.numpy()))
    np.testing.assert_allclose(gradcore.igamma(a, a).numpy(), half, rtol=1e-8)
    np.testing.assert_allclose(gradcore.igammac(a, a).numpy(), 1 - half, rtol=1e-8)
    for least, far in ((0.0, 0.5), (1.0, 2.0)):
        assert gradcore.igamma(a, far * a).tolist() == [least] * 6
        assert gradcore.igammac(a, far * a).tolist() == [1 - least] * 6
    # The sums and the expansion meet.
    near = gradcore.tensor([9999.999, 10000.001], dtype=gradcore.float64)
    for x in (9500.0, 9990.0, 10300.0):
        for function in (gradcore.igamma, gradcore.igammac):
            low, high = function(near, gradcore.full_like(near, x)).tolist()
            assert high == pytest.approx(low, rel=3e-4)
    # gammaincc(a, x) is a times the exponential integral of x, less what is quadratic in a.
    tiny = gradcore.full((3,), 1e-12, dtype=gradcore.float64)
    x = gradcore.tensor([0.01, 0.5, 1.0], dtype=gradcore.float64)
    integrals = [4.037929576538114, 0.5597735947761608, 0.21938393439552028]
    np.testing.assert_allclose(gradcore.igammac(tiny, x).numpy() / 1e-12, integrals, rtol=1e-10)


def test_incomplete_gamma_functions_take_numbers() -> None:
    x = gradcore.tensor([1.0, 2.5], dtype=gradcore.float64, requires_grad=True)
    two = gradcore.full((2,), 2.0, dtype=gradcore.float64)
    for function in (gradcore.igamma, gradcore.igammac):
        for given, same in (((x, 2.0), (x, two)), ((2, x), (two, x))):
            found, expected = function(*given), function(*same)
            assert found.tolist() == expected.tolist()
            for ours, theirs in zip(gradcore.autograd.grad(found.sum(), [x]), gradcore.autograd.grad(expected.sum(), [x]),
                                    strict=True):
                np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-14)


def test_incomplete_gamma_functions_have_both_derivatives() -> None:
    rng = np.random.default_rng(2)
    a, x = (gradcore.tensor(rng.uniform(0.3, 30, (3, 4)), requires_grad=True) for _ in range(2))
    assert gradcore.autograd.gradcheck(gradcore.special.gammainc, (a, x))
    assert gradcore.autograd.gradcheck(gradcore.special.gammaincc, (a, x))
    slope, = gradcore.autograd.grad(gradcore.igamma(a, x).sum(), a, create_graph=True)
    with raises(NoSecondDerivative, "by its concentration cannot be differentiated"):
        slope.sum().backward()
    fixed = a.detach()
    assert gradcore.autograd.gradgradcheck(lambda x: gradcore.igamma(fixed, x), (x,))
