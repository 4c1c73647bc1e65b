"""``gradcore train --live``: what it draws, and what it prints if it cannot draw."""

from __future__ import annotations

import io
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import gradcore
from gradcore.cli import live, train
from gradcore.cli.live import LiveView, sparkline
from gradcore.cli.main import main
from gradcore.report.run import StepFigures


@pytest.mark.parametrize(("values", "width", "expected"), [
    ([], 5, ""), ([1.0], 5, "▁"), ([2.0, 2.0], 5, "▁▁"), ([0.0, 7.0], 5, "▁█"), (list(range(8)), 8, "▁▂▃▄▅▆▇█"),
    (list(range(16)), 8, "▁▂▃▄▅▆▇█"), ([0.0, math.nan, 1.0], 5, "▁x█"), ([math.inf], 5, "x")])
def test_a_sparkline_goes_from_the_lowest_to_the_highest(values: list[float], width: int, expected: str) -> None:
    assert sparkline(values, width) == expected


def terminal(**environment: str) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=True, width=100, height=40, _environ=environment), out


def test_a_picture_shows_roles_and_loss() -> None:
    w = gradcore.ones(1000, requires_grad=True)
    console, out = terminal()
    with LiveView(console, 2) as view:
        for number, loss in ((1, 3.0), (2, 1.0)):
            with gradcore.step() as s:
                (w * w).sum().backward()
            view.update(StepFigures.of(number, loss, s.report), s)
            w.grad = None
    text = out.getvalue()
    assert "step 2/2  peak " in text and "gradient" in text and "▼" in text
    assert "loss 1.0000 █▁" in text, "the last step is drawn, however soon it comes"


def test_a_step_soon_after_the_last_update_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.1, 10.2, 10.3])
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with gradcore.step() as s:
        gradcore.ones(1000)
    drawn: list[int] = []
    with LiveView(terminal()[0], 9) as view:
        monkeypatch.setattr(view, "picture", lambda line, _: drawn.append(line.step) or "")
        for number in range(1, 5):
            view.update(StepFigures.of(number, 1.0, s.report), s)
    assert drawn == [1, 3]


@pytest.mark.parametrize(("environment", "color"), [
    ({"TERM": "xterm-256color"}, True), ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False), ({"TERM": "xterm"}, False)])
def test_roles_have_letters_where_there_are_no_colors(environment: dict[str, str], color: bool) -> None:
    with gradcore.step() as s:
        gradcore.ones(1000)
    console, out = terminal(**environment)
    with LiveView(console, 1) as view:
        view.update(StepFigures.of(1, 1.0, s.report), s)
    assert ("■" in out.getvalue(), "O output" in out.getvalue()) == (color, not color)


def test_live_on_a_terminal_and_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    words = ["train", "--steps", "3", "--device", "cpu", "--out", str(tmp_path), "--live"]
    assert main(words) == 0
    plain = capsys.readouterr().out
    assert plain.count("peak requested") == 3 and "▼" not in plain
    console, out = terminal()
    monkeypatch.setattr(train, "Console", lambda **_: console)
    assert main(words) == 0
    assert "▼" in out.getvalue() and "peak requested" not in out.getvalue()
    # One that cannot move its cursor is no place to draw.
    console, out = terminal(TERM="dumb")
    assert main(words) == 0
    assert "▼ peak" not in out.getvalue() and out.getvalue().count("peak requested") == 3


def test_counts_cost_the_least_and_say_how_much(tmp_path: Path, capsys: Any) -> None:
    assert main(["train", "--steps", "3", "--device", "cpu", "--out", str(tmp_path), "--record", "counts"]) == 0
    trained = capsys.readouterr().out
    assert trained.count("peak requested") == 3 and "At the peak, by" not in trained
    assert main(["report", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "peak" in shown and "reached by" not in shown
