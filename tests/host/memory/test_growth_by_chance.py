"""Live bytes that grow a few times in a row by chance, and growth underneath ends that go up and down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import _step
from gradcore.cli.main import main
from gradcore.report.growth import Grown
from gradcore.report.run import RunWriter, StepFigures
from gradcore.report.trend import Trend


def named(step: gradcore.step) -> tuple[Grown, ...]:
    growth = step.report.growth
    assert growth is not None
    return growth.grown


def test_one_buffer_that_grows_is_named_once_it_has_grown_too_often_for_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_step, "_ends", {})
    x, history = gradcore.ones(10, 32), gradcore.zeros(0, 32)
    for _ in range(9):
        with gradcore.step(device="cpu") as step:
            history = gradcore.cat([history, x * 2])
        assert (step.report.growth is None) == (history.shape[0] < 90)
    assert [(g.op, g.count) for g in named(step)] == [("cat", 1)]
    assert "bytes in 1 result of cat in (root), " in str(step.report)


def test_batches_of_changing_lengths_are_no_growth_and_what_is_kept_of_them_is(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each batch in the loop's variables is longer than the last, four times in a row, and so are those of the step before."""
    monkeypatch.setattr(_step, "_ends", {})
    w = gradcore.ones(100, requires_grad=True)
    held: list[Any] = [None]
    lengths = [9, 1, 2, 4, 7, 20, 3, 5, 8]
    with RunWriter(tmp_path / "run.jsonl", {"model": "text"}) as file:
        for number, length in enumerate(lengths, 1):
            with gradcore.step(device="cpu") as step:
                batch = gradcore.ones(length, 100)
                held = [batch * w, held[0]]
            file.add(StepFigures.of(number, None, step.report), step)
            assert step.report.growth is None
    assert held[1].shape == (5, 100) and main(["report", str(tmp_path)]) == 0
    assert "have grown" not in capsys.readouterr().out
    kept = []
    for length in lengths[1:5]:
        with gradcore.step(device="cpu") as step:
            kept.append(gradcore.ones(length, 100) * w)
    # The first step of these ended with less than the last one before them.
    assert [(g.op, g.count) for g in named(step)] == [("full", 4), ("mul", 4)]


@pytest.mark.parametrize("every", [7, 20])
@pytest.mark.parametrize("level", ["events", "counts"])
def test_what_each_epoch_keeps_below_ends_that_go_up_and_down(level: Any, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some steps of training comes an evaluation that ends higher; an end of four epochs of it would be a chance."""
    monkeypatch.setattr(_step, "_ends", {})
    w = gradcore.ones(1000, requires_grad=True)
    kept, told = [], []
    for _ in range(6):
        for k in range(every + 3):
            with gradcore.step(device="cpu", level=level) as step:
                held = [w.exp(), w.tanh()] if k >= every else None
                if k == every + 1:
                    kept.append(w.sin())
            told.append(step.report.growth)
    assert held is not None and told[-1] is not None and not any(told[:3 * (every + 3)])
    assert {growth.every for growth in told if growth} <= {8, 16, 32} and told[-1].requested in range(4000, 9000)
    if level == "events":
        assert [(g.op, g.count) for g in told[-1].grown] == [("sin", 6)]
        assert f" requested bytes every {told[-1].every} steps:" in str(step.report)


def test_ends_of_random_sizes_are_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest ends of windows rise by chance, and what two of the windows have made for good is no reason to say so."""
    monkeypatch.setattr(_step, "_ends", {})
    random = np.random.default_rng(7)
    kept, risen, trend = [], 0, Trend[None]()
    for k in range(400):
        with gradcore.step(device="cpu", level="counts") as step:
            batch = gradcore.ones(int(random.integers(1, 200)))
            if k in (100, 150):
                kept.append(batch * 2)
        assert batch.numel() and step.report.growth is None
        trend.add(_step._ends["cpu"]._last[-1].requested, None)
        risen += any(trend.underneath())
    assert risen > 10


def test_a_graph_that_is_carried_on_grows_also_after_ends_that_were_higher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step frees the sum of before, a few bytes of the thousands that it keeps."""
    monkeypatch.setattr(_step, "_ends", {})
    w, total = gradcore.ones(1000, requires_grad=True), gradcore.zeros(())
    for k in range(30):
        with gradcore.step(device="cpu"):
            held = gradcore.ones(100_000 + 1000 * (k % 2))
    del held
    for _ in range(7):
        with gradcore.step(device="cpu") as step:
            total = total + w.exp().sum()
    assert step.report.growth is not None and step.report.growth.requested == 4000
    assert {g.op for g in named(step)} == {"exp"}
