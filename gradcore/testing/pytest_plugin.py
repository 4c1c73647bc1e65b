"""What the hooks of ``pytest_gradcore`` do for a test that uses them."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gradcore.devices.device import Device, get_device
from gradcore.errors import DeviceError
from gradcore.report.plain import read
from gradcore.testing import baseline
from gradcore.testing.memory import DeviceMemory, Watch, owners
from gradcore.units import format_bytes, parse_bytes

_watch = pytest.StashKey[Watch]()
_passed = pytest.StashKey[bool]()
_device = pytest.StashKey[Device]()
_baseline = pytest.StashKey[dict[str, baseline.Entry]]()
#: Under this name a test's report takes its figures from where it ran to where they are written.
PROPERTY = "gradcore_memory"


def configure(config: pytest.Config) -> None:
    """Read the options. Raises UsageError for a device that is not there and a baseline that cannot be read."""
    try:
        config.stash[_device] = get_device(config.getoption("gradcore_device") or "cpu")
        if name := config.getoption("gradcore_memory_baseline"):
            path = config.invocation_params.dir / name
            update = config.getoption("gradcore_memory_update")
            if not path.exists() and not update:
                raise ValueError(f"there is no baseline {name}: --gradcore-memory-update makes it")
            config.stash[_baseline] = baseline.load(path) if path.exists() else {}
            # Workers of pytest-xdist compare; the one that started them writes.
            if not hasattr(config, "workerinput"):
                config.pluginmanager.register(Summary(config, path, update), "gradcore-memory-baseline")
        elif config.getoption("gradcore_memory_update"):
            raise ValueError("--gradcore-memory-update needs --gradcore-memory-baseline FILE")
    except (DeviceError, ValueError, OSError) as error:
        raise pytest.UsageError(str(error)) from error


def prepare(item: pytest.Item) -> None:
    """Before the test's fixtures. A limit that is none fails the test here."""
    item.stash[_watch] = Watch()
    item.stash[_passed] = False
    for name in ("limit_device_memory", "limit_device_leaks"):
        _limit(item, name)


def device_memory(item: pytest.Item) -> DeviceMemory:
    """The value of the fixture of that name."""
    if _watch not in item.stash:
        pytest.fail(f"{item.nodeid} is not watched: ask for device_memory by an argument or by usefixtures", pytrace=False)
    return DeviceMemory(item.stash[_watch], item.config.stash.get(_device, None) or get_device("cpu"))


def call(item: pytest.Item) -> Generator[None, Any, Any]:
    """The test, watched; it fails where it took more than its limit or than the baseline says."""
    watch = item.stash[_watch]
    watch.begin()
    try:
        result = yield
    finally:
        watch.end()
    reasons = []
    limit = _limit(item, "limit_device_memory")
    if limit is not None:
        measured = watch.measured(_is_whole(item))
        if measured.allocated > limit:
            taken = f"{measured.allocated:,} bytes ({format_bytes(measured.allocated)}) of device memory at the peak"
            reasons.append(f"{taken} are {measured.allocated - limit:,} more than the limit of {limit:,}\n{measured}")
    if _baseline in item.config.stash:
        found = baseline.entry(watch.measured(), item.config.rootpath)
        item.user_properties.append((PROPERTY, dataclasses.asdict(found)))
        before = item.config.stash[_baseline].get(item.nodeid)
        if before is not None and not item.config.getoption("gradcore_memory_update"):
            reasons += filter(None, [baseline.growth(before, found)])
    if reasons:
        pytest.fail(f"{item.nodeid}: " + "\n".join(reasons), pytrace=False)
    item.stash[_passed] = True
    return result


def look_for_leaks(item: pytest.Item) -> None:
    """After the test's fixtures have gone. A test that failed is not asked: its traceback holds its tensors."""
    watch, item.stash[_watch] = item.stash[_watch], Watch()
    limit = _limit(item, "limit_device_leaks") if item.stash[_passed] else None
    if limit is None:
        return
    # The values of fixtures that have ended hang on here until this hook returns.
    getattr(item, "funcargs", {}).clear()
    gc.collect()
    for device, holders in watch.live():
        left = sum(h.allocated for h in holders)
        if left > limit:
            text = (f"{item.nodeid}: {left:,} bytes of device memory that the test made are still live on {device}, "
                    f"{left - limit:,} more than the limit of {limit:,}:")
            pytest.fail("\n".join([text, *owners(holders)]), pytrace=False)


class Summary:
    """Gathers the figures of a run, of all its workers, and writes them or says how they compare."""

    def __init__(self, config: pytest.Config, path: Path, update: bool) -> None:
        self._path = path
        self._update = update
        self._before = config.stash[_baseline]
        self._found: dict[str, baseline.Entry] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            figures = dict(report.user_properties).get(PROPERTY)
            if figures is not None and (report.passed or not self._update):
                self._found[report.nodeid] = read(baseline.Entry, figures)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if self._update:
            # Tests that were not run keep their figures.
            baseline.save(self._path, {**self._before, **self._found})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        new = len(self._found.keys() - self._before.keys())
        name = self._path.name
        if self._update:
            text = f"{len(self._found)} peaks of device memory were written to {name}"
        else:
            fewer = len(list(baseline.less(self._before, self._found)))
            same = len(self._found) - new
            text = (f"{same} peaks of device memory were compared with {name}, {fewer} are lower, and {new} are not in it"
                    + (": --gradcore-memory-update writes them" if new + fewer else ""))
        terminalreporter.write_line(f"gradcore: {text}")


def _limit(item: pytest.Item, name: str) -> int | None:
    marker = item.get_closest_marker(name)
    if marker is None:
        return None
    sizes = [*marker.args, *(v for k, v in marker.kwargs.items() if k == "size")]
    known = {"size", "whole"} if name == "limit_device_memory" else {"size"}
    reason = f"one size was expected{', and whole=True besides' if len(known) > 1 else ''}"
    if len(sizes) == 1 and marker.kwargs.keys() <= known:
        try:
            return parse_bytes(sizes[0])
        except ValueError as error:
            reason = str(error)
    given = ", ".join([*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items())])
    pytest.fail(f"{item.nodeid}: {name}({given}): {reason}", pytrace=False)


def _is_whole(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("limit_device_memory")
    return marker is not None and bool(marker.kwargs.get("whole", False))
