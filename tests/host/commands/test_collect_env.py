"""``gradcore collect-env`` prints what a bug report needs, whatever is missing or broken."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import gradcore
from gradcore.cli import collect_env
from gradcore.cli.main import main
from gradcore.devices import availability

pytestmark = pytest.mark.extras


def collected(capsys):
    assert main(["collect-env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("version") == 1
    return found


def test_it_names_the_machine_the_packages_and_the_variables(capsys, monkeypatch):
    monkeypatch.setenv("GRADCORE_STRICT", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NVIDIA_API_KEY", "secret")
    found = collected(capsys)
    assert list(found) == list(collect_env._QUESTIONS)
    assert found["gradcore"].startswith(gradcore.__version__)
    assert found["packages"]["numpy"] == np.__version__
    assert found["environment"]["GRADCORE_STRICT"] == "1"
    assert found["environment"]["OMP_NUM_THREADS"] == "3"
    assert "secret" not in json.dumps(found)
    assert "not available" not in str(found["NumPy's BLAS"])


@pytest.mark.parametrize("has_gil", [True, False])
def test_it_says_if_python_has_no_gil(has_gil, capsys, monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_gil, raising=False)
    assert collected(capsys)["Python"].endswith("(CPython)" if has_gil else "(CPython, without the GIL)")


@pytest.mark.parametrize(("kernels", "words", "lines"), [
    ("Haswell", ["avx2", "avx512vl"], 2), ("Haswell", ["avx2"], 1), ("SkylakeX", ["avx512vl"], 1), ("", ["avx512vl"], 1)])
@pytest.mark.parametrize("forced", ["", "Haswell"])
def test_products_that_leave_half_of_the_processor_idle(kernels, words, lines, forced, capsys, monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", forced)
    monkeypatch.setattr(collect_env, "openblas_kernels", lambda: kernels)
    monkeypatch.setattr(collect_env, "_processor", lambda: words)
    found = collected(capsys)["NumPy's BLAS"]
    assert len(found) == lines and (kernels or "BLAS" in found[0].upper()) and kernels in found[0]
    assert lines == 1 or ("OPENBLAS_CORETYPE=Haswell is set" if forced else "try OPENBLAS_CORETYPE=SkylakeX") in found[1]


def test_it_prints_a_line_a_fact(capsys):
    assert main(["collect-env"]) == 0
    text = capsys.readouterr().out
    for name in collect_env._QUESTIONS:
        assert f"\n{name} " in f"\n{text}"
    assert f"numpy {np.__version__}" in text


def test_a_machine_with_gpus(capsys, monkeypatch):
    properties = {"name": b"NVIDIA H100", "totalGlobalMem": 80 << 30, "major": 9, "minor": 0, "multiProcessorCount": 132}
    runtime = SimpleNamespace(runtimeGetVersion=lambda: 13020, getDeviceCount=lambda: 2,
                              getDeviceProperties=lambda index: properties)
    lt = SimpleNamespace(get_version=lambda: 131000)
    for name, module in (("cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))),
                         ("cupy.cuda", SimpleNamespace(runtime=runtime)),
                         ("cupy_backends.cuda.libs", SimpleNamespace(nvrtc=SimpleNamespace(getVersion=lambda: (13, 5)))),
                         ("nvmath", SimpleNamespace()), ("nvmath.bindings", SimpleNamespace(cublasLt=lt))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(collect_env, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(collect_env, "cuda_status", lambda: availability.CudaStatus((13, 0), 2, ""))
    found = collected(capsys)
    assert found["CUDA driver"].startswith("for CUDA 13.0")
    assert (found["CUDA runtime"], found["NVRTC"]) == ("13.2", "13.5")
    assert found["products"] == "cuBLASLt 131000 through nvmath-python"
    assert found["GPUs"] == [f"cuda:{k} NVIDIA H100, 80.0 GiB, compute capability 9.0, 132 multiprocessors" for k in (0, 1)]
    assert found["GPU usable"] == "yes"


def test_nothing_that_is_broken_breaks_it(capsys, monkeypatch):
    def broken(*what):
        raise OSError("planted")

    for name in ("driver_version", "cuda_status", "_packages", "_blas"):
        monkeypatch.setattr(collect_env, name, broken)
    monkeypatch.setattr(collect_env, "_QUESTIONS", {**collect_env._QUESTIONS, "packages": broken, "NumPy's BLAS": broken})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = collected(capsys)
    for name in ("packages", "NumPy's BLAS", "CUDA driver", "GPUs", "GPU usable"):
        assert found[name] == "not available: OSError: planted"
    for name in ("CUDA runtime", "NVRTC", "products"):
        assert found[name] == "not available: ModuleNotFoundError: cupy is not installed"
    assert found["gradcore"].startswith(gradcore.__version__)


def test_without_a_driver(capsys, monkeypatch):
    monkeypatch.setattr(collect_env, "driver_version", lambda: None)
    monkeypatch.setattr(collect_env, "cuda_status", lambda: availability.find_status(None, True))
    found = collected(capsys)
    assert (found["CUDA driver"], found["GPUs"]) == ("no driver", [])
    assert found["GPU usable"].startswith("no: no NVIDIA driver was found")


@pytest.mark.parametrize(("text", "version"), [
    ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:20:00 UTC 2025\nGCC version: 12", "580.65.06"),
    ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build", "575.57.08")])
def test_the_drivers_own_version(text, version, monkeypatch, tmp_path):
    path = tmp_path / "version"
    path.write_text(text)
    monkeypatch.setattr(collect_env, "Path", lambda name: path)
    assert collect_env._kernel_module() == f", version {version}"
    path.unlink()
    assert collect_env._kernel_module() == ""
