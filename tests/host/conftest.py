"""A browser for the tests that need one: a module at a time, since its driver keeps an event loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.host.browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, or the test is skipped and says what is missing."""
    with chromium() as found:
        yield found
