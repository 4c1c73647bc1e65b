"""What a step's report says of the arenas of its replays: planned against live."""

from __future__ import annotations

import pytest

import gradcore
from gradcore.report.step import PlannedFigures, load_report


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_report_holds_what_was_planned_against_what_was_live(device: str) -> None:
    doubled, squared = gradcore.compile(lambda x: (x * 2).exp() + 1), gradcore.compile(lambda x: (x + 1).square())
    x = gradcore.ones(1000, device=device)
    for _ in range(2):
        with gradcore.step(device=device) as s:
            doubled(x)
    (plan,) = doubled.plans
    planned = s.report.planned
    assert (planned.arenas, planned.planned) == (1, plan.nbytes)
    assert planned.max_live == planned.live_at_peak == plan.bound
    assert f"{plan.nbytes / 1024:.2f} KiB planned in 1 arena" in str(s.report)
    assert load_report(s.report.to_dict()).planned == planned

    squared(x)
    with gradcore.step(device=device) as s:
        doubled(x), squared(x)
        gradcore.ones(10_000, device=device)
    assert s.report.planned == PlannedFigures(2, plan.nbytes + squared.plans[0].nbytes, plan.bound, 0), "results are copies"


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_gradients_that_stay_lie_in_what_was_planned(device: str) -> None:
    w, x = gradcore.ones(1000, device=device, requires_grad=True), gradcore.ones(1000, device=device)

    @gradcore.compile
    def run() -> None:
        w.grad = None
        (w * x).square().sum().backward()

    for _ in range(3):
        run()
    for gradients in (1, 0):
        with gradcore.step(device=device) as s:
            x + 1
        assert s.report.planned == (PlannedFigures(1, run.plans[0].nbytes, 4096, 4096) if gradients else None)
        w.grad = None
