"""Faults of kernels raise errors that name the fault, the op and what to do, with mocks of CUDA's runtime."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from cupy.cuda.compiler import CompileException  # noqa: E402
from cupy.cuda.runtime import CUDARuntimeError  # noqa: E402

import gradcore  # noqa: E402
from gradcore.devices import availability  # noqa: E402
from gradcore.devices.gpu import device as gpu  # noqa: E402
from gradcore.devices.gpu import gemm as gpu_gemm  # noqa: E402
from gradcore.devices.gpu import launch as gpu_launch  # noqa: E402
from gradcore.devices.gpu.workspaces import flushed  # noqa: E402
from gradcore.errors import DeviceError, DeviceFault, GradcoreError, KernelError  # noqa: E402
from gradcore.memory.driver import capturing  # noqa: E402
from tests.host.commands.test_availability import Refused  # noqa: E402
from tests.host.cuda.fake_cublas import FakeLt  # noqa: E402
from tests.host.cuda.test_cupy_objects import Runtime  # noqa: E402

COMPILER = """/tmp/x.cu(7): warning #177-D: variable "k" was declared but never referenced

/tmp/x.cu(9): error: identifier "nothing" is undefined

1 error detected in the compilation of "/tmp/x.cu".
"""


@pytest.mark.parametrize(("error", "kind", "words"), [
    (CompileException(COMPILER, "", "x.cu", ()), KernelError,
     'kernel relu<float> of elementwise.cu does not compile: /tmp/x.cu(9): error: identifier "nothing" is undefined'),
    (CUDARuntimeError(209), KernelError, "was compiled for another device or a newer driver (cudaErrorNoKernelImage"),
    (CUDARuntimeError(701), KernelError, "cannot be launched with 3 blocks of 256 threads: a block needs more registers"),
    (CUDARuntimeError(999), KernelError, "cannot be launched with 3 blocks of 256 threads: CUDA refused it"),
    (CUDARuntimeError(700), DeviceFault, "noticed while launching kernel relu<float> of elementwise.cu: a kernel used an "
                                         "address outside any allocation"),
    (CUDARuntimeError(3), DeviceFault, "CUDA error 3: CUDA cannot be used in a process that was forked from one "
                                       "that had used the device: start the process with "
                                       "multiprocessing.get_context('spawn')"),
    (PermissionError(13, "Permission denied", "/root/.cupy"), KernelError,
     "kernel relu<float> of elementwise.cu cannot be compiled: [Errno 13] Permission denied: '/root/.cupy'. CuPy keeps machine "
     "code in ~/.cupy/kernel_cache: set CUPY_CACHE_DIR"),
    (ChildProcessError("Canary probe child process timed out after 10.0 seconds.\n"), KernelError,
     "cannot be compiled: Canary probe child process timed out after 10.0 seconds. CuPy has another process look for CUDA's"),
    (ImportError("libnvrtc is missing"), DeviceError,
     "libnvrtc is missing. NVRTC and CUDA's headers come with pip install 'gradcore[cuda13]'"),
    (ImportError("Failed to find CUDA headers."), DeviceError, "compiled: Failed to find CUDA headers. NVRTC and"),
], ids=lambda x: type(x).__name__ if isinstance(x, Exception) else None)
def test_a_kernel_that_cannot_start_says_why(error, kind, words, monkeypatch):
    def function(*what):
        raise error

    monkeypatch.setattr(gpu_launch, "_function", function)
    monkeypatch.setattr(gpu_launch, "runtime", SimpleNamespace(getDevice=lambda: 0, CUDARuntimeError=CUDARuntimeError))
    with pytest.raises(kind) as found:
        gpu_launch.start("elementwise", "relu<float>", 3, 256, ())
    assert words in str(found.value)
    assert found.value.__cause__ is error
    assert isinstance(found.value, GradcoreError) and isinstance(found.value, RuntimeError)


def test_cupy_compiles_nothing_without_cudas_headers(monkeypatch):
    monkeypatch.setattr(gpu_launch, "runtime", SimpleNamespace(getDevice=lambda: 0, CUDARuntimeError=CUDARuntimeError))

    def get_function(name):
        raise RuntimeError("Failed to find CUDA headers.")

    monkeypatch.setattr(gpu_launch.cupy, "RawModule", lambda **how: SimpleNamespace(get_function=get_function))
    with pytest.raises(DeviceError, match=r"kernel eye<nothing> .*: Failed to find CUDA headers.*. NVRTC and CUDA's headers"):
        gpu_launch.start("index", "eye<nothing>", 1, 256, ())


@pytest.mark.parametrize("cached, status", [(True, 2), (False, 2), (True, 1)])
def test_code_that_does_not_fit_is_loaded_when_the_pools_have_given_back_what_they_cache(cached, status, monkeypatch):
    """The driver loads a kernel's code when it is first launched, and by then tensors may have filled the card. After another
    error nothing is given back."""
    device = gpu.CudaDevice(0, cuda=Runtime())
    if cached:
        gradcore.empty(1 << 20, device=device)
    held, started = gradcore.empty(4, device=device), []

    def function(*what):
        if device.ledger.reserved > 2 << 20 or not cached:
            raise CUDARuntimeError(status)
        return lambda *launch, stream: started.append(launch)

    monkeypatch.setattr(gpu_launch, "_function", function)
    monkeypatch.setattr(gpu_launch, "runtime", SimpleNamespace(getDevice=lambda: 0, CUDARuntimeError=CUDARuntimeError))
    if cached and status == 2:
        gpu_launch.start("elementwise", "relu<float>", 3, 256, ("x",))
        assert started == [((3,), (256,), ("x",))] and device.ledger.reserved == 2 << 20
    else:
        with pytest.raises(KernelError, match="of 256 threads: .* no memory left for" if status == 2 else "of 256 threads: "):
            gpu_launch.start("elementwise", "relu<float>", 3, 256, ("x",))
        assert (device.ledger.reserved > 2 << 20) is cached
    del held


class Failing(Runtime):
    """A runtime on which the kernel of one op fails: every synchronizing call reports it from then on."""

    def __init__(self):
        super().__init__()
        self.spoilt = False

    def deviceSynchronize(self):
        if self.spoilt:
            raise self.CUDARuntimeError(700)

    def memcpyAsync(self, *arguments):
        self.deviceSynchronize()

    def streamSynchronize(self, stream):
        self.deviceSynchronize()

    def streamQuery(self, stream):
        self.deviceSynchronize()

    def eventRecord(self, event, stream):
        self.deviceSynchronize()

    def eventSynchronize(self, event):
        self.deviceSynchronize()

    def streamWaitEvent(self, stream, event, flags):
        self.deviceSynchronize()

    def pointerGetAttributes(self, address):
        return SimpleNamespace(type=0)

    def malloc(self, nbytes):
        self.deviceSynchronize()
        return super().malloc(nbytes)


def spoilt_by(op):
    """A device whose kernels do nothing, except that op's."""
    cuda = Failing()
    device = gpu.CudaDevice(0, cuda=cuda)
    device.kernels = {name: (lambda *a, **k: setattr(cuda, "spoilt", True)) if name == op else (lambda *a, **k: None)
                      for name in device.kernels}
    return device


def train(device):
    model = gradcore.nn.Sequential(gradcore.nn.Identity(), gradcore.nn.ReLU())
    with gradcore.step(device=device):
        x = gradcore.empty(4, 4, device=device).requires_grad_()
        loss = model(x).sum()  # the forward line
        loss.backward()


def line_of(comment):
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(n for n, line in enumerate(lines, 1) if line.endswith(comment))}"


@pytest.mark.parametrize(("op", "layer", "phase"), [("relu", "1", "forward"), ("sum", "(root)", "forward"),
                                                    ("relu_grad", "1", "backward")])
def test_blocking_launches_name_the_op_the_layer_and_the_line(op, layer, phase, monkeypatch):
    monkeypatch.setenv("GRADCORE_LAUNCH_BLOCKING", "1")
    device = spoilt_by(op)
    text = ""
    try:
        train(device)
    except DeviceFault as error:
        text = str(error)
    assert text.startswith("CUDA error 700 in the op that ran last: a kernel used an address outside any allocation")
    assert text.endswith(f"\n  in op {op}, layer {layer}, phase {phase}, {line_of('# the forward line')}")
    # By reference counting only.
    assert device.ledger.allocated == 0


def test_without_blocking_the_next_call_that_waits_says_how_to_find_the_op(monkeypatch):
    monkeypatch.delenv("GRADCORE_LAUNCH_BLOCKING", raising=False)
    device = spoilt_by("relu")
    train(device)
    for call, doing in ((device.synchronize, "synchronizing the device"),
                        (lambda: gradcore.tensor(np.ones(4, np.float32), device=device), "writing a tensor"),
                        (lambda: gradcore.empty(64 << 20, device=device), "allocating memory")):
        with pytest.raises(DeviceFault, match=f"CUDA error 700, noticed while {doing}: .*_LAUNCH_BLOCKING=1 to find the op"):
            call()


def test_streams_and_events_notice_a_fault_too(monkeypatch):
    monkeypatch.delenv("GRADCORE_LAUNCH_BLOCKING", raising=False)
    device = spoilt_by("relu")
    values = gradcore.tensor(np.ones(4, np.float32), device=device)
    event = device.driver.record(device.stream)
    train(device)
    for call, doing in ((lambda: device.driver.synchronize_stream(device.stream), "synchronizing a stream"),
                        (lambda: device.driver.stream_done(device.stream), "querying a stream or an event"),
                        (lambda: device.driver.synchronize_event(event), "synchronizing an event"),
                        (lambda: device.driver.record(device.stream), "ordering streams"),
                        (lambda: device.driver.wait(device.stream, event), "ordering streams"),
                        (values.tolist, "reading a tensor")):
        with pytest.raises(DeviceFault, match=f"CUDA error 700, noticed while {doing}: "):
            call()


def test_other_errors_of_the_runtime_pass_through_a_blocking_launch(monkeypatch):
    monkeypatch.setenv("GRADCORE_LAUNCH_BLOCKING", "1")
    device = spoilt_by("none")
    monkeypatch.setattr(device._cuda, "deviceSynchronize", lambda: (_ for _ in ()).throw(Refused(1)))
    with pytest.raises(Refused):
        gradcore.ones(4, device=device)


@pytest.mark.parametrize(("status", "kind", "words"), [
    (35, KernelError, "cuBLASLt could not launch a matrix product: CUBLAS_STATUS_EXECUTION_FAILED"),
    (716, DeviceFault, r"CUDA error 716, noticed while launching a matrix product: a kernel used a misaligned address \(.*\)\. "
                       "The kernel was launched earlier.*")])
def test_a_library_that_refuses_a_product_is_located(status, kind, words, monkeypatch):
    """A library gives an error of its own for the fault of a kernel before the product, too."""
    lt = FakeLt()

    def refuse(*arguments):
        raise lt.cuBLASLtError("CUBLAS_STATUS_EXECUTION_FAILED")

    def fail():
        raise CUDARuntimeError(status)

    lt.matmul = refuse
    device = spoilt_by("none")
    device.kernels = {**device.kernels, "matmul": gpu.KERNELS["matmul"]}
    library = gpu_gemm.CublasLt(lt, 0, device.bridge.reserve)
    monkeypatch.setattr(gpu_gemm, "library", lambda: library)
    monkeypatch.setattr(gpu_gemm, "current_stream", lambda: 7)
    monkeypatch.setattr(gpu_gemm, "runtime", SimpleNamespace(memGetInfo=fail, CUDARuntimeError=CUDARuntimeError))
    x = gradcore.empty(4, 4, device=device)
    with pytest.raises(kind, match=rf"{words}\n  in op matmul, layer \(root\), phase setup, .*test_faults.py:\d+"):
        x @ x


@pytest.mark.parametrize("cached", [True, False])
def test_a_librarys_code_is_loaded_when_the_pools_have_given_back_what_they_cache(cached, monkeypatch):
    """A product of another shape, as that of an epoch's last batch, may need another kernel of the library's."""
    lt, device = FakeLt(lambda: False), gpu.CudaDevice(0, cuda=Runtime())
    multiply = lt.matmul

    def full(*arguments):
        if device.ledger.reserved > 2 << 20 or not cached:
            raise lt.cuBLASLtError("CUBLAS_STATUS_INTERNAL_ERROR (14)", 14)
        multiply(*arguments)

    lt.matmul = full
    device.kernels = {**device.kernels, "matmul": gpu.KERNELS["matmul"]}
    library = gpu_gemm.CublasLt(lt, 0, device.bridge.reserve)
    monkeypatch.setattr(gpu_gemm, "library", lambda: library)
    monkeypatch.setattr(gpu_gemm, "current_stream", lambda: 7)
    x = gradcore.empty(4, 4, device=device)
    if cached:
        gradcore.empty(1 << 20, device=device)
        x @ x
        assert len(lt.calls) == 1 and device.ledger.reserved == 2 << 20
    else:
        with pytest.raises(KernelError, match="cuBLASLt could not launch a matrix product: CUBLAS_STATUS_INTERNAL_ERROR"):
            x @ x


def test_nothing_is_given_back_in_a_capture():
    """Memory is given back when the device has been waited for, which would end the capture."""
    device = gpu.CudaDevice(0, cuda=Runtime())
    gradcore.empty(1 << 20, device=device)
    with capturing:
        assert not flushed(0) and device.ledger.reserved
    assert flushed(0) and not device.ledger.reserved


@pytest.mark.parametrize(("status", "words"), [
    (2, "its memory is full, so that no context can be created"), (46, "it is busy"), (999, "the driver cannot create")])
def test_a_device_on_which_no_context_can_be_created_says_why(status, words, monkeypatch):
    def refuse(index):
        raise CUDARuntimeError(status)

    # cupy.cuda.runtime is another module once it has been imported by this name.
    for runtime in (gpu.runtime, cupy.cuda.runtime):
        monkeypatch.setattr(runtime, "setDevice", refuse)
        monkeypatch.setattr(runtime, "getDeviceProperties", lambda index: {"major": 9, "minor": 0, "name": b"H200"})
    monkeypatch.setattr(availability, "cuda_status", lambda: availability.CudaStatus((13, 0), 1, ""))
    with pytest.raises(DeviceError, match=rf"cuda:0 cannot be used \(cudaError\w+: .*\): {words}") as found:
        availability._make_cuda(0)
    assert isinstance(found.value.__cause__, CUDARuntimeError)
