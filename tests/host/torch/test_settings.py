"""Settings at the start of PyTorch scripts: constants, switches, seeds, print options."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import runpy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import _settings, version
from gradcore.cuda.amp import GradScaler, autocast
from tests.conftest import raises


@pytest.fixture
def printing() -> Iterator[None]:
    yield
    gradcore.set_printoptions(profile="default")


def test_constants() -> None:
    assert (gradcore.inf, gradcore.pi, gradcore.e, gradcore.newaxis) == (math.inf, math.pi, math.e, None)
    assert math.isnan(gradcore.nan) and gradcore.ones(2)[gradcore.newaxis].shape == (1, 2)
    assert gradcore.short == np.int16


def test_switches_of_cudnn_are_taken_and_change_nothing_on_the_cpu() -> None:
    cudnn = importlib.import_module("gradcore.backends.cudnn")
    x, weight = gradcore.ones(1, 1, 4, 4), gradcore.ones(1, 1, 3, 3)
    before = gradcore.nn.functional.conv2d(x, weight).tolist()
    was = {name: getattr(cudnn, name) for name in ("deterministic", "benchmark", "enabled", "allow_tf32")}
    try:
        for name, value in was.items():
            setattr(gradcore.backends.cudnn, name, not value)
        assert gradcore.nn.functional.conv2d(x, weight).tolist() == before
    finally:
        for name, value in was.items():
            setattr(cudnn, name, value)
    with pytest.raises(KeyError), cudnn.flags(benchmark=True, allow_tf32=False):
        assert (cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32) == (False, True, False)
        raise KeyError
    assert {name: getattr(cudnn, name) for name in was} == was
    assert not cudnn.is_available() and cudnn.version() is None
    assert not gradcore.backends.mps.is_available() and not gradcore.backends.mps.is_built()


@pytest.mark.oracle
def test_switches_of_products_are_those_of_pytorch(torch: Any) -> None:
    names = "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation"
    for t in (gradcore, torch):
        matmul = t.backends.cuda.matmul
        was = [getattr(matmul, name) for name in names]
        assert was == [True, True, False]
        try:
            for name, value in zip(names, was, strict=True):
                setattr(matmul, name, not value)
                assert getattr(matmul, name) is not value
        finally:
            for name, value in zip(names, was, strict=True):
                setattr(matmul, name, value)
        with pytest.raises(AttributeError, match="allow_tf_32"):
            matmul.allow_tf_32 = True
    assert gradcore.backends.cuda.is_built() is (importlib.util.find_spec("cupy") is not None)


def test_settings_are_remembered() -> None:
    threads = gradcore.get_num_threads()
    assert threads >= 1 and not gradcore.are_deterministic_algorithms_enabled()
    try:
        gradcore.set_num_threads(3)
        gradcore.use_deterministic_algorithms(True, warn_only=True)
        assert gradcore.get_num_threads() == 3 and gradcore.are_deterministic_algorithms_enabled()
    finally:
        gradcore.set_num_threads(threads)
        gradcore.use_deterministic_algorithms(False)
    with raises(RuntimeError, "expects a positive integer"):
        gradcore.set_num_threads(0)
    with raises(TypeError, "expects an int, but got float"):
        gradcore.set_num_threads(2.0)  # type: ignore[arg-type]


def test_threads_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, threads in (("3", 3), (" 4,2", 4), ("all", os.cpu_count()), ("", os.cpu_count()), ("0", os.cpu_count())):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert runpy.run_path(_settings.__file__)["_threads"] == [threads]


def test_the_version_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradcore.devices.availability import CudaStatus

    for status, found in ((CudaStatus((12, 4), 1, ""), "12.4"), (CudaStatus((12, 4), 0, "no CuPy"), None),
                          (CudaStatus(None, 0, "no driver"), None)):
        monkeypatch.setattr(version, "cuda_status", lambda status=status: status)
        assert version.cuda == found and version.hip is None
    with raises(AttributeError, "module 'gradcore.version' has no attribute 'cudaa'"):
        _ = version.cudaa


def test_autocast_of_cuda_alone() -> None:
    x = gradcore.ones(2, 2)
    with autocast():
        assert gradcore.is_autocast_enabled("cuda") and not gradcore.is_autocast_enabled("cpu") and (x @ x).dtype == np.float32
    with gradcore.cuda.amp.autocast(enabled=False):
        assert not gradcore.is_autocast_enabled()
    assert autocast(dtype=gradcore.float16)(lambda: gradcore.get_autocast_dtype("cuda"))() == np.float16
    scaler = GradScaler(8.0)
    assert scaler.get_scale() == 8 and isinstance(scaler, gradcore.amp.GradScaler)


def test_seeds_of_a_gpu_that_is_not_there_are_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradcore.cuda, "is_available", lambda: False)
    state = gradcore.default_generator().get_state().tolist()
    gradcore.cuda.manual_seed(3)
    gradcore.cuda.manual_seed_all(3)
    assert gradcore.default_generator().get_state().tolist() == state


def test_seeds_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {name: gradcore.Generator() for name in ("cuda", "cuda:0", "cuda:1")}
    for name, value in {"is_available": lambda: True, "device_count": lambda: 2, "default_generator": made.__getitem__}.items():
        monkeypatch.setattr(gradcore.cuda, name, value)
    gradcore.cuda.manual_seed(3)
    gradcore.cuda.manual_seed_all(5)
    assert [g.initial_seed() for g in made.values()] == [3, 5, 5]


#: Numbers that decide how they are printed, and options.
PRINTED: tuple[Any, ...] = (
    1.5, 1e-7, -0.0, True, 7, [], [1.5], [1.0, 2.0], [1e-5, 1.0], [1e8, 1.0], [0.1, 0.25, 3.0], [math.nan, 1.0],
    [0.0, math.nan], [math.inf, -1.5], [123456.789], [1001.0, 1.0], [0.00009, 0.05], [[1.0, 2.0], [3.0, -4.5]], [True, False],
    [[1, 20], [300, -4]], [[[0.5] * 3] * 2] * 2, list(range(40)), [[k * 0.37 for k in range(30)]] * 2, list(range(1200)),
    [[k * 0.37 for k in range(40)]] * 40, [[[1]] * 1100])
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"precision": 2, "sci_mode": False}, {"sci_mode": True}, {"threshold": 3, "edgeitems": 1}, {"linewidth": 20},
    {"profile": "short"}, {"profile": "full", "threshold": 1500}, {"precision": 0}, {"linewidth": 76})


@pytest.mark.usefixtures("printing")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_printing(options: dict[str, Any], torch: Any) -> None:
    texts = []
    for library in (gradcore, torch):
        library.set_printoptions(**options)
        try:
            texts.append([repr(library.tensor(value)) for value in PRINTED] + [
                repr(library.ones(n).mul(1.5).requires_grad_()) for n in range(6, 11)])
        finally:
            library.set_printoptions(profile="default")
    for ours, theirs in zip(*texts, strict=True):
        assert ours == theirs


@pytest.mark.usefixtures("printing")
def test_printing_beyond_pytorchs() -> None:
    gradcore.set_printoptions(profile="full")
    assert "..." not in repr(gradcore.arange(2000))
    gradcore.set_printoptions(linewidth=20)
    assert max(map(len, repr(gradcore.arange(20)).splitlines())) <= 20
    with raises(KeyError, "loud"):
        gradcore.set_printoptions(profile="loud")
