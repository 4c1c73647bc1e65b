"""Tests that need a GPU: without one, each is skipped with the reason. Allocations that no op declares are errors in them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gradcore.devices.availability import cuda_status
from gradcore.errors import UndeclaredAllocation

if cuda_status().available:
    # Now, since the device reads it when it is first used.
    os.environ.setdefault("GRADCORE_STRICT", "1")


def pytest_collection_modifyitems(items):
    status = cuda_status()
    if not status.available and "GRADCORE_ON_CARD" in os.environ:
        raise pytest.UsageError(f"the tests' card was not found: {status.reason}")
    for item in items:
        if "tests/gpu/" in str(item.path).replace("\\", "/"):
            item.add_marker("gpu")
            if not status.available:
                item.add_marker(pytest.mark.skip(reason=f"no GPU: {status.reason}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """On the simulated GPU (``tests/card``), faults that a device would report fail the test, and a test that needs kernels
    other than ours is skipped."""
    found = sys.modules.get("tests.card.session")
    session = None if found is None else found.SESSION
    if session is None:
        return (yield)
    faults, others = len(session.card.faults), Counter(session.others)
    result = None
    try:
        result = yield
    except Exception as error:
        # Values are wrong where others' kernels have not run.
        if session.others == others or isinstance(error, UndeclaredAllocation):
            raise
    assert not session.card.faults[faults:]
    if session.others != others:
        pytest.skip(f"the tests' card runs our kernels alone, and others were launched: {', '.join(session.others - others)}")
    return result
