"""The functions of the CUDA runtime that gradcore calls exist in CuPy: names, arguments and their order, without a driver."""

from __future__ import annotations

import inspect

import pytest

runtime = pytest.importorskip("cupy.cuda.runtime", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from gradcore import cuda  # noqa: E402
from gradcore.memory.driver import CudaDriver, Runtime  # noqa: E402
from gradcore.memory.resource import Stream  # noqa: E402
from gradcore.report.driver import DriverAccount  # noqa: E402

#: CuPy's names of the arguments, in the order in which they are given.
ARGUMENTS = {
    "setDevice": "device", "malloc": "size", "free": "ptr", "hostAlloc": "size flags", "freeHost": "ptr",
    "streamCreateWithPriority": "flags priority", "streamQuery": "stream", "streamSynchronize": "stream",
    "streamWaitEvent": "stream event flags", "eventCreateWithFlags": "flags", "eventDestroy": "event",
    "eventRecord": "event stream", "eventQuery": "event", "eventSynchronize": "event", "eventElapsedTime": "start end",
    "deviceSynchronize": "", "memcpyAsync": "dst src size kind stream", "memsetAsync": "ptr value size stream",
    "pointerGetAttributes": "ptr", "deviceGetPCIBusId": "device", "memGetInfo": "",
    "streamBeginCapture": "stream mode", "streamEndCapture": "stream", "streamIsCapturing": "stream",
    "graphInstantiate": "graph", "graphDestroy": "graph", "graphLaunch": "graphExec stream", "graphExecDestroy": "graphExec"}

pytestmark = pytest.mark.skipif(cuda.is_available(), reason="this machine has a GPU: the calls would do something")


def test_the_protocol_is_covered():
    asked = {name: len(inspect.signature(call).parameters) - 1 for name, call in vars(Runtime).items()
             if inspect.isfunction(call) and not name.startswith("_")}
    assert asked == {name: len(ARGUMENTS[name].split()) for name in asked}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_call_takes_what_it_is_given(name):
    def call(words):
        try:
            return getattr(runtime, name)(**dict.fromkeys(words, 0))
        except runtime.CUDARuntimeError as error:
            return error.status

    # The error, or the status of a query, must be that the driver is missing, and not that an argument is unknown.
    assert call(ARGUMENTS[name].split()) in (35, 100)
    with pytest.raises(TypeError):
        call(["nothing_of_this_name", *ARGUMENTS[name].split()])


def test_queries_that_fail_are_errors():
    driver = CudaDriver(runtime)
    with pytest.raises(runtime.CUDARuntimeError):
        driver.event_done(0)
    with pytest.raises(runtime.CUDARuntimeError):
        driver.stream_done(Stream(0, 0))


def test_an_account_without_a_driver_says_why(monkeypatch):
    monkeypatch.setattr(runtime, "setDevice", lambda device: None)
    found = DriverAccount(0, runtime).figures(0, [])
    assert found.used is None and found.source.startswith("NVML: ")
