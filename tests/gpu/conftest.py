"""Tests that need a GPU: each is skipped with the reason where there is none."""

from __future__ import annotations

import pytest

from gradcore.devices.availability import cuda_status


def pytest_collection_modifyitems(items):
    status = cuda_status()
    for item in items:
        if "tests/gpu/" in str(item.path).replace("\\", "/"):
            item.add_marker("gpu")
            if not status.available:
                item.add_marker(pytest.mark.skip(reason=f"no GPU: {status.reason}"))
