"""Which library computes products, where its workspace is, how reports show it; and that nvmath-python has the used names."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shutil
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore.devices.attention import build_attention
from gradcore.devices.gpu import device as gpu
from gradcore.devices.gpu import gemm as gpu_gemm
from gradcore.devices.gpu import problems as gpu_problems
from gradcore.devices.gpu import workspaces as gpu_workspaces
from gradcore.devices.gpu.gemm import Cublas, CublasLt
from gradcore.devices.gpu.kernels import linalg as gpu_linalg
from gradcore.devices.gpu.problems import Matrix, Problem
from gradcore.devices.host.device import HOST_KERNELS, make_host
from gradcore.errors import OutOfMemory
from gradcore.events import UNTAGGED
from gradcore.report.step import DriverFigures, LibraryBytes, load_report
from gradcore.report.text import render
from tests.host.cuda import fake_cublas
from tests.host.cuda.emulator import Emulator, products, view_of
from tests.host.cuda.fake_cublas import FakeLt
from tests.host.cuda.test_cupy_objects import Runtime
from tests.rows import ROWS, parts, tensors_of

NVMATH = importlib.util.find_spec("nvmath") is not None
without_nvmath = pytest.mark.skipif(not NVMATH, reason="nvmath-python is not installed: pip install -e '.[nodriver]'")


@pytest.fixture
def fake(monkeypatch):
    """nvmath-python's module, in place of the real one, which needs a driver."""
    lt = FakeLt()
    monkeypatch.setitem(sys.modules, "nvmath", SimpleNamespace(bindings=SimpleNamespace(cublasLt=lt)))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", SimpleNamespace(cublasLt=lt))
    monkeypatch.setattr(gpu_gemm, "LIBRARIES", {})
    monkeypatch.setattr(gpu_gemm, "runtime", SimpleNamespace(
        getDevice=lambda: 0, getDeviceProperties=lambda index: {"major": 9}))
    monkeypatch.setattr(gpu_workspaces, "runtime", SimpleNamespace(streamIsCapturing=lambda stream: False))
    return lt


@pytest.fixture(autouse=True)
def cupys_cublas(monkeypatch):
    """CuPy's module, in place of the real one, which needs a library of the CUDA toolkit."""
    monkeypatch.setitem(vars(importlib.import_module("cupy_backends.cuda.libs")), "cublas", fake_cublas.FakeCublas())


def test_nvmath_is_taken_where_it_is_and_a_device_has_one_library(fake, monkeypatch):
    monkeypatch.delenv("GRADCORE_GEMM", raising=False)
    found = gpu_gemm.library()
    assert isinstance(found, CublasLt)
    assert found is gpu_gemm.library()
    assert found.workspace == 32 << 20
    assert gpu_gemm.unseen(0) == ""


@pytest.mark.parametrize(("major", "mebibytes"), [(7, 4), (8, 4), (9, 32), (10, 32), (12, 12)])
def test_the_workspace_is_what_the_architecture_wants_or_what_is_asked(major, mebibytes, monkeypatch):
    monkeypatch.setattr(gpu_gemm, "runtime", SimpleNamespace(getDeviceProperties=lambda index: {"major": major}))
    assert gpu_gemm.workspace_bytes(0) == mebibytes << 20
    monkeypatch.setenv("GRADCORE_GEMM_WORKSPACE", "1.5MiB")
    assert gpu_gemm.workspace_bytes(0) == 3 << 19


def test_without_nvmath_cupys_calls_are_taken_and_the_reason_is_said(fake, monkeypatch):
    monkeypatch.setenv("GRADCORE_GEMM", "cupy")
    assert isinstance(gpu_gemm.library(), Cublas)
    assert gpu_gemm.unseen(0) == "cuBLAS's own workspace: GRADCORE_GEMM=cupy"
    monkeypatch.delenv("GRADCORE_GEMM")
    monkeypatch.setitem(sys.modules, "nvmath", None)
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    assert gpu_gemm.make_library(0).unseen.startswith("cuBLAS's own workspace: nvmath-python cannot be imported (")
    broken = SimpleNamespace(create=lambda: (_ for _ in ()).throw(RuntimeError("libcublasLt.so.13 is missing")))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", SimpleNamespace(cublasLt=broken))
    assert "cannot use cuBLASLt (libcublasLt.so.13 is missing)" in gpu_gemm.make_library(0).unseen


@pytest.mark.parametrize("cached", [0, 2 << 20])
def test_a_handle_is_made_when_the_pools_have_given_back_what_they_cache(cached, fake, monkeypatch):
    """cuBLAS through CuPy would be taken for the rest of the process, which needs more memory still."""
    room = [cached]

    def create():
        if room:
            raise fake.cuBLASLtError("CUBLAS_STATUS_NOT_INITIALIZED (1)", 1)
        return 1

    monkeypatch.setattr(fake, "create", create)
    monkeypatch.setitem(gpu_workspaces.FLUSHES, 0, lambda: room.pop() if room else 0)
    assert isinstance(gpu_gemm.make_library(0), CublasLt if cached else Cublas)


def test_warnings_of_an_import_choose_no_other_library(fake, monkeypatch):
    class Bindings:
        @property
        def cublasLt(self):
            warnings.warn("a package that nvmath-python imports will change", DeprecationWarning, stacklevel=1)
            return fake

    monkeypatch.setitem(sys.modules, "nvmath.bindings", Bindings())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(gpu_gemm.make_library(0), CublasLt)


def test_a_workspace_lies_in_the_library_pool_beside_the_log(fake):
    device = gpu.CudaDevice(0, cuda=Runtime(), strict=True)
    library = gpu_gemm.make_library(0)
    with gradcore.step(device=device) as step:
        assert library.workspaces.of(7) == library.workspaces.of(7)
    assert [r for r in step.log if "Alloc" in type(r).__name__] == []
    assert device.ledger.allocated == 0
    block, = device.bridge.ledger.live.values()
    tag = block.tag
    assert (block.requested, tag.role, tag.phase, str(tag.site.file)) == (32 << 20, "workspace", "library", "<cuBLASLt>")
    assert device.driver_figures().library == device.bridge.ledger.reserved >= 32 << 20
    library.workspaces.release()
    assert device.bridge.ledger.allocated == 0


def test_each_stream_has_a_workspace_of_its_own_and_they_are_not_ordered(fake):
    cuda = Runtime()
    device = gpu.CudaDevice(0, cuda=cuda)
    device.activate = lambda stream: None
    library, side = gpu_gemm.make_library(0), device.make_stream()
    places = [library.workspaces.of(device.current.handle)]
    with device.use(side):
        places += [library.workspaces.of(device.current.handle) for _ in range(2)]
    assert {b.address: b.stream.handle for b in device.bridge.ledger.live.values()} == {places[0]: 0, places[1]: side.handle}
    assert places[1] == places[2]
    assert cuda.calls == []
    assert device.driver_figures().libraries[0] == LibraryBytes("cuBLASLt in matmul", 64 << 20)


def test_a_workspace_is_made_of_what_the_pool_caches_where_the_card_is_full(fake):
    device = gpu.CudaDevice(0, cuda=Runtime(room=100 << 20))
    storage = device.allocate(80 << 20, UNTAGGED)
    library = gpu_gemm.make_library(0)
    with pytest.raises(OutOfMemory, match="out of memory"):
        library.workspaces.of(7)
    del storage
    assert device.ledger.reserved >= 80 << 20
    assert library.workspaces.of(7)
    assert device.ledger.reserved == 0


def test_the_report_names_what_it_cannot_see(fake, monkeypatch):
    monkeypatch.setenv("GRADCORE_GEMM", "cupy")
    device = gpu.CudaDevice(0, cuda=Runtime())
    gpu_gemm.library()
    with gradcore.step(device=device) as step:
        pass
    assert "the remainder includes cuBLAS's own workspace: GRADCORE_GEMM=cupy" in render(step.report)
    assert load_report(json.loads(step.report.to_json())).driver == step.report.driver
    assert DriverFigures(1, "NVML", None, 0, 0, 1).unseen == ""


# -- kernels that are written over an array library --------------------------------------------------------------------------


class NumpyWithProducts:
    """NumPy's functions, with the products of the CUDA device."""

    def __init__(self):
        self.products = 0

    def __getattr__(self, name):
        return getattr(np, name)

    def matmul(self, a, b, out):
        self.products += 1
        gpu_linalg.CupyWithProducts.matmul(*map(view_of, (a, b, out)))


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled")
def test_attention_of_wide_heads_multiplies_through_the_interface(tmp_path):
    """The kernels that CuPy runs for wide heads, computed by NumPy except for their products."""
    xp = NumpyWithProducts()
    theirs, ours = make_host(), make_host()
    ours.kernels = {**ours.kernels, **build_attention(xp, HOST_KERNELS["uniform"])}
    rows = [row for row in ROWS if re.fullmatch("attention(_grad)?", row.op)]
    assert len({row.op for row in rows}) == 2
    emulator = Emulator(tmp_path)

    def run(row, device):
        return parts(row.declared(*row.arguments(tensors_of(row, device)), **row.attrs))

    with emulator.in_place():
        # Layouts without a leading dimension use an emulated kernel, which must be known before compilation.
        for row in rows:
            run(row, ours)
        emulator.compile()
        emulator.library = products(FakeLt())
        xp.products = 0
        for row in rows:
            for found, expected in zip(run(row, ours), run(row, theirs), strict=True):
                np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-5, atol=2e-5, err_msg=str(row))
    assert xp.products > 20


# -- the real package --------------------------------------------------------------------------------------------------------


def parameters(function):
    """Names of a binding's parameters, from the first line of its documentation."""
    return [part.split()[-1] for part in re.match(r"\w+\((.*)\)", function.__doc__)[1].split(", ") if part]


@without_nvmath
def test_nvmath_has_every_function_that_is_called_with_as_many_arguments():
    lt = importlib.import_module("nvmath.bindings.cublasLt")
    names = [name for name, fake in vars(FakeLt).items() if callable(fake) and re.match(r"(create|mat|get)", name)]
    assert len(names) > 12
    for name in names:
        fake = getattr(FakeLt, name).__code__
        assert len(parameters(getattr(lt, name))) == fake.co_argcount - 1, name
    assert parameters(lt.matmul) == (
        "light_handle compute_desc alpha a adesc b bdesc beta c cdesc d ddesc algo workspace workspace_size_in_bytes stream"
    ).split()
    assert parameters(lt.matmul_algo_get_heuristic) == (
        "light_handle operation_desc adesc bdesc cdesc ddesc preference requested_algo_count heuristic_results_array "
        "return_algo_count").split()
    assert issubclass(lt.cuBLASLtError, Exception)
    # Its constructor, which asks the library for the text, needs a driver.
    error = Exception.__new__(lt.cuBLASLtError)
    error.status = 15
    assert error.__reduce__() == (lt.cuBLASLtError, (15,)), "the status is kept under this name"


@without_nvmath
def test_nvmath_has_every_member_with_the_number_and_size_that_tests_count_on():
    lt = importlib.import_module("nvmath.bindings.cublasLt")
    for kind, sizes in (("MatmulDescAttribute", lt.get_matmul_desc_attribute_dtype),
                        ("MatrixLayoutAttribute", lt.get_matrix_layout_attribute_dtype),
                        ("MatmulPreferenceAttribute", lt.get_matmul_preference_attribute_dtype),
                        ("MatmulAlgoConfigAttribute", lt.get_matmul_algo_config_attribute_dtype), ("Epilogue", None)):
        for member in getattr(fake_cublas, kind):
            real = getattr(lt, kind)[member.name]
            assert int(real) == int(member)
            assert sizes is None or np.dtype(sizes(real)) == fake_cublas.DTYPES[member.name]
    assert set(gpu_problems.EPILOGUES.values()) <= set(lt.Epilogue.__members__)
    data = importlib.import_module("nvmath").CudaDataType
    names = ("float32", "CUDA_R_32F"), ("float64", "CUDA_R_64F"), ("float16", "CUDA_R_16F"), ("bfloat16", "CUDA_R_16BF")
    assert {name: int(data[cuda]) for name, cuda in names} == gpu_problems.DATA
    compute = importlib.import_module("nvmath.bindings.cublas").ComputeType
    assert [compute.COMPUTE_32F, compute.COMPUTE_64F, compute.COMPUTE_32F_FAST_TF32] == [
        gpu_problems.COMPUTE_32F, gpu_problems.COMPUTE_64F, gpu_problems.COMPUTE_32F_FAST_TF32]
    # The algorithm is the first field, so the result's address is its address.
    assert lt.matmul_heuristic_result_dtype.fields["algo"][1] == 0
    results = lt.MatmulHeuristicResult(3)
    size = lt.matmul_heuristic_result_dtype.itemsize
    assert size == FakeLt.matmul_heuristic_result_dtype.itemsize
    for k in range(3):
        assert results[k].ptr == results.ptr + k * size
        assert int(results[k].workspace_size) >= 0


class Real:
    """cuBLASLt itself. Its descriptors need no GPU; its handle and its heuristic do."""

    def __init__(self, lt):
        self._lt = lt
        self.asked = 0

    def __getattr__(self, name):
        return getattr(self._lt, name)

    def create(self):
        return 0

    def matmul_algo_get_heuristic(self, *arguments):
        assert len(arguments) == len(parameters(self._lt.matmul_algo_get_heuristic))
        # The status in the result, after the algorithm and the size of the workspace, and that an algorithm was found.
        fake_cublas.at(arguments[-2] + self._lt.matmul_heuristic_result_dtype.fields["state"][1], np.int32)[0] = 0
        fake_cublas.at(arguments[-1], np.int32)[0] = 1
        self.asked += 1

    def matmul_algo_config_get_attribute(self, *arguments):
        assert len(arguments) == len(parameters(self._lt.matmul_algo_config_get_attribute))
        fake_cublas.at(arguments[2], np.int32)[0] = 1

    def matmul_algo_check(self, *arguments):
        assert len(arguments) == len(parameters(self._lt.matmul_algo_check))
        # The memory of a new result is not cleared.
        for name, dtype in (("state", np.int32), ("workspace_size", np.uint64)):
            fake_cublas.at(arguments[-1] + self._lt.matmul_heuristic_result_dtype.fields[name][1], dtype)[0] = 0


@without_nvmath
def test_cublaslt_takes_the_descriptors_that_are_made_for_it():
    """If the library can be loaded: it checks the size and the value of every attribute."""
    lt = importlib.import_module("nvmath.bindings.cublasLt")
    try:
        lt.get_version()
    except Exception as error:
        pytest.skip(f"cuBLASLt cannot be loaded: {error}")
    real = Real(lt)
    library = CublasLt(real, 1 << 20, lambda nbytes, name: None)
    for kind in gpu_problems.DATA:
        for then in gpu_problems.EPILOGUES:
            for transposed in (0, 1):
                x = Matrix(transposed, 8, 64, 256)
                plan = library.plan(Problem(kind, 4, 5, 6, 3, x, x._replace(transposed=1 - transposed), x, then))
                assert plan is not None
                assert all(plan.layouts) and plan.descriptor
                if plan.vector is not None:
                    plan.point(lt, 4096)
                    of = lt.MatmulDescAttribute
                    for attribute, value in ((of.BIAS_POINTER, 4096), (of.TRANSA, transposed),
                                             (of.EPILOGUE, lt.Epilogue[gpu_problems.EPILOGUES[then]])):
                        read, written = np.zeros(1, lt.get_matmul_desc_attribute_dtype(attribute)), np.zeros(1, np.uint64)
                        lt.matmul_desc_get_attribute(plan.descriptor, attribute, read.ctypes.data, read.nbytes,
                                                     written.ctypes.data)
                        assert (int(read[0]), int(written[0])) == (value, read.nbytes)
    assert real.asked == len(gpu_problems.DATA) * len(gpu_problems.EPILOGUES) * 2
