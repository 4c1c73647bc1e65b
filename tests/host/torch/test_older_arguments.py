"""Arguments that PyTorch had before others, and still takes with a warning."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises


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


#: Calls with the losses' arguments in PyTorch's order, in which those of before ``reduction`` have a place.
IN_ORDER: list[Any] = [
    lambda t, f, x, y, i: f.cross_entropy(x, i, y[0], False),
    lambda t, f, x, y, i: f.cross_entropy(x, i, None, None, 1, None, "sum"),
    lambda t, f, x, y, i: f.nll_loss(x, i, None, False),
    lambda t, f, x, y, i: f.mse_loss(x, y, False),
    lambda t, f, x, y, i: f.mse_loss(x, y, None, False),
    lambda t, f, x, y, i: f.mse_loss(x, y, "sum"),
    lambda t, f, x, y, i: f.l1_loss(x, y, None, None, "sum"),
    lambda t, f, x, y, i: f.kl_div(x, y, False),
    lambda t, f, x, y, i: f.smooth_l1_loss(x, y, True, True, "sum", 0.5),
    lambda t, f, x, y, i: f.huber_loss(x, y, "sum", 0.5),
    lambda t, f, x, y, i: f.poisson_nll_loss(x, y, True, False, None, 1e-8, None, "sum"),
    lambda t, f, x, y, i: f.triplet_margin_loss(x, y, y * 2, 1.0, 2.0, 1e-6, False, False),
    lambda t, f, x, y, i: f.binary_cross_entropy_with_logits(x, y, y, None, None, "sum", y),
    lambda t, f, x, y, i: f.multi_margin_loss(x, i, 1, 1.0, y[0], False),
    lambda t, f, x, y, i: t.nn.CrossEntropyLoss(y[0], False, 1)(x, i),
    lambda t, f, x, y, i: t.nn.NLLLoss(y[0], None, 1)(x, i),
    lambda t, f, x, y, i: t.nn.MSELoss(False)(x, y),
    lambda t, f, x, y, i: t.nn.BCELoss(y, False)(x, y),
    lambda t, f, x, y, i: t.nn.SmoothL1Loss(None, None, "sum", 0.5)(x, y),
    lambda t, f, x, y, i: t.nn.HuberLoss("sum", 0.5)(x, y),
    lambda t, f, x, y, i: t.nn.TripletMarginLoss(1.0, 2.0, 1e-6, False, False)(x, y, y * 2),
    lambda t, f, x, y, i: t.nn.PoissonNLLLoss(True, False, False, 1e-8)(x, y),
    lambda t, f, x, y, i: t.nn.MultiLabelSoftMarginLoss(None, None, False)(x, y)]


@pytest.mark.oracle
@pytest.mark.parametrize("k", range(len(IN_ORDER)))
def test_losses_take_arguments_in_pytorchs_order(k: int, torch: Any) -> None:
    outcomes = []
    for t in (gradcore, torch):
        x, y = t.tensor([[0.25, 0.5], [0.75, 0.5]]), t.tensor([[1.0, 0.5], [0.25, 1.0]])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = IN_ORDER[k](t, t.nn.functional, x, y, t.tensor([1, 0]))
        outcomes.append((np.asarray(value).round(5).tolist(), {str(w.message) for w in caught}))
    assert outcomes[0] == outcomes[1]


def test_an_argument_of_a_loss_is_given_once() -> None:
    with raises(TypeError, "multiple values for argument 'reduction'"):
        gradcore.nn.functional.mse_loss(gradcore.ones(2), gradcore.ones(2), None, None, "sum", reduction="sum")
    with raises(TypeError, "mse_loss"):
        gradcore.nn.functional.mse_loss(gradcore.ones(2), gradcore.ones(2), None, None, "sum", None, None)  # type: ignore[call-arg]


#: A call with two gaps for what was there before ``reduction``, which stands behind the second.
IN_A_ROW = ["F.mse_loss(x, y, {}, {}", "nn.MSELoss({}, {}", "F.cross_entropy(x, of, None, {}, 1, {}",
            "F.nll_loss(x, of, None, {}, 0, {}",
            "nn.CrossEntropyLoss(None, {}, 1, {}", "nn.NLLLoss(None, {}, -100, {}", "F.binary_cross_entropy(x, y, None, {}, {}",
            "nn.BCEWithLogitsLoss(None, {}, {}", "F.poisson_nll_loss(x, y, False, False, {}, 0.5, {}",
            "nn.PoissonNLLLoss(False, False, {}, 0.5, {}", "F.margin_ranking_loss(x, y, y, 0.1, {}, {}",
            "nn.TripletMarginLoss(1.0, 2.0, 1e-6, False, {}, {}", "F.multi_margin_loss(x, of, 1, 0.5, None, {}, {}"]


@pytest.mark.oracle
@pytest.mark.parametrize("call", IN_A_ROW)
def test_in_a_row_they_stand_where_they_stood(call: str, torch: Any) -> None:
    texts = [call.format(size_average, reduce) + tail + ")" for size_average in (None, True, False)
             for reduce in (None, True, False) for tail in ("", ", 'sum'")]
    texts += ["F.cross_entropy(x, of, None, True)", "nn.CrossEntropyLoss(None, True)(x, of)", "F.l1_loss(x, y, False)",
              "nn.PoissonNLLLoss(False, False, True)(x, y)"]
    outcomes = []
    for t in (gradcore, torch):
        scope = {"nn": t.nn, "F": t.nn.functional, "x": t.tensor([[0.25, 0.5], [0.75, 0.5]]),
                 "y": t.tensor([[1.0, 0.0], [1.0, 1.0]]), "of": t.tensor([1, 0])}
        operands = [scope["x"], scope["of" if "CrossEntropy" in call or "NLLLoss(None" in call else "y"]]
        for text in texts:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = eval(text, scope)
                if isinstance(made, t.nn.Module):
                    made = made(*operands, *[scope["y"] - 1] * text.startswith("nn.Triplet"))
            outcomes.append(np.asarray(made.detach()).round(5).tolist())
    half = len(outcomes) // 2
    assert outcomes[:half] == outcomes[half:]


def test_an_older_argument_twice_is_an_error() -> None:
    x = gradcore.ones(2)
    with raises(TypeError, "got multiple values for argument 'size_average'"):
        gradcore.nn.functional.mse_loss(x, x, False, size_average=True)


@pytest.mark.oracle
def test_factors_that_stand_first(torch: Any) -> None:
    calls: list[Any] = [
        lambda t, x, y: x.add_(-0.5, y), lambda t, x, y: x.sub_(2, y), lambda t, x, y: x.addcmul_(0.1, y, y),
        lambda t, x, y: x.mul_(0.9).add_(0.1, y).addcdiv_(-0.1, y, x), lambda t, x, y: t.addcmul(x, 0.1, y, y),
        lambda t, x, y: x.addcdiv(0.25, y, y)]
    for call in calls:
        outcomes = []
        for t in (gradcore, torch):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                outcomes.append(call(t, t.tensor([1.0, 2.0]), t.tensor([3.0, 4.0])).tolist())
            assert t is torch or {(w.filename, "deprecated" in str(w.message)) for w in caught} == {(__file__, True)}
        np.testing.assert_allclose(*outcomes, rtol=1e-6)


def test_what_is_too_much_is_an_error() -> None:
    x = gradcore.ones(2)
    with raises(TypeError, "add_() takes 1 operand, but got 2"):
        x.add_(x, x)
    with raises(TypeError, "addcmul_() takes 2 operands, but got 4"):
        x.addcmul_(0.1, x, x, x)
