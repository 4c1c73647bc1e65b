"""Fixtures of all tests: the garbage collector is off, and no memory that a test allocated is live at its end."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import gradcore
from gradcore import _step
from gradcore.devices.availability import cuda_status
from gradcore.program.watching import newness
from tests.host.cuda.compiled import shared_folder

T = TypeVar("T")
INSTALL_TORCH = "torch is not installed: pip install -e '.[oracle]'"

_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--passed-to", metavar="FILE", help="write the names of the tests that pass to FILE")
    parser.addoption("--not-again", metavar="FILE", help="leave out the tests whose names are in FILE, but those that are "
                     "marked extras")


class _Passed:
    """Writes the names of the tests that pass, once all have run and none has failed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.names.append(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK:
            self.path.write_text("".join(f"{name}\n" for name in self.names), encoding="utf-8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (path := config.getoption("--not-again")) is None:
        return
    passed = set(Path(path).read_text(encoding="utf-8").splitlines())
    again = [item.nodeid not in passed or item.get_closest_marker("extras") is not None for item in items]
    config.hook.pytest_deselected(items=[item for item, more in zip(items, again, strict=True) if not more])
    items[:] = [item for item, more in zip(items, again, strict=True) if more]


def pytest_configure(config: pytest.Config) -> None:
    # The workers of pytest-xdist report to the process that started them.
    if (path := config.getoption("--passed-to")) is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Passed(Path(path)))
    if os.environ.get("GRADCORE_REQUIRE_ORACLE") == "1" and importlib.util.find_spec("torch") is None:
        raise pytest.UsageError(f"GRADCORE_REQUIRE_ORACLE=1, but {INSTALL_TORCH}")
    sharing = shared_folder()
    sharing.__enter__()
    config.add_cleanup(lambda: sharing.__exit__(None, None, None))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadgroup":
        return None
    from tests.scheduling import Runs

    return Runs(config, log)


def torch_or_skip() -> Any:
    """torch, on one thread; without it, the test is skipped with a message that says how to install it."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip(INSTALL_TORCH)
    return _torch()


@functools.cache
def _torch() -> Any:
    import torch

    torch.set_num_threads(1)
    # The first backward and the first optimizer import more of torch, which keeps the importing frames alive: not a test's.
    x = torch.zeros(1, requires_grad=True)
    (x * x).sum().backward()
    torch.optim.SGD([x], lr=0.1).step()
    return torch


@pytest.fixture
def torch() -> Any:
    found = torch_or_skip()
    # Otherwise the weights that a test draws depend on the tests before it. (torch.manual_seed also prepares the generators of
    # devices that are not there, and formats the stack for each: 0.4 ms, ten thousand times.)
    found.default_generator.manual_seed(0)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    # A test that is skipped from inside leaves its frames behind, too.
    stopped = report.failed or (report.skipped and call.when == "call")
    if call.when == "call":
        item.stash[_failed] = stopped
    if stopped:
        item.session.stash[_failed] = True
    return report


def _forget_what_failed(session: pytest.Session) -> None:
    """Release a failed test's frames, which keep its tensors alive, before the next test, which may need an empty pool."""
    if session.stash.get(_failed, False):
        session.stash[_failed] = False
        sys.last_type = sys.last_value = sys.last_traceback = None
        gc.unfreeze()
        gc.collect()


def pytest_collection_finish(session: pytest.Session) -> None:
    default_generators()


def default_generators() -> None:
    """Create the default generators, which live as long as the process, before any test, so that they count for none."""
    _devices()
    gradcore.manual_seed(0)
    if cuda_status().available:
        from gradcore.devices.gpu.workspaces import shared

        shared()
        _first[:] = _registered()


def _devices() -> list[Any]:
    """The devices of every kind that is available."""
    return [gradcore.device(name) for name in ("cpu", "meta", "cuda") if name != "cuda" or cuda_status().available]


def replaceable() -> dict[str, Any]:
    """What simulated GPUs replace: the functions through which launches and products go, of modules that are loaded."""
    names = {"launch": ("launch", "clear"), "gemm": ("library", "current_stream", "runtime")}
    return {f"{file}.{name}": getattr(module, name) for file in names
            if (module := sys.modules.get(f"gradcore.devices.gpu.{file}")) for name in names[file]}


def _registered() -> list[tuple[dict[Any, Any], dict[Any, Any]]]:
    """What a GPU registers under its number, with the content; nothing without a GPU. A simulated one takes its place."""
    if not cuda_status().available:
        return []
    from gradcore.devices.gpu import loaded as gpu_loaded
    from gradcore.devices.gpu import workspaces as gpu_workspaces

    return [(held, held.copy()) for held in (gpu_workspaces.RESERVES, gpu_workspaces.FLUSHES, gpu_workspaces.SHARED,
                                             gpu_loaded.FIGURES)]


#: What was registered before any test.
_first: list[tuple[dict[Any, Any], dict[Any, Any]]] = []


def _register_again(registered: list[tuple[dict[Any, Any], dict[Any, Any]]]) -> None:
    for held, content in registered:
        held.clear()
        held.update(content)


@pytest.fixture(autouse=True, scope="module")
def a_gpu_keeps_its_place() -> Iterator[None]:
    """Else kernels on the GPU would find the memory of a simulated one that a fixture of the module before made."""
    # A fixture of the session may have made a simulated one before.
    _register_again(_first)
    yield
    _register_again(_first)


@pytest.fixture(autouse=True)
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Turn the collector off during the test, and check that afterwards no block is live that was not live before.

    The tests before it are no part of its history: the pools are empty, and steps are counted anew. Only passing tests are
    checked, since a failed test keeps its frames for the report. (The only fixture of all tests: each costs a tenth of a
    millisecond, forty thousand times.)
    """
    if request.node.get_closest_marker("oracle") is not None:
        # Loaded before the test has frames that an import could keep alive.
        request.getfixturevalue("torch")
    watched = _devices()
    _forget_what_failed(request.session)
    gradcore.manual_seed(0)
    for device in watched:
        gradcore.empty_cache(device)
    _step._ends.clear()
    before = [set(device.ledger.live) for device in watched]
    replaced, registered = replaceable(), _registered()
    gc.disable()
    # Exclude loaded modules from the collections below: torch's alone would cost a tenth of a second per test.
    gc.freeze()
    newness.frozen = None
    try:
        yield
        if not request.node.stash.get(_failed, False) and request.node.get_closest_marker("keeps_bytes") is None:
            for device, old in zip(watched, before, strict=True):
                left = {serial: b for serial, b in device.ledger.live.items() if serial not in old}
                assert not left, f"still live on {device.name}: " + "; ".join(
                    f"{b.requested} bytes, {b.tag.role} of {b.tag.op}, {b.tag.site}"
                    for b in left.values())
        # The fixture monkeypatch is undone after a block that replaced the same function, and puts that block's back.
        left_over = [name for name, function in replaced.items() if replaceable()[name] is not function]
        assert not left_over, f"still replaced after the test: {left_over}"
    finally:
        _register_again(registered)
        gc.collect()
        gc.enable()


def collector(table: dict[str, T]) -> Callable[[T], T]:
    """A decorator that puts functions into a table, by their names with spaces in the place of underscores."""
    def collected(fn: Any) -> Any:
        table[fn.__name__.replace("_", " ")] = fn
        return fn

    return collected


class raises:
    """As ``pytest.raises``, for several texts that must all appear; it keeps no traceback, which would keep tensors alive."""

    def __init__(self, kind: type[BaseException] | tuple[type[BaseException], ...], *texts: str) -> None:
        self.kind = kind
        self.texts = texts
        self.text = ""

    def __enter__(self) -> raises:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        assert error is not None, f"expected {self.kind}, but nothing was raised"
        if not isinstance(error, self.kind):
            return False
        self.text = str(error)
        missing = [t for t in self.texts if t not in self.text]
        assert not missing, f"{missing} not in {self.text!r}"
        return True
