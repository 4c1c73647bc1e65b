"""Whether this machine has a GPU that gradcore can use, and what to install if it has one that it cannot."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from gradcore.devices.device import Device, get_device, register
from gradcore.devices.gpu.faults import FAULTS
from gradcore.errors import DeviceError


@dataclass(frozen=True)
class CudaStatus:
    """The driver's CUDA version (major, minor) or None, and the reason why no GPU can be used, "" if one can."""

    driver: tuple[int, int] | None
    devices: int
    reason: str

    @property
    def available(self) -> bool:
        return not self.reason


def driver_library() -> Any:
    """The installed driver's library, None without a driver. Needs no CUDA library."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def driver_version() -> tuple[int, int] | None:
    """The CUDA version that the installed driver supports, None without a driver."""
    library, version = driver_library(), ctypes.c_int()
    if library is None or library.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


#: The oldest compute capability that the kernels are compiled for.
OLDEST = (7, 5)


@functools.cache
def cuda_status() -> CudaStatus:
    """The status of this machine, determined once. CuPy can be imported without a driver, so both are checked."""
    return find_status(driver_version(), importlib.util.find_spec("cupy") is not None)


def find_status(driver: tuple[int, int] | None, cupy: bool, cuda: Any = None, compiler: Any = None) -> CudaStatus:
    """The status with a driver of version (major, minor) or None; ``cuda`` and ``compiler`` are CuPy's runtime and NVRTC, by
    default imported."""
    if driver is None:
        return CudaStatus(None, 0, "no NVIDIA driver was found (libcuda.so.1): install one from nvidia.com/drivers; in a "
                                   "container, start it with access to the GPU (docker run --gpus all)")
    present = f"a driver for CUDA {driver[0]}.{driver[1]} is present, but"
    if not cupy:
        return CudaStatus(driver, 0, f"{present} CuPy is not installed: {install_line(driver)}")
    try:
        if cuda is None:
            cuda = importlib.import_module("cupy.cuda.runtime")
        count = cuda.getDeviceCount()
        reason = architecture_reason(0, cuda) if count else _NO_DEVICE
        if count:
            (compiler or importlib.import_module("cupy_backends.cuda.libs.nvrtc")).getVersion()
    except ImportError as error:
        return CudaStatus(driver, 0, f"{present} CuPy cannot be loaded, or lacks NVRTC, which compiles the kernels "
                                     f"({error}): {install_line(driver)}")
    except OSError as error:
        # CuPy makes the folder when it is imported, even if CUPY_CACHE_IN_MEMORY is set.
        return CudaStatus(driver, 0, f"{present} CuPy cannot be loaded ({error}): it keeps machine code in "
                                     "~/.cupy/kernel_cache, so set CUPY_CACHE_DIR to a folder that can be written to")
    except Exception as error:  # CUDARuntimeError, of a module that may be the one given
        return CudaStatus(driver, 0, f"{present} {_of_runtime(error, driver, cuda)}")
    return CudaStatus(driver, count, reason)


#: What to do about errors of the machine, by cudaError_t: no other package would help.
_OF_MACHINE = {
    2: "its memory is full, so that no context can be created: nvidia-smi lists the processes that hold it",
    3: FAULTS[3],
    46: "it is busy: end the process that has it for itself, or set another compute mode with nvidia-smi -c",
    802: "the machine is not ready: GPUs that are connected by NVSwitch need the service nvidia-fabricmanager, in the driver's "
         "version",
    803: "the driver's libraries and its kernel module differ in version: restart the machine after an update of the driver",
    804: "the libraries of the package cuda-compat do not support this GPU: remove them from LD_LIBRARY_PATH"}
_NO_DEVICE = "the driver reports no device: check CUDA_VISIBLE_DEVICES and, in a container, that it has access to the GPU"


def _of_runtime(error: Exception, driver: tuple[int, int], cuda: Any) -> str:
    """The reason why the runtime cannot count devices, by the number of its error."""
    status = getattr(error, "status", None)
    if status == 35:
        version = cuda.runtimeGetVersion()
        packages = f"{install_line(driver)}, or " if driver[0] >= 12 else ""
        return (f"CuPy was built for CUDA {version // 1000}.{version % 1000 // 10}, which is newer: {packages}install a driver "
                f"for CUDA {max(driver[0] + 1, 12)} or newer from nvidia.com/drivers")
    if status == 100:
        return _NO_DEVICE
    if status in _OF_MACHINE:
        return f"it cannot be used ({error}): {_OF_MACHINE[status]}"
    return f"CuPy cannot use it ({error}): {install_line(driver)}"


def architecture_reason(index: int, cuda: Any) -> str:
    """Why a device is too old for the kernels, "" if it is not."""
    found = cuda.getDeviceProperties(index)
    if (found["major"], found["minor"]) >= OLDEST:
        return ""
    name = found["name"].decode() if isinstance(found["name"], bytes) else found["name"]
    return (f"cuda:{index} ({name}) has compute capability {found['major']}.{found['minor']}, and the kernels need "
            f"{OLDEST[0]}.{OLDEST[1]} or newer (Turing); choose another device with CUDA_VISIBLE_DEVICES if there is one")


def install_line(driver: tuple[int, int]) -> str:
    """The command that installs what this driver needs."""
    return f"pip install 'gradcore[cuda{13 if driver[0] >= 13 else 12}]'"


def choose_device(name: str) -> tuple[Device, str | None]:
    """The device for ``auto``, ``cpu`` or ``cuda``, and a note for the user about the choice, or None.

    ``auto`` takes a GPU if one works, and the CPU otherwise. Raises :class:`DeviceError` for ``cuda`` if no GPU can be used,
    with the reason that ``auto`` would give.
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
        raise DeviceError(f"device cuda:{index} does not exist: the number of GPUs is {status.devices}")
    # CuPy is imported only when a GPU is first used.
    from cupy.cuda import runtime

    from gradcore.devices.gpu.device import make_cuda

    reason = architecture_reason(index, runtime)
    if reason:
        raise DeviceError(f"cuda is not available: {reason}")
    try:
        device: Device = make_cuda(index)
    except runtime.CUDARuntimeError as error:
        # The context is created here.
        why = _OF_MACHINE.get(error.status, "the driver cannot create a context on it")
        raise DeviceError(f"cuda:{index} cannot be used ({error}): {why}") from error
    return device


register("cuda", _make_cuda)
