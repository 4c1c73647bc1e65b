"""Live bytes that have grown a few times in a row, though no step has kept anything beside the last one's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import _step
from gradcore.cli.main import main
from gradcore.report.growth import Grown
from gradcore.report.run import RunWriter, StepFigures


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
