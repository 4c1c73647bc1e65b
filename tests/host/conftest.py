"""Fixtures: a browser, for one module at a time since its driver keeps an event loop; a simulated GPU with capture; others."""

from __future__ import annotations

import gc
import shutil
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.host.reports.browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; without it the test is skipped with a message that says what is missing."""
    with chromium() as found:
        yield found


@pytest.fixture
def tracing() -> Iterator[None]:
    """Trace the memory that Python and NumPy allocate."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Reference counts alone free what is given up."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture(scope="session")
def captured_kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernels that tests of captured programs launch, for the CPU."""
    pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: the emulator cannot be compiled")
    from tests.host.cuda.captured_steps import launched
    from tests.host.cuda.graph_bed import emulator_of

    return emulator_of(tmp_path_factory.mktemp("captured"), launched)


@pytest.fixture
def bed(captured_kernels: Any) -> Iterator[Any]:
    """A simulated GPU with graph capture in place of the real one; checks that no capture is left afterwards."""
    from tests.host.cuda.graph_bed import Bed

    with Bed(captured_kernels).in_place() as found:
        yield found
        found.card.deviceSynchronize()
        assert found.card.wrong == [] and found.card.graphs == {} and found.card.capturing == {}
        assert found.device.memory is found.device.stack.top and found.device.bridge.capturing is None
