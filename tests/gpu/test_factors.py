"""Factorizations by gradcore's own kernels, of the matrices that the CPU's are tested with."""

from __future__ import annotations

import numpy as np
import pytest

import gradcore
from tests.host.ops.test_factors import CASES, check, check_signs


@pytest.mark.parametrize("name", CASES)
def test_factors_multiply_to_the_matrix(name):
    check(name, "cuda")


def test_vectors_have_the_signs_that_are_promised():
    check_signs("cuda")


def test_matrices_with_nan_or_infinity_give_nan():
    for value in (np.nan, np.inf, -np.inf):
        a = np.random.default_rng(1).normal(size=(2, 5, 5)).astype(np.float32)
        a[1, 2, 1] = value
        x = gradcore.tensor(a, device="cuda")
        for found in (*gradcore.linalg.svd(x), *gradcore.linalg.eigh(x), gradcore.linalg.pinv(x)):
            assert np.isfinite(found[0].cpu().numpy()).all() and np.isnan(found[1].cpu().numpy()).all()


def test_a_step_with_a_factorization_is_captured():
    weight = gradcore.nn.Parameter(gradcore.tensor(np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32),
                                                   device="cuda"))
    eagerly = gradcore.nn.Parameter(weight.detach().clone())

    def step(w):
        w.grad = None
        loss = gradcore.linalg.svdvals(w).sum() + gradcore.linalg.qr(w).R.square().sum()
        loss.backward()
        with gradcore.no_grad():
            w -= 0.01 * w.grad
        return loss

    compiled = gradcore.compile(step)
    for _ in range(4):
        assert compiled(weight).item() == step(eagerly).item()
    assert (weight == eagerly).all().item()
