"""Loss scaling: the factor, what is skipped, and its memory without values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.amp import GradScaler, autocast
from tests.conftest import raises

float16 = gradcore.float16


def scaled_steps(library: Any, steps: list[float]) -> list[Any]:
    """A scaler's factor and the parameter after each of some steps with these gradients."""
    p = library.tensor([1.0, 2.0], requires_grad=True)
    optimizer = library.optim.SGD([p], lr=0.5)
    scaler = library.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    found = []
    for k, slope in enumerate(steps):
        optimizer.zero_grad()
        scaler.scale((p * slope).sum()).backward()
        if k % 2:
            scaler.unscale_(optimizer)
            library.nn.utils.clip_grad_norm_([p], 1.0)
        scaler.step(optimizer)
        scaler.update()
        found.append((scaler.get_scale(), p.tolist(), scaler.state_dict()))
    return found


@pytest.mark.oracle
def test_the_factor_follows_torchs(torch: Any) -> None:
    slopes = [1.0, 0.5, float("inf"), 1.0, float("nan"), 1.0, 1.0, 1.0, 1.0]
    ours, theirs = scaled_steps(gradcore, slopes), scaled_steps(torch, slopes)
    for a, b in zip(ours, theirs, strict=True):
        assert a[0] == b[0] and a[2] == b[2]
        np.testing.assert_allclose(a[1], b[1], rtol=1e-6)


@pytest.mark.oracle
def test_the_factor_grows_to_no_infinity(torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        p = library.ones(2, requires_grad=True)
        optimizer = library.optim.SGD([p], lr=0.5)
        scaler = library.amp.GradScaler("cpu", init_scale=2.0**125, growth_interval=1)
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(p.sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        found.append((scaler.get_scale(), scaler.state_dict(), p.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("library", ["gradcore", pytest.param("torch", marks=pytest.mark.oracle)])
def test_a_loss_that_is_not_scaled_is_noticed(library: str) -> None:
    """Its gradients were divided by the scale: the network learned nothing, without a word."""
    lib = pytest.importorskip(library)
    p = lib.ones(2, requires_grad=True)
    optimizer, scaler = lib.optim.SGD([p], lr=0.5), lib.amp.GradScaler("cpu")
    p.sum().backward()
    for call in (lambda: scaler.unscale_(optimizer), lambda: scaler.step(optimizer), scaler.update):
        with pytest.raises(AssertionError, match="Attempted "):
            call()
    assert p.tolist() == [1, 1] and p.grad.tolist() == [1, 1]
    optimizer.zero_grad()
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert p.tolist() == [0.5, 0.5]


def test_any_iterable_of_losses_is_scaled() -> None:
    scaler = GradScaler("cpu", init_scale=4.0)
    assert [x.item() for x in scaler.scale(gradcore.tensor(float(k)) for k in range(3))] == [0.0, 4.0, 8.0]


def test_small_gradients_vanish_in_float16_without_a_scaler() -> None:
    def gradient(scaler: GradScaler) -> float:
        p = gradcore.full((4, 4), 1.0, requires_grad=True)
        optimizer = gradcore.optim.SGD([p], lr=1.0)
        with autocast("cpu", dtype=float16):
            loss = (p @ gradcore.full((4, 4), 1e-4)).sum() * 1e-5
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        return float(p.grad.abs().max().item())

    assert gradient(GradScaler(enabled=False)) == 0
    assert gradient(GradScaler("cpu")) == pytest.approx(4e-9, rel=1e-2)


def test_state_and_errors() -> None:
    p = gradcore.tensor([1.0], requires_grad=True)
    optimizer = gradcore.optim.SGD([p], lr=1.0)
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.scale(p.sum())
    with raises(AssertionError, "No inf checks were recorded prior to update"):
        scaler.update()
    with raises(AssertionError, "No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)
    with raises(AssertionError, "No inf checks were recorded prior to update"):
        scaler.update()
    scaler.update(4.0)
    scaler.scale(p.sum()).backward()
    scaler.unscale_(optimizer)
    assert p.grad.item() == 1
    with raises(RuntimeError, "unscale_() has already been called"):
        scaler.unscale_(optimizer)
    with raises(RuntimeError, "Closure use is not currently supported"):
        scaler.step(optimizer, closure=lambda: None)
    scaler.step(optimizer)
    with raises(RuntimeError, "step() has already been called since the last update()"):
        scaler.step(optimizer)
    with raises(RuntimeError, "unscale_() is being called after step()"):
        scaler.unscale_(optimizer)
    scaler.update(2.0)
    other = GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 2.0 and other.state_dict() == scaler.state_dict()
    with raises(RuntimeError, "source state dict is empty"):
        other.load_state_dict({})
    off = GradScaler(enabled=False)
    assert off.scale(p) is p and off.get_scale() == 1.0 and off.state_dict() == {}
    off.load_state_dict({})
    assert scaler.is_enabled() and off.is_enabled() is False
    with raises(AssertionError, "growth factor must be > 1.0"):
        GradScaler(growth_factor=1.0)
    with raises(AssertionError, "backoff factor must be < 1.0"):
        GradScaler(backoff_factor=1.0)
    with raises(ValueError, "iterable of Tensors"):
        scaler.scale(1.0)
    for kind in (list, tuple):
        scaled = scaler.scale(kind([p.detach(), p.detach()]))
        assert type(scaled) is kind and [t.tolist() for t in scaled] == [[0.0], [0.0]]
    narrow = gradcore.tensor([1.0], dtype=float16, requires_grad=True)
    narrow.sum().backward()
    with raises(ValueError, "Attempting to unscale FP16 gradients"):
        scaler.unscale_(gradcore.optim.SGD([narrow], lr=1.0))


def test_gradients_that_were_unscaled_and_not_stepped_by_count_too() -> None:
    p = gradcore.tensor([1.0], requires_grad=True)
    optimizer, scaler = gradcore.optim.SGD([p], lr=1.0), GradScaler("cpu", init_scale=4.0, growth_interval=1)
    scaler.scale(p.sum())
    for factor, scale in ((1.0, 8.0), (math.inf, 4.0)):
        p.grad = gradcore.tensor([factor])
        scaler.unscale_(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale


def test_gradients_are_divided_all_or_none() -> None:
    few, many = gradcore.ones(2, requires_grad=True), gradcore.ones(1 << 22, requires_grad=True)
    narrow = gradcore.tensor([1.0], dtype=float16, requires_grad=True)
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.scale(few.sum() + many.sum()).backward()
    narrow.sum().backward()
    optimizer = gradcore.optim.SGD([few, many], lr=1.0)
    with raises(ValueError, "Attempting to unscale FP16 gradients"):
        scaler.unscale_(gradcore.optim.SGD([few, narrow], lr=1.0))
    gradcore.empty_cache()
    gradcore.set_memory_limit(gradcore.memory_reserved())
    try:
        # There is no room for what says which elements are finite.
        with raises(gradcore.OutOfMemory, "isfinite"):
            scaler.unscale_(optimizer)
    finally:
        gradcore.set_memory_limit(None)
    assert few.grad.tolist() == [4, 4]
    scaler.unscale_(optimizer)
    assert few.grad.tolist() == many.grad[:2].tolist() == [1, 1]


@pytest.mark.parametrize("clipped", [False, True])
def test_a_scaled_step_is_measured_without_values(clipped: bool) -> None:
    peaks = []
    for device in ("cpu", "meta"):
        gradcore.manual_seed(0)
        with gradcore.device(device):
            model = nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 8))
            optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            scaler = GradScaler(device, init_scale=16.0)
            x = gradcore.ones(32, 40)
            with gradcore.step(device=device) as s:
                with autocast(device, dtype=float16):
                    loss = model(x).float().square().mean()
                scaler.scale(loss).backward()
                if clipped:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        peaks.append((s.report.peak.requested, s.report.peak.allocated, s.report.by_role))
        assert optimizer.state, "the update is measured"
        del x, loss, optimizer, model
        gradcore.empty_cache(device)
    assert peaks[0] == peaks[1]


def test_a_compiled_function_sees_changed_settings() -> None:
    scaler = GradScaler("cpu", init_scale=4.0)
    asked = gradcore.compile(
        lambda x: x + scaler.get_growth_interval() + scaler.get_growth_factor() * scaler.get_backoff_factor())
    x = gradcore.zeros(1)
    assert asked(x).item() == asked(x).item() == 2001.0
    scaler.set_growth_interval(3)
    assert asked(x).item() == 4.0
    scaler.set_growth_factor(4.0)
    assert asked(x).item() == 5.0
    scaler.set_backoff_factor(0.25)
    assert asked(x).item() == asked(x).item() == 4.0
