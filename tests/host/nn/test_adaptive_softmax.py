"""The adaptive softmax compared with PyTorch's: outputs, gradients, all probabilities, errors; and without reading values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import SpecError
from tests.conftest import raises
from tests.host.nn.test_layers import close

X = np.random.default_rng(0).normal(size=(12, 16)).astype(np.float32)
CLASSES = np.random.default_rng(1).integers(0, 20, 12)


def both(torch: Any, cutoffs: list[int], **options: Any) -> tuple[Any, Any]:
    ours, theirs = (library.nn.AdaptiveLogSoftmaxWithLoss(16, 20, cutoffs, **options) for library in (gradcore, torch))
    assert list(ours.state_dict()) == list(theirs.state_dict()) and repr(ours) == repr(theirs)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.oracle
@pytest.mark.parametrize("options", [{}, {"head_bias": True, "div_value": 2.0}], ids=str)
@pytest.mark.parametrize("cutoffs", [[4, 10], [1], [3, 5, 19]], ids=str)
@pytest.mark.parametrize("most", [20, 3, 1])
def test_losses_and_gradients_are_pytorchs(torch: Any, cutoffs: list[int], options: dict[str, Any], most: int) -> None:
    layers = both(torch, cutoffs, **({"div_value": 1.5} | options))
    inputs, results = [], []
    for library, layer in zip((gradcore, torch), layers, strict=True):
        x, y = library.tensor(X, requires_grad=True), library.tensor(CLASSES % most)
        found = layer(x, y)
        found.loss.backward()
        inputs.append(x)
        results.append((*found, *layer(x[0], y[0]), layer.log_prob(x), x.grad))
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs)
    for p, q in zip(*(layer.parameters() for layer in layers), strict=True):
        # PyTorch has no gradient for a cluster without samples.
        close(p.grad, torch.zeros_like(q) if q.grad is None else q.grad)
    np.testing.assert_array_equal(*(layer.predict(x).numpy() for layer, x in zip(layers, inputs, strict=True)))


@pytest.mark.oracle
@pytest.mark.parametrize(("shape", "target", "text"), [
    ((3, 16), [1, 2, 20], "Target values should be in [0, 19]"), ((3, 16), [1, -1, 2], "Target values should be in [0, 19]"),
    ((3, 16), [1, -100, 2], "Target values should be in [0, 19]"),
    ((3, 16), [1, 2], "Input and target should have the same size"),
    ((3, 16), [[1, 2, 3]], "0D or 1D target tensor expected"), ((3, 16), 1, "0D target tensor expects 1D input tensors"),
    ((3,), [1, 1, 1], "1D target tensor expects 2D input tensors")])
def test_errors_are_pytorchs(torch: Any, shape: tuple[int, ...], target: Any, text: str) -> None:
    for library in (gradcore, torch):
        layer = library.nn.AdaptiveLogSoftmaxWithLoss(16, 20, [4, 10], div_value=2.0)
        with raises(RuntimeError, text):
            layer(library.zeros(*shape), library.tensor(target))


@pytest.mark.parametrize("cutoffs", [[], [5, 4], [0, 3], [3, 3], [3, 20], [2.5]])
def test_cutoffs_rise_within_the_classes(cutoffs: list[Any]) -> None:
    with raises(ValueError, "cutoffs should be a sequence of"):
        nn.AdaptiveLogSoftmaxWithLoss(16, 20, cutoffs)


def test_shapes_alone_decide_what_is_computed() -> None:
    layer = nn.AdaptiveLogSoftmaxWithLoss(16, 20, [4, 10], div_value=2.0)
    compiled = gradcore.compile(lambda x, y: layer(x, y).output)
    for most in (20, 3, 1):
        x, y = gradcore.tensor(X), gradcore.tensor(CLASSES % most)
        assert compiled(x, y).tolist() == layer(x, y).output.tolist()
    onto = nn.AdaptiveLogSoftmaxWithLoss(16, 20, [4, 10], div_value=2.0, device="meta")
    assert onto(gradcore.zeros(12, 16, device="meta"), y.to("meta")).output.shape == (12,)
    with raises(SpecError, "Target values should be in [0, 19]"):
        layer(x, y - 1)
