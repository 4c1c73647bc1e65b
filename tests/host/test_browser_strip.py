"""The strip of a run's steps in a real browser, pixel by pixel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradcore.report import Run, StepFigures
from gradcore.report.html import Named, page, save
from tests.host.browser import Opened
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
