"""Tests that need a GPU: each is skipped with the reason where there is none."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gradcore.devices.availability import cuda_status


def pytest_collection_modifyitems(items):
    status = cuda_status()
    for item in items:
        if "tests/gpu/" in str(item.path).replace("\\", "/"):
            item.add_marker("gpu")
            if not status.available:
                item.add_marker(pytest.mark.skip(reason=f"no GPU: {status.reason}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """On the tests' own card (``tests/card``) a test tells nothing that needs more kernels than ours."""
    found = sys.modules.get("tests.card.session")
    others = found.SESSION.others if found is not None and found.SESSION is not None else Counter()
    before = others.copy()
    try:
        result = yield
    except Exception:
        if others == before:
            raise
        result = None
    if others != before:
        pytest.skip(f"the tests' card runs our kernels alone, and others were launched: {', '.join(others - before)}")
    return result
