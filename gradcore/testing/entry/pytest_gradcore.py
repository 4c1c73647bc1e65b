"""Device memory in pytest: two markers, a fixture, a baseline. docs/questions.md shows them.

It stands outside the package, for importing any part of gradcore imports all of it: a test run that uses none of this
imports this file alone.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

_MARKERS = (
    "limit_device_memory(size, whole=False): fails where the test has more bytes of its own live at once on a device, such as "
    "'24 MB'; with whole=True what was live before the test counts too",
    "limit_device_leaks(size): fails where more bytes that the test made are live after its fixtures have gone, such as '0 B'")
_NAMES = tuple(marker.partition("(")[0] for marker in _MARKERS)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradcore", "device memory (gradcore)")
    group.addoption("--gradcore-device", choices=("cpu", "meta", "cuda"),
                    help="what device_memory.device is; meta computes nothing and takes the same memory (default cpu)")
    group.addoption("--gradcore-memory-baseline", metavar="FILE",
                    help="fail a test that uses device_memory or one of the limits where its peak is higher than FILE says")
    group.addoption("--gradcore-memory-update", action="store_true",
                    help="write the peaks of the tests that pass to the baseline instead")


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    options = ("gradcore_device", "gradcore_memory_baseline", "gradcore_memory_update")
    if any(config.getoption(name) for name in options):
        from gradcore.testing import pytest_plugin

        pytest_plugin.configure(config)


def _is_watched(item: pytest.Item) -> bool:
    return "device_memory" in getattr(item, "fixturenames", ()) or any(map(item.get_closest_marker, _NAMES))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    if _is_watched(item):
        from gradcore.testing import pytest_plugin

        pytest_plugin.prepare(item)
    return (yield)


# The last to begin and the first to end, so that what it counts is the test's alone.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    if not _is_watched(item):
        return (yield)
    from gradcore.testing import pytest_plugin

    return (yield from pytest_plugin.call(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    if _is_watched(item):
        from gradcore.testing import pytest_plugin

        pytest_plugin.look_for_leaks(item)
    return result


@pytest.fixture
def device_memory(request: pytest.FixtureRequest) -> Any:
    """What the test makes on the devices, as a :class:`gradcore.testing.memory.DeviceMemory`, and the device to make it on."""
    from gradcore.testing import pytest_plugin

    return pytest_plugin.device_memory(request.node)
