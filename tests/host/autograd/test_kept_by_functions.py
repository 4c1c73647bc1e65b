"""What functions and layers that are composed of ops keep for backward, and what they hold at once in forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import folds, nn
from gradcore.events import Alloc

F = nn.functional


def weighted_bce() -> Any:
    x, target = gradcore.ones(40, 50, requires_grad=True), gradcore.ones(40, 50)
    return F.binary_cross_entropy_with_logits(x, target, pos_weight=gradcore.full((50,), 3.0))


def bilinear(one: int, two: int) -> Callable[[], Any]:
    return lambda: nn.Bilinear(one, two, 3)(gradcore.ones(20, one, requires_grad=True),
                                            gradcore.ones(20, two, requires_grad=True))


def gru_cell() -> Any:
    return nn.GRUCell(8, 9)(gradcore.ones(7, 8))


@pytest.mark.parametrize(("call", "nbytes"), [
    # Input, target and 1 - pos_weight, without the product of the last two.
    (weighted_bce, 2 * 40 * 50 * 4 + 50 * 4),
    # Both inputs, and the product of one with the weight, which is read as it lies.
    (bilinear(8, 8), 2 * 20 * 8 * 4 + 20 * 3 * 8 * 4),
    (bilinear(6, 8), 20 * (6 + 8) * 4 + 20 * 3 * 6 * 4),
    # Of the larger input.
    (bilinear(8, 6), 20 * (6 + 8) * 4 + 20 * 3 * 6 * 4 + 3 * 8 * 6 * 4),
    # Input, state, three gates, and the state's part of all of them.
    (gru_cell, 7 * 8 * 4 + 7 * 9 * 4 * 4 + 7 * 27 * 4),
], ids=["weighted bce", "bilinear", "wider second input", "wider first input", "gru cell"])
def test_no_more_is_kept_than_the_gradients_read(call: Callable[[], Any], nbytes: int) -> None:
    assert gradcore.graph(call()).nbytes == nbytes


#: A function of [40, 50], and how many arrays of this size it has at once beside the input, when the last result is one.
PEAKS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "gumbel_softmax": (F.gumbel_softmax, 2),
    "alpha_dropout": (lambda x: F.alpha_dropout(x, 0.5, True), 3),
    "rrelu": (lambda x: F.rrelu(x, training=True), 3),
    "gaussian_nll_loss": (lambda x: F.gaussian_nll_loss(x, x, x, reduction="none"), 4),
    "kl_div": (lambda x: F.kl_div(x, x, reduction="none"), 2),
    # Its random numbers are in float64.
    "bernoulli": (gradcore.bernoulli, 2),
}


@pytest.mark.parametrize("name", PEAKS)
def test_what_is_computed_on_the_way_goes_when_it_is_read(name: str) -> None:
    function, count = PEAKS[name]
    with gradcore.no_grad():
        x = gradcore.ones(40, 50, device="meta")
        function(x)
        held = gradcore.memory_requested("meta")
        gradcore.reset_peak_memory_stats("meta")
        y = function(x)
    assert y.shape == x.shape
    more = gradcore.max_memory_requested("meta") - held
    assert count * x.nbytes <= more < (count + 1) * x.nbytes, more / x.nbytes


@pytest.mark.parametrize("weighted", [False, True])
def test_a_smoothed_cross_entropy_has_the_scores_and_one_more_of_their_size(weighted: bool) -> None:
    with gradcore.device("meta"):
        hidden, head = gradcore.empty(1000, 8), gradcore.empty(500, 8, requires_grad=True)
        target, weight = gradcore.empty(1000, dtype=gradcore.int64), gradcore.empty(500) if weighted else None
    with gradcore.step(device="meta") as step:
        F.cross_entropy(F.linear(hidden, head), target, weight, label_smoothing=0.1).backward()
    before = folds.live_at(step.log, folds.start_of_step(step.log))
    scores = 1000 * 500 * 4
    assert step.report.peak.requested - sum(h.requested for h in before) < 2.1 * scores


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer_norm": lambda: nn.LayerNorm(64), "rms_norm": lambda: nn.RMSNorm(64), "group_norm": lambda: nn.GroupNorm(4, 16),
    "batch_norm": lambda: nn.BatchNorm1d(16)}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_of_an_input_without_a_gradient_makes_none(name: str) -> None:
    norm, x, g = NORMS[name](), gradcore.randn(8, 16, 64), gradcore.randn(8, 16, 64)
    found = []
    for wanted in (True, False):
        norm.zero_grad()
        with gradcore.step() as step:
            (norm(x.detach().requires_grad_(wanted)) * g).sum().backward()
        found.append([p.grad.numpy() for p in norm.parameters()])
        made = [r for r in step.log if isinstance(r, Alloc) and r.tag.op == f"{name}_grad" and r.tag.role != "workspace"]
        assert sum(r.requested >= x.nbytes for r in made) == wanted
    for first, second in zip(*found, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in NORMS if name != "rms_norm"])
def test_the_gradient_of_a_bias_alone_reads_nothing_of_a_norm(name: str) -> None:
    norm, x, g = NORMS[name](), gradcore.randn(8, 16, 64), gradcore.randn(8, 16, 64)
    norm.weight.requires_grad_(False)
    y = norm(x)
    assert gradcore.graph(y).nbytes == 0
    (y * g).sum().backward()
    others = (0, 1) if name == "layer_norm" else (0, 2)
    np.testing.assert_allclose(norm.bias.grad.numpy(), g.numpy().sum(others), rtol=1e-4, atol=1e-4)
