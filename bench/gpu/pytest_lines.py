"""A pytest plugin that writes a line of JSON after each test, so that a run that is stopped loses none: ``-p`` its name."""

from __future__ import annotations

import json
import os

import pytest

#: The environment variable with the path of the file.
PATH = "GRADCORE_TEST_LINES"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # A failing setup or teardown counts as a test that failed, a passing one as nothing.
    if report.when == "call" or not report.passed:
        why = str(report.longrepr)[-600:] if report.failed else ""
        with open(os.environ[PATH], "a") as file:
            print(json.dumps({"name": report.nodeid, "outcome": report.outcome, "why": why}), file=file)
