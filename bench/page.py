"""Speed of the report's page in a browser: ``python -m bench.page``.

Headless Chromium opens the page of a step with many records. Printed are the milliseconds until the page is complete, until
another instant or grouping is shown (script only), and between frames while the pointer moves over the timeline.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path

from tests.host.reports.browser import executable
from tests.host.reports.made_steps import long_step

_TIMED = """async () => {
    const time = (act, times) => {
        const began = performance.now();
        for (let i = 0; i < times; i++) act(i);
        return (performance.now() - began) / times;
    };
    const at = (i) => Math.floor(view.log.length * (0.2 + 0.6 * ((i * 37) % 100) / 100));
    return { unfold: time(() => new Log(view.recording.log), 3), instant: time((i) => pick(at(i)), 20),
             group: time(() => group(view.at), 5), draw: time(() => timeline.draw(), 10),
             point: time((i) => timeline.point(at(i)), 100), search: time(() => owners.draw(), 10) };
}"""
_FRAMES = """() => {
    window.frames_ = [];
    const next = (now) => { window.frames_.push(now); requestAnimationFrame(next); };
    requestAnimationFrame(next);
}"""


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[1000, 10_000, 100_000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        for events in options.events:
            recording = long_step(events)
            path = Path(folder) / f"{events}.html"
            recording.save_html(path)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(path.as_uri())
            stands = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
            costs = page.evaluate(_TIMED)
            page.evaluate(_FRAMES)
            box = page.locator("#cursor").bounding_box()
            for i in range(150):
                page.mouse.move(box["x"] + 80 + 7 * i, box["y"] + 100)
            shown = page.evaluate("window.frames_")
            gaps = sorted(b - a for a, b in pairwise(shown))
            print(f"{len(recording.records)} records, {path.stat().st_size / 1e6:.1f} MB: shown after {stands:.0f} ms; "
                  + ", ".join(f"{name} {cost:.2f}" for name, cost in costs.items())
                  + f"; frames while pointing: median {statistics.median(gaps):.1f}, longest {gaps[-1]:.1f}")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
