"""Draws by rejection: the CPU's numbers, captured too."""

from __future__ import annotations

import numpy as np

import gradcore
from gradcore import distributions


def _drawn(device):
    gradcore.manual_seed(8)
    x = gradcore.tensor(np.random.default_rng(1).uniform(0.1, 60, 3000), device=device)
    drawn = (distributions.Gamma(x, 1.0).sample(), gradcore.poisson(x), gradcore.binomial(x * 3, 1 / (x + 1)),
             gradcore.rand(5, device=device))
    return [t.cpu().numpy() for t in drawn]


def test_draws_are_the_cpus():
    for ours, theirs in zip(_drawn("cuda"), _drawn("cpu"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_captured_draws_go_on():
    def step(x):
        return distributions.Gamma(x, 1.0).sample().sum() + gradcore.poisson(x).sum()

    x = gradcore.full((20,), 5.0, device="cuda")
    gradcore.manual_seed(3)
    eager = [step(x).item() for _ in range(5)]
    gradcore.manual_seed(3)
    compiled = gradcore.compile(step)
    assert [compiled(x).item() for _ in range(5)] == eager and len(set(eager)) == 5
