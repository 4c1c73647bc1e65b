"""Whether this machine has a GPU that gradcore can use, and what to install if it has one that it cannot."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from dataclasses import dataclass

from gradcore.devices.device import Device, get_device, register
from gradcore.errors import DeviceError


@dataclass(frozen=True)
class CudaStatus:
    """What was found: the driver's CUDA version (major, minor) or None, and what stands in the way, "" for nothing."""

    driver: tuple[int, int] | None
    cupy: bool
    devices: int
    reason: str

    @property
    def available(self) -> bool:
        return not self.reason


def driver_version() -> tuple[int, int] | None:
    """The CUDA version that the installed driver supports, None without a driver. Needs no CUDA library."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        version = ctypes.c_int()
        if library.cuDriverGetVersion(ctypes.byref(version)) == 0:
            return version.value // 1000, version.value % 1000 // 10
    return None


@functools.cache
def cuda_status() -> CudaStatus:
    """Look once. CuPy can be imported without a driver, so both are asked for."""
    driver = driver_version()
    cupy = importlib.util.find_spec("cupy") is not None
    if driver is None:
        return CudaStatus(None, cupy, 0, "no NVIDIA driver was found (libcuda.so.1)")
    if not cupy:
        return CudaStatus(driver, False, 0, f"a driver for CUDA {driver[0]}.{driver[1]} is present, but CuPy is not "
                                            f"installed: {install_line(driver)}")
    from cupy.cuda import runtime

    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return CudaStatus(driver, True, 0, f"a driver for CUDA {driver[0]}.{driver[1]} is present, but CuPy cannot use "
                                           f"it ({error}): {install_line(driver)}")
    return CudaStatus(driver, True, count, "" if count else "the driver sees no device")


def install_line(driver: tuple[int, int]) -> str:
    """What to type for the driver that is there."""
    return f"pip install 'gradcore[cuda{13 if driver[0] >= 13 else 12}]'"


def choose_device(name: str) -> tuple[Device, str | None]:
    """The device for ``auto``, ``cpu`` or ``cuda``, and what to tell the user about the choice.

    ``auto`` takes the GPU if there is one that works, and else the CPU. Raises :class:`DeviceError` for ``cuda`` where
    it cannot be had, in the words that ``auto`` would use.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"unknown device {name!r}: expected auto, cpu or cuda")
    if name == "cpu":
        return get_device("cpu"), None
    status = cuda_status()
    if status.available:
        return get_device("cuda"), None
    if name == "cuda":
        raise DeviceError(f"cuda is not available: {status.reason}")
    return get_device("cpu"), f"Running on the CPU: {status.reason}" if status.driver else None


def _make_cuda(index: int) -> Device:
    status = cuda_status()
    if not status.available:
        raise DeviceError(f"cuda is not available: {status.reason}")
    if index >= status.devices:
        raise DeviceError(f"device cuda:{index} does not exist: there are {status.devices}")
    # CuPy is imported when a GPU is first asked for, and not before.
    from gradcore.devices.gpu import make_cuda

    device: Device = make_cuda(index)
    return device


register("cuda", _make_cuda)
