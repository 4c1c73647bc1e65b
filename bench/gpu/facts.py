"""Facts about the machine, and compilation of every kernel instance, on all cores, into CuPy's cache on disk."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, time
from typing import Any

from bench.gpu.part import ROOT, Outcome, Setting, python
from gradcore.cli.collect_env import collect
from gradcore.devices.availability import cuda_status

_PACKAGES = ("numpy", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc", "nvidia-ml-py", "nvmath-python", "cuda-bindings",
             "torch")


def sanitizer_path() -> str | None:
    """The path of compute-sanitizer, from PATH or where a toolkit installs it."""
    found = shutil.which("compute-sanitizer")
    usual = Path("/usr/local/cuda/bin/compute-sanitizer")
    return found or (str(usual) if usual.exists() else None)


def memory_of_card() -> int | None:
    """The bytes of the first card, without a context on it; None if the driver does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total)
    except Exception:
        return None


def environment(setting: Setting) -> Outcome:
    """Versions of libraries, and the driver's description of the device."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    git = shutil.which("git")
    commit = git and subprocess.run([git, "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    status = cuda_status()
    figures: dict[str, Any] = {
        "python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count(), "packages": versions,
        "commit": commit or None, "driver": status.driver, "devices": status.devices,
        "compute-sanitizer": sanitizer_path(), "collect-env": collect()}
    if setting.device == "cuda":
        figures["device"] = device_figures()
    problems = [status.reason] if status.reason and not setting.rehearsal else []
    table = [["property", "value"], *([key, str(value)] for key, value in figures.items() if not isinstance(value, dict)),
             *([key, str(value)] for part in ("packages", "device") for key, value in figures.get(part, {}).items())]
    return Outcome(figures.get("device", {}).get("name", f"no GPU: {status.reason}"), problems, table, figures)


def device_figures() -> dict[str, Any]:
    from cupy.cuda import device, runtime

    found = runtime.getDeviceProperties(0)
    name = found["name"]
    return {"name": name.decode() if isinstance(name, bytes) else name,
            "compute capability": f"{found['major']}.{found['minor']}", "multiprocessors": found["multiProcessorCount"],
            "memory": found["totalGlobalMem"], "L2 cache": found.get("l2CacheSize"),
            # Copies from pageable memory need no staging then.
            "reads pageable memory": bool(found.get("pageableMemoryAccess")),
            "by the host's page tables": bool(found.get("pageableMemoryAccessUsesHostPageTables")),
            "free and all bytes": list(runtime.memGetInfo()), "runtime": runtime.runtimeGetVersion(),
            "NVRTC": _library("nvrtc", lambda nvrtc: ".".join(map(str, nvrtc.getVersion()))),
            "CUDA's headers": _headers(),
            "cuBLAS": _library("cublas", lambda cublas: cublas.getVersion(device.get_cublas_handle()))}


def _headers() -> str | None:
    """The folder that CuPy takes them from, without which it compiles nothing."""
    try:
        found: str | None = importlib.import_module("cuda.pathfinder").find_nvidia_header_directory("cudart")
    except Exception as error:  # of another version of the package
        return f"cannot be looked for: {repr(error)[:200]}"
    return found


def _library(name: str, version: Callable[[Any], Any]) -> Any:
    """The version of a library that CuPy loads on first use, or why it could not be loaded."""
    try:
        return version(importlib.import_module(f"cupy_backends.cuda.libs.{name}"))
    except Exception as error:  # ImportError, RuntimeError, or the error of the code that looks for it
        return f"cannot be loaded: {repr(error)[:200]}"


def compile_all(setting: Setting) -> Outcome:
    """Compile the kernels of the sample calls, so that no later part waits for the compiler, and time it."""
    if find_spec("cupy") is None:
        return Outcome("CuPy, which compiles the kernels, is not installed", status="not run")
    from tests.host.cuda.cuda_rows import noted

    # By the clock of all processes, since a compiler's start is part of the time.
    until = time() + setting.seconds
    pairs = [(family, name) for family, names in sorted(noted().wanted.items()) for name in sorted(names)]
    if setting.rehearsal:
        return Outcome(f"{len(pairs)} instances, which are compiled where there is a GPU", figures={"instances": len(pairs)})
    path = setting.folder / "instances.json"
    path.write_text(json.dumps(pairs))
    workers = min(os.cpu_count() or 1, 16)
    running = [subprocess.Popen(python("bench.gpu.facts", str(path), str(k), str(workers), str(until)), cwd=ROOT,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for k in range(workers)]
    problems, compiled, taken = [], 0, 0.0
    for k, process in enumerate(running):
        output, _ = process.communicate()
        line = next((line for line in reversed(output.splitlines()) if line.startswith("{")), None)
        if line is None:
            problems.append(f"compiler {k} ended with code {process.returncode}:\n{output[-2000:]}")
            continue
        found = json.loads(line)
        problems += found["failed"]
        compiled += found["compiled"]
        taken += found["seconds"]
    path.unlink()
    return Outcome(f"{compiled} of {len(pairs)} instances by {workers} processes, {taken / max(compiled, 1):.2f} s each",
                   problems, figures={"instances": len(pairs), "compiled": compiled, "processes": workers, "seconds": taken})


def main() -> None:
    """Compile every ``step``-th instance from the ``first`` on, until time is up, and print the outcome as a line of JSON."""
    from gradcore.devices.gpu import launch as gpu_launch

    path, first, step, until = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    began, compiled, failed = perf_counter(), 0, []
    for family, name in json.loads(Path(path).read_text())[first::step]:
        if time() > until:
            break
        try:
            gpu_launch._function(family, name, 0)
            compiled += 1
        except Exception as error:
            failed.append(f"{family}: {name}: {str(error)[:500]}")
    print(json.dumps({"compiled": compiled, "failed": failed, "seconds": perf_counter() - began}))


if __name__ == "__main__":
    main()
