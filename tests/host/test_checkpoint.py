"""Activation checkpointing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.utils.checkpoint import checkpoint, checkpoint_sequential
from tests.conftest import raises


def blocks() -> Any:
    gradcore.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.5)) for _ in range(6)])


RUNS: dict[str, Any] = {
    "plain": lambda m, x: m(x),
    "each": lambda m, x: [x := checkpoint(layer, x) for layer in m][-1],
    "nested": lambda m, x: checkpoint(lambda x: checkpoint(m, x), x),
    "reentrant": lambda m, x: [x := checkpoint(layer, x, use_reentrant=True) for layer in m][-1],
    "sequential": lambda m, x: checkpoint_sequential(m, 3, x)}


def train(device: str, name: str) -> tuple[list[Any], Any]:
    model = blocks().to(device)
    gradcore.empty_cache(device)
    gradcore.manual_seed(1)
    x = gradcore.ones(256, 32, device=device, requires_grad=True)
    with gradcore.step(device=device) as s:
        loss = (RUNS[name](model, x) ** 2).mean()
        loss.backward()
    gradients = [] if device == "meta" else [p.grad.numpy().copy() for p in model.parameters()]
    return gradients, s.report


@pytest.mark.parametrize("name", [n for n in RUNS if n != "plain"])
def test_a_checkpoint_saves_bytes_and_changes_no_bit(name: str) -> None:
    """Dropout draws the same numbers again, and meta predicts its memory."""
    (expected, plain), (found, report) = train("cpu", "plain"), train("cpu", name)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert report.residual_bytes < plain.residual_bytes * 0.75
    predicted = train("meta", name)[1]
    assert (predicted.peak.requested, predicted.peak.allocated, predicted.residual_bytes) == (
        report.peak.requested, report.peak.allocated, report.residual_bytes)


@pytest.mark.parametrize("stem", [nn.GELU, nn.SiLU, lambda: nn.Sequential(nn.BatchNorm1d(32), nn.ReLU()),
                                  lambda: nn.LayerNorm(32)], ids=["gelu", "silu", "batch norm, relu", "layer norm"])
@pytest.mark.parametrize("rows", [32, 7])
def test_what_a_checkpoint_reads_may_be_recomputed_itself(stem: Any, rows: int) -> None:
    gradcore.manual_seed(0)
    first, middle = nn.Sequential(nn.Linear(32, 32), stem()), nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
    x = gradcore.randn(rows, 32)
    found = []
    for run in (middle, lambda x: checkpoint(middle, x)):
        first.zero_grad(), middle.zero_grad()
        (run(first(x)) ** 2).mean().backward()
        found.append([p.grad.numpy().copy() for p in (*first.parameters(), *middle.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_hooks_around_a_checkpoint_may_return_its_argument_with_other_strides(device: str) -> None:
    x = gradcore.ones(3, 4, device=device, requires_grad=True)
    with gradcore.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
        y = checkpoint(lambda a: a * a, x.t())
    y.sum().backward()
    assert x.grad.shape == (3, 4) and (device == "meta" or x.grad.tolist() == [[2.0] * 4] * 3)


def test_a_checkpoint_must_do_the_same_again() -> None:
    widths = iter((3, 4))
    x = gradcore.ones(2, 5, requires_grad=True)
    y = checkpoint(lambda x: (x @ gradcore.ones(5, next(widths))).exp(), x)
    with raises(RuntimeError, "Recomputed values for the following tensors have different metadata"):
        y.sum().backward()
    with raises(ValueError, "segments must be between 1 and 6, but got 7"):
        checkpoint_sequential(blocks(), 7, x)
    with raises(ValueError, "determinism_check must be"):
        checkpoint(lambda x: x, x, determinism_check="some")
    del y


@pytest.mark.parametrize("retain", [False, True])
def test_a_backward_that_needs_a_part_of_a_checkpoint_lets_go_of_the_rest(retain: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 3))
    loss = checkpoint(model, gradcore.ones(6, 4)).square().sum()
    before = gradcore.memory_requested()
    g, = gradcore.autograd.grad(loss, [model[4].bias], retain_graph=retain)
    assert gradcore.memory_requested() <= before + g.nbytes
    if retain:
        loss.backward()
        assert model[4].bias.grad.tolist() == g.tolist()
