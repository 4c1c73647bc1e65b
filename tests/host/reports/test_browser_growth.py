"""The page of a run that grows says, in a real browser, what has grown, what holds it and what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import _step
from gradcore.reading import short_path
from tests.host.reports.browser import Opened


@pytest.mark.parametrize(("every", "said"), [(1, "4 steps, typically by 4,000 requested bytes per step"),
                                             (5, "20 steps, typically by 4,000 requested bytes every 5 steps")])
def test_growth(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, said: str) -> None:
    monkeypatch.setattr(_step, "_ends", {})
    kept = []
    for k in range(4 * every + 1):
        with gradcore.step(device="cpu") as step:
            if k % every == 0:
                kept.append(gradcore.ones(1000))
    path = tmp_path / "grows.html"
    step.recording.save_html(path)
    opened = Opened(browser, path)
    growth = step.report.growth
    assert growth is not None
    (line,) = (g.line for g in growth.grown)
    assert opened.page.inner_text("#warning") == (
        f"Live bytes have grown for {said}. Most of it: 20,480 bytes in 5 results of full in (root), {short_path(line)}, "
        "held by kept[0] in test_growth().")
    assert opened.complaints == []
    opened.context.close()
    # The browser's calls leave frames in a cycle.
    kept.clear()


def test_growth_that_a_step_carries_on(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_step, "_ends", {})
    weight, total = gradcore.ones(1000, requires_grad=True), [gradcore.zeros(())]
    for _ in range(5):
        with gradcore.step(device="cpu") as step:
            total.append(total.pop() + weight.exp().sum())
            total[0].backward(retain_graph=True)
    step.recording.save_html(tmp_path / "carries.html")
    growth = step.report.growth
    assert growth is not None
    link = growth.carried[0]
    # The browser's calls leave frames in a cycle.
    total.clear()
    del weight
    opened = Opened(browser, tmp_path / "carries.html")
    said = opened.page.inner_text("#warning")
    assert (f"add, {short_path(link.reader_line)}, reads a result of the previous step: add, {short_path(link.line)}. "
            "Did you mean loss.item() or detach()?") in said
    assert "the graph of total[0] in test_growth_that_a_step_carries_on(), which backward ran with retain_graph. " in said
    opened.context.close()
