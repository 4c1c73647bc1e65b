"""Arguments that PyTorch had before others, and still takes with a warning."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import gradcore


@pytest.mark.oracle
@pytest.mark.parametrize("older", [
    {"size_average": False}, {"reduce": False}, {"size_average": False, "reduce": False},
    {"size_average": True, "reduction": "sum"}, {"reduce": None, "size_average": None},
    {"reduce": True, "reduction": "none"}], ids=str)
def test_losses_take_what_there_was_before_reduction(older: dict[str, Any], torch: Any) -> None:
    outcomes = []
    for t in (gradcore, torch):
        x, y, labels = t.tensor([[0.25, 0.5], [0.75, 0.5]]), t.tensor([[1.0, 0.0], [1.0, 1.0]]), t.tensor([1, 0])
        calls = [lambda t, x, y: t.nn.functional.mse_loss(x, y, **older), lambda t, x, y: t.nn.MSELoss(**older)(x, y),
                 lambda t, x, y: t.nn.functional.binary_cross_entropy(x, y, **older),
                 lambda t, x, y: t.nn.BCELoss(**older)(x, y), lambda t, x, y: t.nn.SmoothL1Loss(beta=0.5, **older)(x, y),
                 lambda t, x, y, of=labels: t.nn.CrossEntropyLoss(**older)(x, of)]
        for call in calls:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                values = call(t, x, y)
            texts = {str(w.message) for w in caught}
            assert t is torch or all(w.filename == __file__ for w in caught)
            outcomes.append((np.asarray(values).round(6).tolist(), texts))
    half = len(outcomes) // 2
    assert outcomes[:half] == outcomes[half:]
