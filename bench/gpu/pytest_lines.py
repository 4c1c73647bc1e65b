"""A pytest plugin that writes a line of JSON after each test, so that a run that is stopped loses none: ``-p`` its name."""

from __future__ import annotations

import json
import os

import pytest

#: The environment variable with the path of the file.
PATH = "GRADCORE_TEST_LINES"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The process that started this one is told of each test.
        return
    # A failing setup or teardown counts as a test that failed, a passing one as nothing.
    if report.when == "call" or not report.passed:
        # Of a skipped test: the file, the line and the reason.
        why = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else str(report.longrepr or "")
        with open(os.environ[PATH], "a") as file:
            print(json.dumps({"name": report.nodeid, "outcome": report.outcome, "why": why[-600:]}), file=file)
