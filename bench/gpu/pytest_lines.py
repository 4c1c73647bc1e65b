"""A pytest plugin that writes a line of JSON after each test, so that a run that is stopped loses none: ``-p`` its name."""

from __future__ import annotations

import json
import os

import pytest

#: The environment variable with the path of the file.
PATH = "GRADCORE_TEST_LINES"


def pytest_configure(config: pytest.Config) -> None:
    # The process that started xdist's workers is told of each test. (Their environment variable is also in what they start.)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Lines())


class _Lines:
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A failing setup or teardown counts as a test that failed, a passing one as nothing.
        if report.when == "call" or not report.passed:
            # Of a skipped test: the file, the line and the reason.
            why = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else str(report.longrepr or "")
            with open(os.environ[PATH], "a") as file:
                print(json.dumps({"name": report.nodeid, "outcome": report.outcome, "why": why[-600:]}), file=file)
