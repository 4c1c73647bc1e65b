"""On a real GPU: memory between streams, pinned memory, and the driver's account."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import gradcore
from bench.gpu.streams import Stress, poisoned, sleep
from gradcore import cuda, nn
from gradcore.autograd.graph import save_on_cpu
from gradcore.events import Alloc, Launch

NAP = 20_000_000


def late(device):
    """Delay the current stream; the tests' card is late by itself, and has no other kernels than ours."""
    if "GRADCORE_ON_CARD" not in os.environ:
        sleep(device, NAP)


@pytest.fixture
def device():
    """A separate device, whose segments are unexplained in the account of the device that the other tests use."""
    with poisoned("cuda") as made:
        yield made


def test_a_separate_device_leaves_nothing_behind():
    from gradcore.devices.gpu import loaded as gpu_loaded
    from gradcore.devices.gpu import workspaces as gpu_workspaces

    def registered():
        return [dict(each) for each in (gpu_workspaces.RESERVES, gpu_workspaces.FLUSHES, gpu_workspaces.SHARED,
                                        gpu_loaded.FIGURES)]

    device = gradcore.device("cuda")
    gradcore.ones(1 << 20, device=device).sum().item()
    before, remainder = registered(), device.driver_figures().remainder
    with poisoned("cuda") as other:
        assert gradcore.ones(1 << 20, device=other).sum().item() == 1 << 20
        assert other.bridge.ledger.allocated > 0, "its own memory for what blocks share"
    assert registered() == before
    # A driver may take more for itself meanwhile, the tests' card does not.
    assert "GRADCORE_ON_CARD" not in os.environ or device.driver_figures().remainder == remainder


@pytest.mark.parametrize("seed", range(2))
def test_stamps_survive_on_eight_streams_with_poison(device, seed):
    stress = Stress(device, seed)
    stress.run(2000)
    assert stress.found() == 0
    assert stress.device.ledger.allocated > 0, "the counts themselves"


def test_bytes_are_not_handed_on_while_a_kernel_sleeps(device):
    side, other = cuda.Stream(device), cuda.Stream(device)
    with cuda.stream(side):
        x = gradcore.full((1 << 20,), 3.0, device=device)
        sleep(device, NAP)
        y = x * 2
    address = x.data_ptr()
    del x
    with cuda.stream(other):
        taken = gradcore.full((1 << 20,), -1.0, device=device)
        assert taken.data_ptr() == address, "the bytes are taken, and the work on them waits"
    side.synchronize()
    other.synchronize()
    assert float(y.min().item()) == float(y.max().item()) == 6.0
    assert float(taken.max().item()) == -1.0


def test_a_stream_that_others_recorded_is_waited_for():
    import cupy

    from gradcore.devices.gpu.device import export

    # Poisoning would wait for it too.
    device = gradcore.device("cuda")
    side = cuda.Stream(device)
    x = gradcore.full((1 << 20,), 3.0, device=device)
    array, out = export(x), cupy.zeros(1 << 20, np.float32)
    side.wait_stream(cuda.default_stream(device))
    with cuda.stream(side):
        sleep(device, NAP)
        out.data.copy_from_device_async(array.data, array.nbytes)
    x.record_stream(side)
    del x, array
    gradcore.full((1 << 20,), -1.0, device=device)
    device.synchronize()
    assert float(cupy.asnumpy(out).min()) == 3.0


def test_a_segment_that_a_larger_one_replaces_goes_back_behind_the_work_of_all_streams(device):
    side, found, sizes = cuda.Stream(device), [], [(32 << 20) * 3 ** k // 2 ** k for k in range(4)]
    for k, nbytes in enumerate(sizes):
        with cuda.stream(side):
            x = gradcore.full((nbytes // 4,), k + 1.0, device=device)
            late(device)
            found.append(x.max() + x.min())
            del x
    assert device.ledger.reserved < sizes[-1] + sizes[-2], "all but the last have gone back"
    side.synchronize()
    assert [float(x.item()) for x in found] == [2, 4, 6, 8]


def test_threads_on_streams_of_their_own_draw_each_number_once():
    def draws(count, draw):
        return [draw(nothing) for _ in range(count)]

    def draw(x):
        return x + gradcore.rand(1000, device="cuda")

    def work(draw):
        with cuda.stream(cuda.Stream()):
            late(gradcore.device("cuda"))
            made = draws(30, draw)
            drawn.extend(x.cpu().numpy().tobytes() for x in made)

    nothing = gradcore.zeros(1000, device="cuda")
    gradcore.manual_seed(5)
    expected = [x.cpu().numpy().tobytes() for x in draws(90, draw)]
    assert len(set(expected)) == 90
    gradcore.manual_seed(5)
    gradcore.device("cuda").synchronize()
    drawn: list[bytes] = []
    threads = [threading.Thread(target=work, args=(f,)) for f in (draw, draw, gradcore.compile(draw))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(drawn) == sorted(expected)


def test_events_measure_and_order():
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    side = cuda.Stream()
    with side:
        first.record()
        # Longer than other processes may keep this one from going on.
        sleep(gradcore.device("cuda"), 20 * NAP)
        last.record()
    assert not last.query()
    last.synchronize()
    assert last.query() and side.query() and first.elapsed_time(last) > 1


def test_backward_of_another_streams_forward():
    w = gradcore.rand(64, 64, device="cuda", requires_grad=True)
    (w @ w).relu().sum().backward()
    expected = w.grad.cpu().numpy()
    w.grad = None
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with side:
        sleep(gradcore.device("cuda"), NAP)
        loss = (w @ w).relu().sum()
    with gradcore.step(device="cuda") as step:
        loss.backward()
    np.testing.assert_array_equal(w.grad.cpu().numpy(), expected)
    streams = {r.serial: r.stream for r in step.log if isinstance(r, Alloc)}
    made = {r.invocation.op: streams[r.outputs[0]] for r in step.log if isinstance(r, Launch) and r.outputs}
    assert made["relu_grad"] == made["full"], "not in the place of what the other stream made"


def test_uploads_from_pinned_memory():
    batches = [gradcore.full((1 << 20,), float(k)).pin_memory() for k in range(4)]
    assert all(b.is_pinned() for b in batches)
    sent = [b.to("cuda", non_blocking=True) for b in batches]
    batches.clear()
    gradcore.full((1 << 20,), -1.0).pin_memory()
    assert [float(x.mean().item()) for x in sent] == [0, 1, 2, 3]


def test_a_gradient_takes_the_place_of_no_pinned_operand():
    w, pinned = gradcore.ones(1000, requires_grad=True), []
    x = w * 1
    x.register_hook(lambda g: pinned.append(g.is_pinned()))
    (x * gradcore.full((1000,), 2.0).pin_memory()).sum().backward()
    assert pinned == [False] and w.grad.sum() == 2000


@pytest.mark.parametrize("size", [7, 1 << 16, 1 << 22])
def test_what_was_uploaded_from_pageable_memory_may_change_at_once(size):
    """A copy of any size is staged when the call returns, though the work before it is not done."""
    device = gradcore.device("cuda")
    array, tensor = np.full(size, 3.0, np.float32), gradcore.full((size,), 5.0)
    # Its elements are not adjacent, so NumPy makes an array of them, which is gone after the call.
    strided = gradcore.full((size, 2), 7.0).pin_memory()[:, 0]
    sleep(device, NAP)
    device.order(device.current, device.copies)
    sent = [gradcore.tensor(array, device=device), tensor.to(device), strided.to(device, non_blocking=True)]
    array.fill(-1)
    tensor.fill_(-1)
    reused = [np.full(size, -1, np.float32) for _ in range(4)]
    assert [(x.min().item(), x.max().item()) for x in sent] == [(3, 3), (5, 5), (7, 7)]
    del reused


def test_residuals_in_pinned_memory():
    def gradients(pinned):
        gradcore.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10)).to("cuda")
        x = gradcore.rand(512, 256, device="cuda")
        if pinned:
            with save_on_cpu(pin_memory=True):
                loss = model(x).square().mean()
        else:
            loss = model(x).square().mean()
        loss.backward()
        return [p.grad.cpu().numpy() for p in model.parameters()]

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_drivers_figure_reconciles():
    before = gradcore.device("cuda").driver_figures()
    with gradcore.step(device="cuda") as s:
        held = gradcore.zeros(64 << 20, device="cuda")
        # Code that other tests hardly load.
        gradcore.ones(3, dtype=gradcore.float64, device="cuda").asinh().acosh()
    found = s.report.driver
    assert found is not None and found.used is not None, found
    assert found.used == (found.context or 0) + found.segments + found.library + found.remainder
    assert found.segments >= held.nbytes, found
    # The card's bytes, where the driver does not say this process's, are those of other processes, too.
    assert found.source != "NVML, this process" or abs(found.remainder) < found.used / 4, found
    # The tests' card takes nothing for itself: all that came is a segment's, or code's.
    assert "GRADCORE_ON_CARD" not in os.environ or found.remainder == before.remainder, (before, found)
