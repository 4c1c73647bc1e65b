"""A headless browser, if one is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gradcore import folds
from gradcore.events import Alloc
from gradcore.reading import short_path
from gradcore.report import Recording

#: The names of Chromium's executable in different packages.
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def executable() -> str | None:
    """The browser that ``GRADCORE_BROWSER`` names, or one that is installed."""
    return os.environ.get("GRADCORE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """A Chromium controlled by Playwright; without either, the tests are skipped with a message that says what to install."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("Playwright is not installed: pip install -e '.[browser]'")
    path = executable()
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium, or name one in GRADCORE_BROWSER")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium does not run as root with its sandbox; it only opens files of the tests here.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """A page opened from disk, with its errors and warnings, and all its requests."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def texts(self, selector: str) -> list[str]:
        """The stripped text of every matching element."""
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]

    def rows(self) -> list[list[str]]:
        """The table of live allocations: a list of cells for each row."""
        return self.page.evaluate("[...byId('owners-rows').children].map(row => [...row.children].map(c => c.textContent))")

    def details(self) -> dict[str, str]:
        """The details of the chosen allocation, by name."""
        return dict(zip(self.texts("#detail-rows dt"), self.texts("#detail-rows dd"), strict=True))


def expected(recording: Recording, position: int) -> list[list[str]]:
    """The live allocations after a record, as the table shows them when the page opens: the largest first."""
    made = {r.serial: i for i, r in enumerate(recording.records) if isinstance(r, Alloc)}
    holders = sorted(folds.live_at(recording.records, position), key=lambda h: -h.allocated)
    return [[f"{h.allocated:,}", h.role, h.tag.op, h.tag.layer or "(root)",
             "x".join(map(str, h.tag.spec.shape)) or "scalar" if h.tag.spec else "bytes",
             h.tag.spec.dtype.name if h.tag.spec else "", f"{short_path(str(h.tag.site))} in {h.tag.site.function}",
             f"{made[h.serial]:,}"] for h in holders]
