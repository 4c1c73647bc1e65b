"""Losses called with what does not fit: one error names it, before anything is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.errors import SpecError
from tests.conftest import raises
from tests.host.ops.test_form_errors import refused_by_both

#: A call of each loss that fits.
LOSSES = {
    "l1_loss": "x, x", "mse_loss": "x, x", "smooth_l1_loss": "x, x", "huber_loss": "x, x", "binary_cross_entropy": "x, x",
    "binary_cross_entropy_with_logits": "x, x", "cross_entropy": "x, k", "nll_loss": "x, k", "kl_div": "x, x",
    "poisson_nll_loss": "x, x", "gaussian_nll_loss": "x, x, x", "hinge_embedding_loss": "v, v",
    "margin_ranking_loss": "v, v, v", "soft_margin_loss": "v, v", "multi_margin_loss": "x, k",
    "multilabel_margin_loss": "x, m", "multilabel_soft_margin_loss": "x, x",
    "cosine_embedding_loss": "x, x, v", "triplet_margin_loss": "x, x, x", "triplet_margin_with_distance_loss": "x, x, x",
    "ctc_loss": "x, k, (2,), (1,)"}

NOT_FITTING = {
    "binary_cross_entropy(x, x, w)": (SpecError, "expected weight to broadcast to the input size [2, 3], but got [5, 2, 3]"),
    "binary_cross_entropy_with_logits(x, x, w)": (SpecError, "expected weight to broadcast to the input size [2, 3]"),
    "binary_cross_entropy_with_logits(x, x, pos_weight=w)": (SpecError, "expected pos_weight to broadcast to the input size"),
    **{f"{name}(x, x, weight=v)": (ValueError, "Weights and input must have the same size.")
       for name in ("l1_loss", "mse_loss", "huber_loss")},
    "soft_margin_loss(v, x[:, :2])": (SpecError, "expected target to broadcast to the input size [2], but got [2, 2]"),
    "cosine_embedding_loss(x, v.sum(), v)": (SpecError, "found inputs with sizes [2, 3] and []"),
    "triplet_margin_loss(x, v.sum(), x)": (SpecError, "same number of dimensions, but got sizes [2, 3], [] and [2, 3]"),
    "triplet_margin_loss(x, x, 3)": (TypeError, "argument 'negative' (position 3) must be Tensor, not int"),
    "kl_div(x, m, reduction='sum')": (SpecError, "expected floats, but got input of float32 and target of int64"),
    "kl_div([1.0], x, reduction='sum')": (TypeError, "kl_div(): argument 'input' must be Tensor, not list"),
    "poisson_nll_loss(x, None)": (TypeError, "poisson_nll_loss(): argument 'target' must be Tensor, not NoneType"),
    "hinge_embedding_loss(v, [1])": (TypeError, "hinge_embedding_loss(): argument 'target' must be Tensor, not list"),
    "soft_margin_loss(v, None)": (TypeError, "soft_margin_loss(): argument 'target' must be Tensor, not NoneType"),
    "nll_loss(x, v)": (SpecError, "nll_loss: expected target to hold classes of an integer dtype, but got float32"),
    "multi_margin_loss(x, v)": (SpecError, "multi_margin_loss: expected target to hold classes of an integer dtype"),
    "multilabel_margin_loss(x, x)": (SpecError, "multilabel_margin_loss: expected target to hold classes of an integer dtype"),
    "cross_entropy(x, x, ignore_index=0)": (SpecError, "ignore_index is not supported for floating point target"),
    "cross_entropy(x, k, label_smoothing=None)": (TypeError, "argument 'label_smoothing' must be float, not NoneType"),
    "cross_entropy(x, k, label_smoothing='0.1')": (TypeError, "argument 'label_smoothing' must be float, not str")}


def _names(t: Any) -> dict[str, Any]:
    return {"t": t, "x": t.tensor(np.full((2, 3), 0.5, np.float32)), "v": t.tensor([1.0, -1.0]), "k": t.tensor([0, 2]),
            "m": t.zeros(2, 3, dtype=t.int64), "w": t.ones(5, 2, 3)}


@pytest.mark.oracle
@pytest.mark.parametrize("call", NOT_FITTING)
def test_what_does_not_fit_is_named(call: str, torch: Any) -> None:
    kind, text = NOT_FITTING[call]
    refused_by_both((lambda t: eval(f"t.nn.functional.{call}", _names(t)), kind, (text,)), torch)


@pytest.mark.parametrize("name", LOSSES)
def test_a_reduction_is_refused_before_anything_is_computed(name: str) -> None:
    given = _names(gradcore)
    with gradcore.step() as step, raises(ValueError, "avg is not a valid value for reduction: expected one of none, mean, sum"):
        eval(f"t.nn.functional.{name}({LOSSES[name]}, reduction='avg')", given)
    assert step.report.pool.allocations == 0
