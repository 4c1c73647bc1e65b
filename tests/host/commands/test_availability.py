"""Why a GPU is not usable, and what to install, with mocks of the driver and the runtime."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gradcore.devices import availability
from gradcore.devices.availability import CudaStatus, find_status
from gradcore.errors import DeviceError

pytestmark = pytest.mark.extras


class Refused(Exception):
    """An error as CuPy's runtime raises it: a number and a text."""

    def __init__(self, status):
        super().__init__(f"cudaError {status}")
        self.status = status


def machine(devices=1, capability=(8, 0), error=None, version=13020):
    """A runtime that works."""

    def count():
        if error:
            raise error
        return devices

    return SimpleNamespace(getDeviceCount=count, runtimeGetVersion=lambda: version, getDeviceProperties=lambda index: {
        "major": capability[0], "minor": capability[1], "name": b"Tesla P100"})


def no_nvrtc():
    raise ImportError("libnvrtc.so.13 is missing")


NVRTC = SimpleNamespace(getVersion=lambda: (13, 0))


@pytest.mark.parametrize(("driver", "cupy", "cuda", "compiler", "words"), [
    (None, True, None, None, "no NVIDIA driver was found (libcuda.so.1): install one from nvidia.com/drivers"),
    ((12, 4), False, None, None, "a driver for CUDA 12.4 is present, but CuPy is not installed: pip install 'gradcore[cuda12]"),
    ((12, 4), True, machine(error=Refused(35)), NVRTC,
     "a driver for CUDA 12.4 is present, but CuPy was built for CUDA 13.2, which is newer: pip install 'gradcore[cuda12]', or "
     "install a driver for CUDA 13 or newer"),
    ((11, 8), True, machine(error=Refused(35)), NVRTC, "which is newer: install a driver for CUDA 12 or newer"),
    ((13, 0), True, machine(error=Refused(100)), NVRTC, "the driver reports no device: check CUDA_VISIBLE_DEVICES"),
    ((13, 0), True, machine(devices=0), NVRTC, "the driver reports no device: check CUDA_VISIBLE_DEVICES"),
    ((13, 0), True, machine(error=Refused(999)), NVRTC, "CuPy cannot use it (cudaError 999): pip install 'gradcore[cuda13]'"),
    ((13, 0), True, machine(error=Refused(2)), NVRTC, "present, but it cannot be used (cudaError 2): its memory is full"),
    ((13, 0), True, machine(error=Refused(3)), NVRTC, "start the process with multiprocessing.get_context('spawn')"),
    ((13, 0), True, machine(error=Refused(46)), NVRTC, "it is busy: end the process that has it for itself"),
    ((13, 0), True, machine(error=Refused(802)), NVRTC, "need the service nvidia-fabricmanager"),
    ((13, 0), True, machine(error=Refused(803)), NVRTC, "restart the machine after an update of the driver"),
    ((13, 0), True, machine(error=Refused(804)), NVRTC, "remove them from LD_LIBRARY_PATH"),
    ((13, 0), True, machine(error=ImportError("broken")), NVRTC, "CuPy cannot be loaded, or lacks NVRTC"),
    ((13, 0), True, machine(error=PermissionError(13, "Permission denied", "/.cupy")), NVRTC,
     "CuPy cannot be loaded ([Errno 13] Permission denied: '/.cupy'): it keeps machine code in ~/.cupy/kernel_cache, so set"),
    ((13, 0), True, machine(), SimpleNamespace(getVersion=no_nvrtc),
     "lacks NVRTC, which compiles the kernels (libnvrtc.so.13 is missing): pip install 'gradcore[cuda13]'"),
    ((13, 0), True, machine(capability=(6, 0)), NVRTC,
     "cuda:0 (Tesla P100) has compute capability 6.0, and the kernels need 7.5 or newer (Turing)"),
])
def test_what_stands_in_the_way_of_a_gpu(driver, cupy, cuda, compiler, words, monkeypatch):
    status = find_status(driver, cupy, cuda, compiler)
    assert not status.available
    assert words in status.reason
    monkeypatch.setattr(availability, "cuda_status", lambda: status)
    with pytest.raises(DeviceError, match="cuda is not available: ") as found:
        availability.choose_device("cuda")
    assert words in str(found.value)
    device, note = availability.choose_device("auto")
    assert device.name == "cpu"
    assert note == (f"Running on the CPU: {status.reason}" if driver else None)


def test_nothing_stands_in_the_way():
    assert find_status((13, 0), True, machine(2, (7, 5)), NVRTC) == CudaStatus((13, 0), 2, "")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed: pip install -e '.[nodriver]'")
def test_a_home_that_cannot_be_written_to_is_named(tmp_path):
    """CuPy makes the folder for its cache when it is imported."""
    if importlib.util.find_spec("cupy.cuda._compiler_cache") is None:
        pytest.skip("this CuPy makes the folder when it compiles")
    (tmp_path / "home").write_text("a file, in which even root can make no folder")
    done = subprocess.run([sys.executable, "-c", "from gradcore.devices.availability import find_status\n"
                           "print(find_status((13, 0), True).reason)"], capture_output=True, text=True,
                          env={**{key: value for key, value in os.environ.items() if key != "CUPY_CACHE_DIR"},
                               "HOME": str(tmp_path / "home"), "CUPY_CACHE_IN_MEMORY": "1"})
    assert "set CUPY_CACHE_DIR to a folder that can be written to" in done.stdout, done.stdout + done.stderr
