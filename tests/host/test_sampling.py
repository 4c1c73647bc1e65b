"""Draws of gamma and Poisson distributions: their streams, their ends, replays, and the incomplete gamma functions."""

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


DRAWS = {"gamma": _gamma, "poisson": gradcore.poisson}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_each_draw_takes_other_numbers(draw: Any) -> None:
    gradcore.manual_seed(0)
    x = gradcore.full((50,), 30.0)
    first, second = draw(x), draw(x)
    between = gradcore.rand(50)
    gradcore.manual_seed(0)
    assert (draw(x) == first).all() and (draw(x) == second).all() and not (first == second).all()
    assert (gradcore.rand(50) == between).all()
    # Neighbours draw different numbers.
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


def test_replays_draw_on() -> None:
    def step(x: Any) -> Any:
        return _gamma(x).sum() + gradcore.poisson(x).sum()

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
