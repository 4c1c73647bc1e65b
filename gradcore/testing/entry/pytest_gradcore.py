"""pytest's plugin: limits on the device memory of a test, and the baseline of its peaks.

It is installed outside the package, since importing gradcore imports NumPy and the engine: nothing of gradcore is imported
before a marker, a fixture or an option of this plugin is used. gradcore/testing does the work; docs/testing.md describes it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradcore.devices.device import Device
    from gradcore.report.diff import Owners
    from gradcore.testing.account import DeviceMemory, Stretch

PEAK, LEAKS = "limit_device_memory", "limit_device_leaks"
NAMED = 8

_limits = pytest.StashKey[dict[str, tuple[int, Any]]]()
_baseline = pytest.StashKey["Baseline"]()
_name = pytest.StashKey[str]()


class Baseline:
    """The recorded peaks, and those that this process and its workers have measured."""

    def __init__(self, path: Path, root: Path, recorded: dict[str, Owners], update: bool) -> None:
        self.path = path
        shown = Path(os.path.normpath(path))
        self.name = shown.relative_to(root) if shown.is_relative_to(root) else shown
        self.recorded = recorded
        self.update = update
        self.found: dict[str, Owners] = {}
        self.lost_workers = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradcore", "device memory of tests (gradcore)")
    group.addoption("--gradcore-device", choices=("meta", "cpu", "cuda"), default="cpu",
                    help="the device that gradcore's markers and fixtures account, and that the fixture gradcore_device gives")
    group.addoption("--gradcore-memory-baseline", metavar="FILE",
                    help="fail a marked test whose peak of device memory is above the one recorded in FILE")
    group.addoption("--gradcore-memory-update", action="store_true",
                    help="write the peaks of the marked tests that passed into the baseline instead")
    group.addoption("--gradcore-memory-strict", action="store_true",
                    help="fail a marked test that is not in the baseline, as a new or renamed one is not")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f'{PEAK}(size): fail the test if the peak of allocated device memory is more than size, '
                                       'such as "24 MB", above what was live before it')
    config.addinivalue_line("markers", f'{LEAKS}(size): fail the test if it leaves more than size, such as "0 B", of device '
                                       'memory live')
    if config.option.gradcore_device == "cuda":
        from gradcore.devices.availability import cuda_status

        if cuda_status().reason:
            raise pytest.UsageError(f"--gradcore-device cuda: {cuda_status().reason}")
    name, update = config.option.gradcore_memory_baseline, config.option.gradcore_memory_update
    if name is None:
        if update:
            raise pytest.UsageError("--gradcore-memory-update writes the file of --gradcore-memory-baseline: name one")
        if config.option.gradcore_memory_strict:
            raise pytest.UsageError("--gradcore-memory-strict looks for each test in the file of --gradcore-memory-baseline: "
                                    "name one")
        return
    from gradcore.testing import baseline

    # In a project's settings, the name is of a file in its root, wherever pytest is called. Workers of pytest-xdist get the
    # options, and may run in another folder.
    folders = config.invocation_params.dir, config.rootpath
    path = next((path for folder in folders if (path := folder / name).exists()), folders[0] / name)
    config.option.gradcore_memory_baseline = str(path)
    try:
        recorded = {} if update and not path.exists() else baseline.read(path)
    except FileNotFoundError:
        raise pytest.UsageError(f"there is no baseline {path}: --gradcore-memory-update writes it") from None
    except (OSError, ValueError) as error:
        raise pytest.UsageError(str(error)) from None
    if recorded and not update and not any((config.rootpath / test.partition("::")[0]).exists() for test in recorded):
        # It would be compared with nothing, and the run would pass.
        raise pytest.UsageError(f"none of the tests of the baseline {path} is in {config.rootpath}, where pytest looks for "
                                f"{next(iter(recorded))}: choose the --rootdir of the run that wrote it")
    config.stash[_baseline] = Baseline(path, config.rootpath, recorded, update)


def pytest_itemcollected(item: pytest.Item) -> None:
    if _baseline in item.config.stash:
        # pytest-xdist adds a test's group to its node id later on.
        item.stash[_name] = item.nodeid


# -- one test ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def gradcore_device(pytestconfig: pytest.Config) -> Device:
    """The device whose memory is measured: that of ``--gradcore-device``, by default the CPU."""
    from gradcore.devices.device import get_device

    return get_device(pytestconfig.option.gradcore_device)


@pytest.fixture
def device_memory(pytestconfig: pytest.Config) -> Iterator[DeviceMemory]:
    """Device memory since the start of the fixture or the last ``reset()``: peaks, live bytes, the report."""
    from gradcore.testing.account import Account, DeviceMemory

    account = Account(pytestconfig.option.gradcore_device)
    yield DeviceMemory(account)
    account.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    marks = [m for m in map(item.get_closest_marker, (PEAK, LEAKS)) if m is not None]
    if marks:
        item.stash[_limits] = {m.name: (_size(m), m.args[0]) for m in marks}


def _size(mark: pytest.Mark) -> int:
    """The limit that a marker sets, in bytes. Fails the test if it is no size."""
    from gradcore.units import parse_bytes

    why = 'one size such as "24 MB" was expected'
    if len(mark.args) == 1 and not mark.kwargs:
        try:
            return parse_bytes(mark.args[0])
        except ValueError as error:
            why = str(error)
    given = ", ".join([*map(repr, mark.args), *(f"{k}={v!r}" for k, v in mark.kwargs.items())])
    # Outside the except clause: pytest shows an exception that is being handled, too.
    pytest.fail(f"{mark.name}({given}): {why}", pytrace=False)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    if _limits not in item.stash:
        return (yield)
    from gradcore._holders import uncollected
    from gradcore.testing.account import Account

    account = Account(item.config.option.gradcore_device)
    start = account.now()
    try:
        # Nothing is checked for a test that raises, since its traceback keeps its frames and their tensors alive.
        result = yield
        with uncollected():
            stretch = account.since(start)
            elsewhere = account.elsewhere(start) if stretch.empty else []
            problems = list(_over(item, stretch))
    finally:
        account.close()
    baseline = item.config.stash.get(_baseline, None)
    # A peak above its limit is not recorded as the baseline, nor is that suggested; nor that of a test of another device.
    if baseline is not None and (not (problems or (elsewhere and baseline.update))
                                 or (item.stash[_name] in baseline.recorded and not baseline.update)):
        problems += _above(baseline, item, stretch)
    if problems:
        pytest.fail("\n\n".join(problems), pytrace=False)
    if elsewhere:
        name = account.device.name
        item.warn(pytest.PytestWarning(
            f"{item.name} is accounted on {name}, and allocated nothing there, but on {', '.join(elsewhere)}: its limits say "
            "nothing of that. Make its tensors on the fixture gradcore_device, or choose another --gradcore-device "
            f"than {name}"))
    return result


def _over(item: pytest.Item, stretch: Stretch) -> Iterator[str]:
    from gradcore._holders import holders_of
    from gradcore.devices.device import get_device
    from gradcore.reading import below
    from gradcore.testing.account import held

    root, device, limits = item.config.rootpath, item.config.option.gradcore_device, item.stash[_limits]
    limit, given = limits.get(PEAK, (stretch.peak, None))
    if stretch.peak > limit:
        tag = stretch.reached_by
        reached = [f"  reached by {tag.op} in layer {tag.layer or '(root)'}, {below(root, tag.site.full)}"] if tag else []
        yield "\n".join([
            f"device memory on {device}: the peak is {stretch.peak:,} bytes above what was live before the test, "
            f"{stretch.peak - limit:,} more than {given!r}", *reached, "held there by what the test made:",
            *held(stretch.made_at_peak(), stretch.peak, root)])
    limit, given = limits.get(LEAKS, (stretch.left, None))
    if stretch.left > limit:
        yield "\n".join([
            f"device memory on {device}: {stretch.left:,} bytes more are live after the test than before it, "
            f"{stretch.left - limit:,} more than {given!r}", "made by the test and still live:",
            *held(stretch.made_at_end(), stretch.left, root, partial(holders_of, get_device(device).ledger,
                                                                         given=_given(item))),
            "The garbage collector has not been run: a reference cycle, which only it can free, would be live, too."])


def _given(item: pytest.Item) -> dict[int, tuple[str, str]]:
    """By id of what pytest keeps for the test: what the test calls it, and where."""
    fixtures = {id(value): (name, f"the fixtures of {item.name}") for name, value in getattr(item, "funcargs", {}).items()}
    own = getattr(item, "instance", None)
    return fixtures if own is None else {**fixtures, id(own): ("self", f"{type(own).__qualname__}.{item.name}()")}


# -- the baseline ------------------------------------------------------------------------------------------------------


def _above(baseline: Baseline, item: pytest.Item, stretch: Stretch) -> Iterator[str]:
    from gradcore.testing.baseline import grown

    owners = baseline.found[item.stash[_name]] = stretch.owners(item.config.rootpath)
    before = baseline.recorded.get(item.stash[_name])
    if before is None and not baseline.update and item.config.option.gradcore_memory_strict:
        yield (f"device memory on {item.config.option.gradcore_device}: the test is not in {baseline.name}, so its peak of "
               f"{owners.peak:,} bytes is compared with nothing: --gradcore-memory-update records it")
    text = grown(before, owners) if before is not None and not baseline.update else None
    if text is not None:
        yield (f"device memory on {item.config.option.gradcore_device}: the peak is above the one in {baseline.name}\n{text}\n"
               "If it is meant to be, --gradcore-memory-update records it.")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the peaks of a worker of pytest-xdist that has ended."""
    baseline = node.config.stash.get(_baseline, None)
    if baseline is not None:
        from gradcore.testing.baseline import plain

        found = getattr(node, "workeroutput", {}).get("gradcore_memory")
        if found is None:
            baseline.lost_workers += 1
        else:
            baseline.found.update({test: plain(data) for test, data in found.items()})


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    baseline = session.config.stash.get(_baseline, None)
    if baseline is None:
        return
    from gradcore.testing.baseline import as_plain, merge, misnamed

    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["gradcore_memory"] = {test: as_plain(o) for test, o in baseline.found.items()}
    elif baseline.update and baseline.found:
        try:
            merge(baseline.path, baseline.found)
        except (OSError, ValueError) as error:
            pytest.exit(f"the baseline could not be written: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
    elif not baseline.update and (why := misnamed(baseline.recorded, baseline.found)) is not None:
        # Nothing was compared, and the run would pass.
        pytest.exit(f"none of the tests that ran is in the baseline {baseline.name} by its name: {why}: choose that --rootdir, "
                    "or write the baseline again", returncode=pytest.ExitCode.USAGE_ERROR)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    baseline = config.stash.get(_baseline, None)
    if baseline is None:
        return
    terminalreporter.ensure_newline()
    terminalreporter.section("device memory (gradcore)")
    for line in _told(baseline):
        terminalreporter.write_line(line)


def _told(baseline: Baseline) -> Iterator[str]:
    from gradcore.units import count_of

    recorded, found, name = baseline.recorded, baseline.found, baseline.name
    missing = sorted(found.keys() - recorded.keys())
    changed = sorted(t for t in found.keys() & recorded.keys() if found[t].peak != recorded[t].peak)
    smaller = [t for t in changed if found[t].peak < recorded[t].peak]
    peaks = count_of(len(found) if baseline.update else len(found) - len(missing), "peak")
    if baseline.lost_workers:
        yield f"workers that went down without their figures: {baseline.lost_workers}"
    if baseline.update and not found:
        yield f"no peak was measured, so {name} was not written"
        return
    if baseline.update:
        yield f"{peaks} written to {name}: {len(missing)} new, {len(changed)} changed"
        return
    yield f"{peaks} compared with {name}"
    if missing:
        yield f"not in it, --gradcore-memory-update writes them: {_names(missing)}"
    if smaller:
        yield f"lower than recorded, --gradcore-memory-update lowers them: {_names(smaller)}"


def _names(tests: list[str]) -> str:
    more = f" and {len(tests) - NAMED} more" if len(tests) > NAMED else ""
    return ", ".join(tests[:NAMED]) + more
