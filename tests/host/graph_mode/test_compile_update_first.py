"""Compiled steps that begin with the update: the gradients of the step before are freed where the function drops them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import folds, nn
from tests.host.graph_mode.test_compile import same


def update_first(model: Any, optimizer: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        optimizer.step()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()
    return step


def clipped_first(model: Any, optimizer: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        return loss.detach()
    return step


def one_layer_dropped(model: Any, optimizer: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        optimizer.step()
        model[0].zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()
    return step


def run(kind: Any, wrap: Any, level: str) -> tuple[list[Any], list[int], list[int], Any]:
    gradcore.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before, ledger = gradcore.memory_allocated(), gradcore.device("cpu").ledger
    step, losses, peaks, live = wrap(kind(model, optimizer)), [], [], []
    for k in range(9):
        # Another shape in between has a program, and an arena, of its own.
        x = gradcore.full((3 if k == 6 else 4, 16), float(k))
        ledger.reset_peaks()
        with gradcore.step(level=level) as s:
            losses.append(step(x))
        if level == "events":
            *_, last = folds.timeline(s.log)
            assert (last.requested, last.allocated) == (ledger.requested, ledger.allocated)
            peak = folds.peak(s.log)
            assert (peak.requested, peak.allocated) == ledger.peaks[:2]
        peaks.append(s.report.peak.allocated - before)
        live.append(gradcore.memory_allocated() - before)
    losses += [p.detach().clone() for p in model.parameters()]
    model.zero_grad()
    return losses, peaks, live, step


@pytest.mark.parametrize("level", ["events", "counts"])
@pytest.mark.parametrize("kind", [update_first, clipped_first, one_layer_dropped])
def test_the_gradients_of_before_count_until_they_are_dropped(kind: Any, level: str) -> None:
    values, peaks, live, _ = run(kind, lambda f: f, level)
    found, lower, left, step = run(kind, gradcore.compile, level)
    assert all(same(a, b) for a, b in zip(values, found, strict=True)) and left == live
    assert all(a <= b for a, b in zip(lower, peaks, strict=True))
    assert len(step.traces) <= 4


def test_an_update_by_itself_frees_the_gradients_before_what_follows() -> None:
    model = nn.Linear(64, 64)
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)

    def update() -> Any:
        optimizer.step()
        optimizer.zero_grad()
        return gradcore.zeros(64, 64).sum()

    found = []
    for wrap in (lambda f: f, gradcore.compile):
        step, x = wrap(update), gradcore.ones(2, 64)
        for _ in range(4):
            model(x).sum().backward()
            with gradcore.step() as s:
                step()
            found.append(s.report.peak.allocated)
    assert max(found[4:]) <= found[0] and len(step.programs) == 1


def test_all_replays_run_in_one_arena() -> None:
    model = nn.Linear(8, 8)
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)
    step = gradcore.compile(update_first(model, optimizer))
    x = gradcore.ones(2, 8)
    for _ in range(3):
        step(x)
    (entry,) = [e for e in step._cached() if e.replay._bound is not None]
    bound = entry.replay._bound
    for _ in range(3):
        step(x)
    assert entry.replay._bound is bound
    # A gradient that somebody holds keeps its values.
    held = model.weight.grad
    values = held.clone()
    step(x)
    step(x)
    assert same(held, values) and model.weight.grad is not held and sys.getrefcount(held) < 4
