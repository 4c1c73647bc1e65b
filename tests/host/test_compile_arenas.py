"""Gradients lie in the arenas of programs: several programs of the same parameters hold one gradient between them."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore import nn


@pytest.mark.parametrize("recorded", [True, False])
def test_batches_of_several_sizes_hold_one_gradient(recorded: bool) -> None:
    """Each has a program, and each program leaves its gradients in an arena of its own."""
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        model = nn.Linear(50, 50)
        optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        run, peaks = wrap(step), []
        before = gradcore.memory_allocated()
        for _ in range(4):
            for rows in (4, 5, 300, 7):
                gradcore.reset_peak_memory_stats()
                if recorded:
                    with gradcore.step() as s:
                        run(gradcore.ones(rows, 50))
                    assert s.report.by_role.get("gradient", 0) <= 10752
                    peaks.append(s.report.peak.allocated - before)
                else:
                    run(gradcore.ones(rows, 50))
                    peaks.append(gradcore.max_memory_allocated() - before)
        found.append((peaks, gradcore.memory_allocated() - before))
        model.zero_grad()
    (eager, live), (compiled, live_compiled) = found
    assert live == live_compiled and all(ours <= theirs for ours, theirs in zip(compiled, eager, strict=True))


def test_a_gradient_that_is_held_is_not_let_go() -> None:
    w, held = gradcore.ones(300, requires_grad=True), []

    @gradcore.compile
    def step(x: Any) -> None:
        w.grad = None
        (x * w).sum().backward()

    for k in range(9):
        step(gradcore.full((k % 3 + 1, 300), float(k)))
        if k in (5, 6):
            held.append(w.grad)
    assert [g.tolist()[0] for g in held] == [5.0 * 3, 6.0] and w.grad.tolist()[0] == 8.0 * 3
    before = gradcore.memory_allocated()
    held.clear()
    step(gradcore.ones(1, 300)), step(gradcore.ones(2, 300)), step(gradcore.ones(3, 300))
    assert gradcore.memory_allocated() < before
