"""Random integers, Bernoulli, categories and others: ranges, means, seeds, and errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import _distributions, nn
from tests.conftest import raises


def seeded(draw: Any) -> Any:
    """A sample, which the same seed must repeat, and another must not."""
    gradcore.manual_seed(3)
    first = draw()
    other = draw()
    gradcore.manual_seed(3)
    assert draw().tolist() == first.tolist() != other.tolist()
    return first.numpy()


@pytest.mark.parametrize(("args", "low", "high"), [((5, (3000,)), 0, 5), ((-3, 4, (50, 60)), -3, 4)])
def test_randint(args: Any, low: int, high: int) -> None:
    x = seeded(lambda: gradcore.randint(*args))
    assert x.dtype == np.int64 and x.shape == args[-1]
    counts = np.bincount((x - low).ravel(), minlength=high - low)
    assert len(counts) == high - low and (abs(counts / x.size - 1 / (high - low)) < 0.04).all()


def test_randint_as_keywords_with_a_type_and_at_the_edge() -> None:
    assert gradcore.randint(high=2, size=(4,), dtype=gradcore.float32).dtype == np.float32
    assert gradcore.randint(7, 8, (100,)).tolist() == [7] * 100
    wide = gradcore.randint(0, 2**53, (1000,))
    assert wide.min().item() >= 0 and wide.max().item() < 2**53
    for args, words in (((5, 5, (2,)), "from=5 >= to=5"), ((0, 2**60, (2,)), "2^53")):
        with raises(RuntimeError, words):
            gradcore.randint(*args)
    with raises(TypeError, "expected (low=0, high, size)"):
        gradcore.randint(3)


def test_random_fills_in_place() -> None:
    x = gradcore.zeros(2000, dtype=gradcore.uint8)
    assert x.random_() is x and x.max().item() > 240 and x.random_(10, 12).unique().tolist() == [10, 11]
    assert set(gradcore.zeros(100).random_(3).tolist()) == {0.0, 1.0, 2.0}


def test_coins() -> None:
    p = gradcore.tensor([0.0, 0.25, 1.0]).repeat(4000, 1)
    x = seeded(lambda: gradcore.bernoulli(p))
    assert x.dtype == np.float32 and x[:, 0].sum() == 0 and x[:, 2].sum() == 4000 and abs(x[:, 1].mean() - 0.25) < 0.03
    y = gradcore.zeros(4000, dtype=gradcore.bool)
    assert y.bernoulli_(0.75) is y and abs(y.numpy().mean() - 0.75) < 0.03
    assert gradcore.zeros(2, 3).bernoulli_(gradcore.tensor([0.0, 1.0, 1.0])).tolist() == [[0, 1, 1]] * 2
    assert gradcore.zeros(2).bernoulli_(np.float32(1)).tolist() == [1, 1]
    with raises(RuntimeError, "expects p to be in [0, 1], but got p=2"):
        y.bernoulli_(2)


def test_normal_takes_numbers_and_tensors() -> None:
    mean = gradcore.tensor([0.0, 100.0]).repeat(4000, 1)
    x = seeded(lambda: gradcore.normal(mean, 2.0))
    assert np.allclose(x.mean(0), [0, 100], atol=0.15) and np.allclose(x.std(0), 2, atol=0.1)
    assert gradcore.normal(1.0, 0.0, (3,)).tolist() == [1.0] * 3
    with raises(TypeError, "needs a size"):
        gradcore.normal(0.0, 1.0)
    with raises(RuntimeError, "std >= 0.0, but found std -1"):
        gradcore.normal(0.0, -1.0, (2,))


@pytest.mark.parametrize("replacement", [True, False])
def test_categories_come_by_their_weights(replacement: bool) -> None:
    weights = gradcore.tensor([1.0, 0.0, 3.0, 4.0]).repeat(6000, 1)
    x = seeded(lambda: gradcore.multinomial(weights, 2, replacement))
    assert x.dtype == np.int64 and x.shape == (6000, 2)
    first = np.bincount(x[:, 0], minlength=4) / 6000
    assert first[1] == 0 and np.allclose(first, [1 / 8, 0, 3 / 8, 4 / 8], atol=0.025)
    again = (x[:, 0] == x[:, 1]).mean()
    assert abs(again - 26 / 64) < 0.03 if replacement else again == 0


def test_draws_are_not_compared_with_all_categories_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = gradcore.rand(3, 2000) * (gradcore.rand(3, 2000) > 0.5)
    with gradcore.step() as step:
        x = seeded(lambda: gradcore.multinomial(weights, 500, True))
    assert step.report.peak.requested < 3 * 500 * 2000 / 4
    monkeypatch.setattr(_distributions, "_MOST_COMPARED", math.inf)
    assert (seeded(lambda: gradcore.multinomial(weights, 500, True)) == x).all()


def test_what_multinomial_refuses() -> None:
    with raises(RuntimeError, "got 5 of 4 categories"):
        gradcore.multinomial(gradcore.ones(4), 5)
    with raises(RuntimeError, "weights of 1 or 2 dimensions, of a floating type"):
        gradcore.multinomial(gradcore.ones(4, dtype=gradcore.int64), 1)


def test_gumbel_softmax_samples_by_the_logits_and_has_a_gradient() -> None:
    p = np.array([0.1, 0.2, 0.7], np.float32)
    logits = gradcore.tensor(np.log(p)).repeat(6000, 1).requires_grad_()
    soft = nn.functional.gumbel_softmax(logits, tau=0.5)
    assert np.allclose(soft.detach().numpy().sum(1), 1, atol=1e-5)
    hard = nn.functional.gumbel_softmax(logits, hard=True)
    values = hard.detach().numpy()
    assert set(np.unique(values.round(5))) == {0.0, 1.0} and np.allclose(values.mean(0), p, atol=0.03)
    (hard * gradcore.tensor([1.0, 2.0, 3.0])).sum().backward()
    slopes = logits.grad.numpy()
    assert abs(slopes).max() > 0 and np.allclose(slopes.sum(1), 0, atol=1e-5)


def test_new_tensors_are_like_the_old() -> None:
    x = gradcore.zeros(2, dtype=gradcore.float64)
    assert x.new_ones(2, 3).tolist() == [[1.0] * 3] * 2 and x.new_full((2,), 7).dtype == np.float64
    assert x.new_empty(3).shape == (3,)
