"""``gradcore collect-env``: prints the machine and the versions of packages, for a bug report."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gradcore
from gradcore.cli.common import add_json
from gradcore.devices.availability import cuda_status, driver_version
from gradcore.units import format_bytes

_PACKAGES = ("numpy", "rich", "cupy-cuda13x", "cupy-cuda12x", "cupy", "nvmath-python", "cuda-bindings", "nvidia-ml-py",
             "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cublas", "nvidia-cublas-cu12", "torch")
#: Environment variables that change what the libraries do; none of them holds secrets.
_PREFIXES = ("GRADCORE_", "CUDA_", "CUPY_", "OMP_", "OPENBLAS_", "MKL_")
_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Collect and print."""
    found = collect()
    if options.json:
        print(json.dumps({"version": 1, **found}))
        return
    width = max(map(len, found))
    for name, value in found.items():
        lines = [f"{key} {part}" for key, part in value.items()] if isinstance(value, dict) else value
        first, *others = lines if isinstance(lines, list) and lines else [lines or "none"]
        print(f"{name:{width}}  {first}", *(f"\n{'':{width}}  {line}" for line in others), sep="")


def collect() -> dict[str, Any]:
    """The answers by name, as strings, lists of strings or dicts of strings. One that fails gives the error as its answer."""
    return {name: _attempt(ask) for name, ask in _QUESTIONS.items()}


def _attempt(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:  # this command must work in a broken installation
        return f"not available: {type(error).__name__}: {error}"


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _blas() -> list[str]:
    found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    lines = [f"{found['name']} {found.get('version', '')}".strip()]
    kernels = openblas_kernels()
    if kernels:
        lines[0] += f", kernels for {kernels}"
        if kernels in ("Haswell", "Zen") and "avx512vl" in _processor():
            forced = os.environ.get("OPENBLAS_CORETYPE")
            lines.append("the processor has AVX-512, which these kernels do not use: " + (
                f"OPENBLAS_CORETYPE={forced} is set" if forced else "try OPENBLAS_CORETYPE=SkylakeX"))
    return lines


def _processor() -> list[str]:
    """The words of /proc/cpuinfo, the processor's flags among them; empty without it."""
    path = Path("/proc/cpuinfo")
    return path.read_text().split() if path.exists() else []


def openblas_kernels() -> str:
    """The processor whose kernels NumPy's OpenBLAS has chosen, such as "Haswell"; "" if it is not known."""
    maps = Path("/proc/self/maps")
    loaded = {line.split()[-1] for line in maps.read_text().splitlines() if "openblas" in line} if maps.exists() else ()
    for path in sorted(loaded):
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
            ask = getattr(library, name, None)
            if ask is not None:
                ask.restype = ctypes.c_char_p
                return str(ask().decode())
    return ""


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"{package} is not installed")


def _runtime() -> str:
    _need("cupy")
    from cupy.cuda import runtime

    version = runtime.runtimeGetVersion()
    return f"{version // 1000}.{version % 1000 // 10}"


def _driver() -> str:
    found = driver_version()
    return "no driver" if found is None else f"for CUDA {found[0]}.{found[1]}" + _kernel_module()


def _kernel_module() -> str:
    """The version of the driver's kernel module, as text to append; "" if it is not known."""
    path = Path("/proc/driver/nvidia/version")
    words = path.read_text().split() if path.exists() else []
    return next((f", version {w}" for w in words if w.replace(".", "").isdigit() and w.count(".") > 0), "")


def _nvrtc() -> str:
    _need("cupy")
    from cupy_backends.cuda.libs import nvrtc

    return ".".join(map(str, nvrtc.getVersion()))


def _products() -> str:
    _need("cupy")
    _need("nvmath")
    from nvmath.bindings import cublasLt

    return f"cuBLASLt {cublasLt.get_version()} through nvmath-python"


def _devices() -> list[str]:
    if driver_version() is None:
        return []
    _need("cupy")
    from cupy.cuda import runtime

    lines = []
    for index in range(runtime.getDeviceCount()):
        found = runtime.getDeviceProperties(index)
        name = found["name"].decode() if isinstance(found["name"], bytes) else found["name"]
        lines.append(f"cuda:{index} {name}, {format_bytes(found['totalGlobalMem'])}, compute capability "
                     f"{found['major']}.{found['minor']}, {found['multiProcessorCount']} multiprocessors")
    return lines


def _python() -> str:
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return f"{platform.python_version()} ({platform.python_implementation()}{'' if has_gil else ', without the GIL'})"


_QUESTIONS: dict[str, Callable[[], Any]] = {
    "gradcore": lambda: f"{gradcore.__version__} in {Path(gradcore.__file__).parent}",
    "Python": _python,
    "system": lambda: f"{platform.platform()}, {os.cpu_count()} cores",
    "packages": _packages,
    "NumPy's BLAS": _blas,
    "CUDA driver": _driver,
    "CUDA runtime": _runtime,
    "NVRTC": _nvrtc,
    "products": _products,
    "GPUs": _devices,
    "GPU usable": lambda: "yes" if cuda_status().available else f"no: {cuda_status().reason}",
    "environment": lambda: {name: value for name, value in sorted(os.environ.items())
                            if name.startswith(_PREFIXES) or name in _VARIABLES},
}
