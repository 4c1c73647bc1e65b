"""A pytest plugin that writes lines of JSON about each test, so that a run that is stopped loses none: ``-p`` its name.

A test that hangs, or after which the device is unusable, ends the process; the next run leaves out all tests that have lines.
Workers of pytest-xdist write none: the process that started them is told of their tests, and replaces one that ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

#: The environment variables with the path of the file, and with the seconds that a test may take.
PATH, MOST = "GRADCORE_TEST_LINES", "GRADCORE_TEST_SECONDS"
#: The exit code of a process whose device is unusable, which pytest has no use for.
SPOILT = 97
# Before pytest captures what tests print.
_stderr = os.dup(2)


def pytest_addoption(parser: pytest.Parser) -> None:
    if find_spec("pytest_timeout") is None:
        # The project's settings have it, and an unknown one is an error.
        parser.addini("timeout", "pytest-timeout is not installed")


def pytest_configure(config: pytest.Config) -> None:
    alone = not hasattr(config, "workerinput")
    if alone:
        config.pluginmanager.register(_Lines())
    if not (alone and getattr(config.option, "numprocesses", None)):
        config.pluginmanager.register(_Ends())


def spoilt() -> bool:
    """Has a kernel's fault made the device unusable for this process?"""
    runtime = sys.modules.get("cupy.cuda.runtime")
    if runtime is None:
        return False
    from gradcore.devices.gpu.faults import FAULTS

    try:
        runtime.deviceSynchronize()
    except runtime.CUDARuntimeError as error:
        return error.status in FAULTS
    return False


def _write(**line: Any) -> None:
    with open(os.environ[PATH], "a") as file:
        print(json.dumps(line), file=file)


class _Lines:
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        try:
            with open(os.environ[PATH]) as file:
                done = {json.loads(line)["name"] for line in file if line.endswith("}\n")}
        except FileNotFoundError:
            return
        left_out = [item for item in items if item.nodeid in done]
        items[:] = [item for item in items if item.nodeid not in done]
        config.hook.pytest_deselected(items=left_out)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        _write(name=nodeid, outcome="started")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A failing setup or teardown counts as a test that failed, a passing one as nothing.
        if report.when == "call" or not report.passed:
            # Of a skipped test: the file, the line and the reason.
            why = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else str(report.longrepr or "")
            _write(name=report.nodeid, outcome=report.outcome, why=why[-600:])


class _Ends:
    """In a process that runs tests."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[Any]:
        faulthandler.dump_traceback_later(float(os.environ[MOST]), exit=True, file=_stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    # After others have passed the report on.
    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and spoilt():
            os._exit(SPOILT)
