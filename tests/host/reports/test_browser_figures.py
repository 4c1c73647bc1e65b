"""The strip of a run's steps, the bands of large networks, and the page in a notebook, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import _step, folds, nn
from gradcore.grouping import together
from gradcore.report import Run, StepFigures
from gradcore.report.html import Named, page, save
from tests.host.reports.browser import Opened
from tests.meta.test_recording import recorded


def test_the_triangle_of_the_last_of_many_steps_is_whole(browser: Any, tmp_path: Path) -> None:
    figures = tuple(StepFigures(number, None, 1, 1, 1, 1, 1, 1, 1.0) for number in range(1, 2001))
    save(tmp_path / "run.html", page([Named("run.jsonl", Run({}, figures, {2000: recorded().recording}))]))
    opened = Opened(browser, tmp_path / "run.html")
    # Its base is 14 pixels wide.
    drawn = opened.page.evaluate("""() => {
        const strip = byId('strip');
        const row = strip.getContext('2d').getImageData(0, 66, strip.width, 1).data;
        return row.filter((_, i) => i % 4 === 3 && row[i] > 127).length;
    }""")
    assert 12 <= drawn <= 14
    assert opened.complaints == []
    opened.context.close()


def large() -> gradcore.step:
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(12)))
    net = nn.ModuleDict({"head": nn.Linear(32, 32), "blocks": blocks})
    with gradcore.step(device="cpu") as step:
        net["blocks"](net["head"](gradcore.ones(64, 32))).sum().backward()
    return step


def test_equal_blocks_of_a_large_network_share_a_band(browser: Any, tmp_path: Path) -> None:
    step = large()
    step.recording.save_html(tmp_path / "large.html")
    opened = Opened(browser, tmp_path / "large.html")
    opened.page.check("input[name=by][value=layer]")
    assert opened.page.evaluate("view.bands.names") == ["(root)", "head", "blocks.0-11.0", "blocks.0-11.1"]
    # All of the bytes are in a band at any time.
    live = [x.allocated for x in folds.timeline(step.log)]
    assert opened.page.evaluate("view.bands.values.reduce((sum, band) => sum.map((n, i) => n + band[i]))") == live
    rows = [("a.0.b.0", 1), ("a.0.b.1", 1), ("a.1.b.0", 1), ("a.1.b.1", 1), ("a.3.b.0", 2), ("0", 1), ("1", 1), ("", 3),
            ("Net#1.0", 1), ("Net#2.0", 1)]
    told = opened.page.evaluate("rows => [...together(new Map(rows))]", rows)
    assert dict(told) == {one: name for name, _, names in together(rows) for one in names}
    assert opened.complaints == []
    opened.context.close()


def test_in_a_notebook(browser: Any, tmp_path: Path) -> None:
    path, recording = tmp_path / "notebook.html", recorded().recording
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{recording._repr_html_()}{recording.report._repr_html_()}")
    opened = Opened(browser, path)
    top = recording.report.top
    # Without the records, equal ones in equal blocks are a row.
    largest = max(t.allocated for t in top), top[0].allocated * top[0].count
    for frame, nbytes in zip(opened.page.frames[1:], largest, strict=True):
        frame.wait_for_selector("#owners-rows tr")
        assert frame.inner_text("#owners-rows tr:first-child td:first-child") == f"{nbytes:,}"
    assert opened.complaints == []
    opened.context.close()


def adding_up(path: Path) -> None:
    """Writes the page of a step of a loop that adds up losses with their graphs."""
    w, total = gradcore.ones(8, requires_grad=True), gradcore.zeros(())
    for _ in range(6):
        with gradcore.step(device="cpu") as step:
            loss = w.exp().sum()
            loss.backward()
            total += loss
        w.grad = None
    step.recording.save_html(path)


def test_a_graph_that_grows_without_bytes(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_step, "_ends", {})
    adding_up(tmp_path / "grows.html")
    opened = Opened(browser, tmp_path / "grows.html")
    said, _, carried = opened.page.inner_text("#warning").partition(" add_, ")
    assert said == ("The graph has grown for 4 steps, typically by 3 nodes per step, without device bytes. "
                    "Held by total in adding_up().")
    line = rf"\S*{Path(__file__).name}:\d+ in adding_up"
    # The bytes that add_ writes to, a result of full, are those of the step before.
    assert re.fullmatch(
        rf"{line}, reads a result of the previous step: full, {line}\. Did you mean loss.item\(\) or detach\(\)\?", carried)
    assert opened.complaints == []
    opened.context.close()
