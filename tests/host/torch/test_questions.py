"""What scripts ask before they choose a device, join a group of processes, or keep a function out of a program."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.errors import DeviceError, TraceError


def test_the_device_of_a_tutorial() -> None:
    device = gradcore.accelerator.current_accelerator().type if gradcore.accelerator.is_available() else "cpu"
    assert device == ("cuda" if gradcore.cuda.is_available() else "cpu")
    assert nn.Linear(2, 3).to(device)(gradcore.ones(1, 2, device=device)).device.type == device


def test_the_accelerator_is_the_gpu() -> None:
    accelerator = gradcore.accelerator
    assert accelerator.is_available() == gradcore.cuda.is_available()
    assert accelerator.device_count() == gradcore.cuda.device_count()
    found = accelerator.current_accelerator(check_available=True)
    if not gradcore.cuda.is_available():
        assert found is accelerator.current_accelerator() is None
        assert accelerator.max_memory_allocated() == accelerator.memory_reserved() == 0
        with pytest.raises(DeviceError, match="cuda is not available"):
            accelerator.synchronize()
    else:
        assert found is gradcore.device("cuda") and accelerator.current_device_index() == found.index
        accelerator.synchronize()
        assert accelerator.memory_allocated() == gradcore.cuda.memory_allocated()


def test_the_first_gpu_may_be_made_the_current_one() -> None:
    """Scripts do so with the number of their process, which is 0, or -1 for none; see also test_several_gpus.py."""
    from gradcore.cuda import device, set_device
    assert set_device(-1) is None
    with device(-1):
        assert gradcore.accelerator.set_device_index is set_device
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        set_device("cpu")
    if gradcore.cuda.is_available():
        assert set_device(0) is set_device("cuda") is None
    else:
        with pytest.raises(DeviceError, match="cuda is not available"), device(0):
            pass


def test_a_process_is_alone() -> None:
    import gradcore.distributed as dist
    assert not dist.is_available() and not (dist.is_available() and dist.is_initialized())
    assert not hasattr(dist, "all_reduce")
    for line in ("from gradcore.distributed import all_reduce", "import gradcore.distributed.fsdp"):
        with pytest.raises(ImportError, match="Nearest: one process on one device"):
            exec(line)


def test_what_scripts_for_several_processes_import() -> None:
    """They use it if there are several, and ask whether a model is wrapped."""
    import gradcore.multiprocessing as mp
    from gradcore.distributed import destroy_process_group, init_process_group
    from gradcore.nn.parallel import DataParallel, DistributedDataParallel
    from gradcore.utils.data import DistributedSampler
    from gradcore.utils.data.distributed import DistributedSampler as Same
    from gradcore.utils.hooks import RemovableHandle
    layer = gradcore.nn.Linear(2, 3)
    assert not isinstance(layer, (DataParallel, DistributedDataParallel)) and Same is DistributedSampler
    for call in (lambda: init_process_group("nccl"), destroy_process_group, lambda: DistributedDataParallel(layer, [0]),
                 lambda: DistributedSampler([1, 2])):
        with pytest.raises(NotImplementedError, match="one process on one device"):
            call()
    assert mp.get_context("spawn").Process and mp.cpu_count() > 0
    handle = layer.register_forward_hook(lambda *what: None)
    assert isinstance(handle, RemovableHandle)
    handle.remove()


def test_a_function_that_is_kept_out_of_programs() -> None:
    seen: list[bool] = []

    @gradcore.compiler.disable
    def noted(x: Any) -> Any:
        seen.append(gradcore.compiler.is_compiling())
        return x * 2

    @gradcore.compiler.disable(recursive=False, reason="none")
    def doubled(x: Any) -> Any:
        return x + x

    compiled = gradcore.compile(lambda x: noted(x) + 1)
    for k in range(3):
        assert compiled(gradcore.full((2,), float(k))).tolist() == [2.0 * k + 1] * 2
    # It runs in each call, since it changes a list.
    assert seen == [True] * 3 and "append() on seen" in compiled.explain()
    assert not gradcore.compiler.is_compiling() and not gradcore.compiler.is_dynamo_compiling()

    again = gradcore.compile(lambda x: doubled(x) * (3 if gradcore.compiler.is_compiling() else 0))
    gradcore.compiler.cudagraph_mark_step_begin()
    assert [again(gradcore.ones(1)).item() for _ in range(2)] == [6.0, 6.0] and len(again.programs) == 1
    checked = gradcore.compile(lambda x: x * (2 if gradcore.compiler.is_compiling() else 3), check_every=2)
    assert [checked(gradcore.ones(1)).item() for _ in range(5)] == [2.0] * 5


def test_what_looks_for_nan_in_a_trace_is_named() -> None:
    w = gradcore.ones(2, requires_grad=True)
    with gradcore.autograd.detect_anomaly(), pytest.raises(TraceError, match="by anomaly detection, which looks for NaN"):
        gradcore.compile(lambda x: (x * w).sum().backward())(gradcore.ones(2))


def test_the_strides_of_an_argument_are_told() -> None:
    compiled, x = gradcore.compile(lambda x: x * 2), gradcore.ones(1, 9)
    for k in (8, 9):
        compiled(x[:, :k].T.T[:, -1:])
        x = gradcore.ones(1, 9 + k)
    assert compiled.traces[1] == "argument 0, float32[1, 1] on cpu, has strides (17, 1) and had (9, 1)"


def test_attention_has_one_kernel_whichever_is_asked_for() -> None:
    from gradcore.backends.cuda import sdp_kernel
    from gradcore.nn.attention import SDPBackend, sdpa_kernel

    q = gradcore.rand(2, 3, 5, 4)
    expected = nn.functional.scaled_dot_product_attention(q, q, q).tolist()
    gradcore.backends.cuda.enable_flash_sdp(False)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]), sdp_kernel(enable_math=False):
        assert nn.functional.scaled_dot_product_attention(q, q, q).tolist() == expected
    with pytest.raises(TypeError, match="expected a SDPBackend or a list of them, but got str"), sdpa_kernel("math"):
        pass


def test_a_storage_is_no_method() -> None:
    with pytest.raises(NotImplementedError, match=r"Nearest: x\.storage\.nbytes"):
        gradcore.ones(2).storage()


def test_what_keeps_a_result_of_a_trace_is_named() -> None:
    held: Any = {}

    def stored(x: Any) -> Any:
        held["y"] = x * 2
        return x + 1

    def required(x: Any) -> Any:
        (x.requires_grad_() * 2).sum().backward()
        return x + 1

    for f, reasons in ((stored, ["after the run, by a dict"]),
                       (required, ["after the run, as a gradient", "it makes an argument require a gradient: call x = "])):
        compiled = gradcore.compile(f)
        compiled(gradcore.ones(2))
        assert all(reason in compiled.traces[0] for reason in reasons), compiled.traces


def test_the_gradient_of_what_is_no_leaf_is_asked_for_in_vain(torch: Any) -> None:
    for t in (gradcore, torch):
        x = t.ones(2, requires_grad=True)
        inner, kept = x * 2, x * 3
        kept.retain_grad()
        (inner + kept).sum().backward()
        with pytest.warns(UserWarning, match="a Tensor that is not a leaf Tensor is being accessed") as told:
            assert inner.grad is None
        assert told[0].filename == __file__
        assert kept.grad.tolist() == [1, 1] and x.grad.tolist() == [5, 5] and inner.detach().grad is None
