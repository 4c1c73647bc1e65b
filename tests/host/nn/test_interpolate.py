"""Interpolation along long dimensions, where a matrix of all weights would be mostly zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.functional import sampling
from gradcore.nn import functional as F
from tests.conftest import raises

CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9), {"scale_factor": 2, "mode": "linear"}), ((1, 2, 9), {"size": 4, "mode": "linear", "align_corners": True}),
    ((1, 2, 6, 5), {"scale_factor": (1.5, 2), "mode": "bilinear"}), ((1, 2, 6, 5), {"size": (9, 3), "mode": "bicubic"}),
    ((1, 1, 3, 4, 5), {"size": (5, 2, 9), "mode": "trilinear"}), ((2, 3, 9), {"size": 4, "mode": "area"}),
    ((1, 2, 6, 5), {"size": (3, 8), "mode": "area"})]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(("shape", "named"), CASES, ids=lambda value: str(value))
def test_gathered_and_by_a_matrix(shape: tuple[int, ...], named: dict[str, Any], dtype: str,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for large in (1, 1 << 20):
        monkeypatch.setattr(sampling, "_LARGE", large)
        x = gradcore.tensor(np.random.default_rng(0).normal(size=shape), dtype=getattr(gradcore, dtype), requires_grad=True)
        y = F.interpolate(x, **named)
        y.backward(gradcore.tensor(np.random.default_rng(1).normal(size=tuple(y.shape)), dtype=y.dtype))
        assert y.dtype == x.grad.dtype == x.dtype
        found.append([t.detach().double().numpy() for t in (y, x.grad)])
    for gathered, mixed in zip(*found, strict=True):
        np.testing.assert_allclose(gathered, mixed, rtol=0, atol={"float64": 1e-14, "float32": 2e-6, "bfloat16": 3e-2}[dtype])


def test_a_long_signal_takes_memory_for_itself_alone() -> None:
    """A matrix for it would be of 16,000 x 48,000 numbers."""
    with gradcore.step(device="meta") as step:
        x = gradcore.empty(1, 1, 16_000, device="meta", requires_grad=True)
        F.interpolate(x, size=48_000, mode="linear").sum().backward()
    assert step.report.peak.allocated < 12 * 4 * 48_000
    x = gradcore.tensor(np.linspace(0, 1, 16_000)).reshape(1, 1, -1)
    np.testing.assert_allclose(F.interpolate(x, size=48_000, mode="linear", align_corners=True).reshape(-1).numpy(),
                               np.linspace(0, 1, 48_000), atol=1e-12)


@pytest.mark.parametrize("mode", ["linear", "area"])
def test_integers_are_not_mixed(mode: str) -> None:
    """Their weights would be rounded to 0: along a long dimension they were."""
    for size in (2, 4, 300_000):
        with raises(gradcore.SpecError, "interpolate: input must be of a floating type, but is int64"):
            F.interpolate(gradcore.ones(1, 1, 4, dtype=gradcore.int64), size=size, mode=mode)
