"""Programs as CUDA graphs, without a GPU: programs that cannot be captured give the reason, and change no state."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import cupy

import gradcore
from gradcore import nn
from gradcore.devices.gpu import device as gpu
from gradcore.devices.gpu import launch as gpu_launch
from gradcore.errors import CaptureError, DeviceFault, OutOfMemory
from gradcore.events import UNTAGGED
from gradcore.memory.driver import capturing
from tests.conftest import raises
from tests.host.cuda.captured_steps import Training, full, on, plant
from tests.host.cuda.graph_bed import bits
from tests.meta.graph_card import GraphCard
from tests.meta.test_interrupts import at_every_moment

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]


REFUSED = {
    "an allocation from the pool": (lambda bed: bed.device.allocate(512, UNTAGGED),
                                    "512 bytes were allocated during a capture"),
    "an allocation of CuPy's": (lambda bed: cupy.ndarray((100,), np.float32), "400 bytes were allocated during a capture"),
    "a read on the host": (lambda bed: bed.card.streamSynchronize(bed.card.current), "cudaError 900"),
    "a wait for the device": (lambda bed: bed.card.deviceSynchronize(), "cudaError 900")}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_captured_is_called_one_by_one_and_says_why(bed, what):
    during, text = REFUSED[what]
    plant(bed, "tanh", lambda: during(bed))
    f = gradcore.compile(lambda x: x.tanh() * 2)
    gc.enable()
    try:
        for k in range(4):
            assert bits(f(full(k))) == bits(full(k).tanh() * 2)
        assert gc.isenabled()
    finally:
        gc.disable()
    reason = f.explain()
    assert "its kernels are launched one by one: tanh in layer (root), forward, " in reason and text in reason
    assert "test_capture_limits.py:" in reason and bed.card.calls["streamBeginCapture"] == 1
    assert not bed.card.nodes
    g = gradcore.compile(lambda x: x * 2 + 1)
    for k in range(3):
        assert bits(g(full(k))) == bits(full(k) * 2 + 1)
    assert "2 kernel calls are captured in one graph" in g.explain()
    assert bed.card.calls["streamCreateWithPriority"] == 1, "the stream captures again"


def test_a_second_part_that_cannot_be_captured_is_called_one_by_one(bed):
    plant(bed, "tanh_grad", lambda: bed.device.allocate(512, UNTAGGED))
    weight = full(1.0).requires_grad_()

    def run(x):
        # The gradient is gone when the capture of the second part is given up.
        y = (x * weight).tanh() * weight.grad
        weight.grad = None
        return y.sum()

    f = gradcore.compile(run)
    for k in range(5):
        found = []
        for each in (run, f):
            weight.grad = full(k + 2.0)
            found.append(bits(*gradcore.autograd.grad(each(full(k)), weight)))
        assert found[0] == found[1]
    assert "its kernels are launched one by one: tanh_grad in layer (root), " in f.explain()


def test_a_capture_that_fails_raises_a_capture_error_and_leaves_things_as_they_were(bed):
    graphs, names = bed.device.graphs, []
    with pytest.raises(CaptureError, match="1,024 bytes were allocated during a capture"):
        graphs.capture(lambda: bed.device.allocate(1024, UNTAGGED))
    with pytest.raises(KeyboardInterrupt):
        graphs.capture(lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    for name in ("streamEndCapture", "graphInstantiate", "streamBeginCapture"):
        bed.card.faults = {name: (bed.card.calls[name] + 1,)}
        with pytest.raises(DeviceFault, match="700, noticed while capturing a program"):
            graphs.capture(lambda: None)
    graph = graphs.capture(lambda: bed.card.give("planted", lambda: names.append("ran")))
    assert names == [] and bed.card.nodes == {graph._handle: ["planted"]}
    graph.launch(bed.device.stream)
    bed.card.deviceSynchronize()
    assert names == ["ran"] and bed.card.calls["streamCreateWithPriority"] == 1 and bed.card.current == 0


@pytest.mark.parametrize("where", ["/gradcore/devices/gpu/graphs.py", "/contextlib.py"])
def test_a_capture_that_is_interrupted_is_over(bed, where, monkeypatch):
    """Else no thread could wait for the device any more, and this one would compute on the stream that captures."""
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    graphs, enabled = bed.device.graphs, gc.isenabled()
    gc.enable()
    try:
        for _ in at_every_moment(lambda: graphs.capture(lambda: None), where):
            assert not bed.card.capturing and bed.card.current == 0 and not bed.card.graphs
            assert gc.isenabled() and not capturing._is_owned() and not graphs._lock._is_owned()
            bed.device.allocate(512, UNTAGGED)
    finally:
        if not enabled:
            gc.disable()


def test_a_fault_of_the_device_is_no_reason_to_go_on(bed):
    f = gradcore.compile(lambda x: x * 2)
    f(full(1))
    bed.card.faults = {"graphInstantiate": (1,)}
    with raises(DeviceFault, "700"):
        f(full(1))
    bed.card.faults = {"graphLaunch": (1,)}
    f(full(1))
    with raises(DeviceFault, "700, noticed while launching a program"):
        f(full(1))
    assert f(full(1)).tolist() == [2] * 4


def test_a_stream_that_stays_in_a_capture_is_given_up(bed, monkeypatch):
    monkeypatch.setattr(bed.card, "streamEndCapture", lambda stream: 0)
    with pytest.raises(ZeroDivisionError):
        bed.device.graphs.capture(lambda: 1 / 0)
    monkeypatch.undo()
    stuck = dict(bed.card.capturing)
    bed.card.capturing.clear()
    bed.device.graphs.capture(lambda: None)
    assert len(stuck) == 1 and bed.card.calls["streamCreateWithPriority"] == 2


def test_other_threads_allocate_while_one_captures(bed):
    found = []
    thread = threading.Thread(target=lambda: found.append(bed.device.allocate(512, UNTAGGED).nbytes))

    def run():
        thread.start()
        thread.join()

    # The pool has enough free memory, so no cudaMalloc is needed.
    gradcore.zeros(8, **on)
    bed.device.graphs.capture(run)
    assert found == [512]


def test_other_threads_wait_for_the_device_after_the_capture(bed):
    thread = threading.Thread(target=bed.device.driver.synchronize)
    done = []

    def run():
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        bed.card.give("work", lambda: done.append(1))

    graph = bed.device.graphs.capture(run)
    thread.join()
    graph.launch(bed.device.stream)
    bed.device.driver.synchronize()
    assert done == [1]


def test_a_library_that_refuses_is_named(bed):
    bed.use_cublas()
    eager, captured = Training(), Training(wrap=gradcore.compile)
    for k in range(5):
        assert eager.step(k) == captured.step(k) and eager.state() == captured.state()
    assert "calling cuBLAS API during stream capture is currently unsupported" in captured.run.explain()
    assert "linear in layer 0, forward, " in captured.run.explain()


def test_who_waits_after_each_kernel_has_no_graphs(monkeypatch):
    monkeypatch.setenv("GRADCORE_LAUNCH_BLOCKING", "1")
    assert gpu.CudaDevice(0, cuda=GraphCard()).graphs is None


def test_compile_without_capture(bed):
    f = gradcore.compile(lambda x: x * 2, capture=False)
    for k in range(3):
        assert f(full(k)).tolist() == [2 * k] * 4
    assert not bed.card.calls["streamBeginCapture"]


def test_the_collector_is_off_during_a_capture(bed):
    gc.enable()
    seen = []
    try:
        bed.device.graphs.capture(lambda: seen.append(gc.isenabled()))
        assert seen == [False] and gc.isenabled()
    finally:
        gc.disable()


def test_captures_of_two_gpus_at_once_are_without_the_garbage_collector(bed, monkeypatch):
    """There is one in a process: the end of the first capture would enable it during the second."""
    seen, ask, asked = [], gc.isenabled, threading.Event()
    second = gpu.CudaDevice(1, cuda=GraphCard())
    monkeypatch.setattr(second, "launch_on", lambda stream: None)
    other = threading.Thread(target=lambda: second.graphs.capture(lambda: seen.append(ask())))

    def run():
        other.start()
        asked.wait(1)

    def isenabled():
        if threading.current_thread() is other:
            asked.set()
        return ask()

    monkeypatch.setattr(gc, "isenabled", isenabled)
    gc.enable()
    try:
        bed.device.graphs.capture(run)
        other.join()
        assert seen == [False] and ask()
    finally:
        gc.disable()


def test_a_layer_that_is_compiled_names_where_it_cannot_be_captured(bed):
    plant(bed, "tanh", lambda: bed.device.allocate(64, UNTAGGED))
    model = nn.Sequential(nn.Tanh(), nn.Tanh())
    f = gradcore.compile(model)
    for k in range(3):
        f(full(k))
    assert "tanh in layer 0, forward, " in f.explain()


def test_what_lies_between_the_elements_of_an_argument_is_not_written(bed):
    """Another stream may write there while the program runs."""
    base = gradcore.zeros(6, 8, **on)
    x, between, kernel = base[:, :4], base[:, 4:], bed.device.kernels["mul_"]

    def elsewhere():
        for row in range(6):
            ctypes.memset(between.array.data.ptr + 32 * row, k + 1, 16)

    def along(*given):
        gpu_launch.refuse_notes()
        bed.card.give("elsewhere", elsewhere)
        kernel(*given)

    bed.device.kernels["mul_"] = along
    f = gradcore.compile(lambda x: x.mul_(2))
    for k in range(5):
        base.storage.device.copy_in(base.array, np.full((6, 8), k, np.float32))
        assert f(x).tolist() == [[2 * k] * 4] * 6 and between.cpu().numpy().tobytes() == bytes([k + 1]) * 96
    assert "1 kernel calls are captured in one graph" in f.explain()


def test_an_argument_in_the_memory_of_a_tensor_that_is_written_is_not_copied_apart(bed):
    w, other = full(1), full(5)

    def adds(x):
        w.add_(1)
        return x * 2

    def writes(x):
        x.add_(1)
        return other * 2

    def reads(x):
        return x * other

    adding, writing, reading = map(gradcore.compile, (adds, writes, reads))
    for k in range(3):
        assert adding(full(k)).tolist() == [2 * k] * 4 and writing(full(k)).tolist() == [10] * 4
        assert reading(full(k)).tolist() == [5 * k] * 4
    assert adding(w).tolist() == [10] * 4 and adding(w[:]).tolist() == [12] * 4
    assert writing(other).tolist() == [12] * 4 and writing(other).tolist() == [14] * 4
    assert "lies in the memory of another tensor" in adding.traces[1] and "lies in the memory of another" in writing.traces[1]
    # What is only read may be shared.
    assert reading(other[:]).tolist() == [49] * 4 and len(reading.traces) == 1


@pytest.mark.parametrize("call", ["graphInstantiate", "graphLaunch"])
def test_a_graph_for_which_the_card_has_no_room_gets_what_the_pool_has_cached(bed, monkeypatch, call):
    whole, tried = getattr(bed.card, call), []

    def fails_once(*given):
        tried.append(bed.device.ledger.reserved)
        # Who asks the pool may wait with its lock until no capture goes on.
        assert not capturing._is_owned()
        if len(tried) == 1:
            raise bed.card.CUDARuntimeError(2)
        return whole(*given)

    f = gradcore.compile(lambda x: x * 2 + 1)
    f(full(0))
    monkeypatch.setattr(bed.card, call, fails_once)
    cached = gradcore.empty(64 << 20, **on)
    del cached
    for k in range(4):
        assert bits(f(full(k))) == bits(full(k) * 2 + 1)
    assert "are captured in one graph" in f.explain() and tried[1] <= tried[0] - (64 << 20)
    monkeypatch.setattr(bed.card, call, whole)


def test_a_program_for_which_the_card_has_no_room_at_all_is_out_of_memory(bed, monkeypatch):
    def fails(*given):
        raise bed.card.CUDARuntimeError(2)

    f, w = gradcore.compile(lambda x: x * w), full(3)
    for k in range(3):
        f(full(k))
    with monkeypatch.context() as patch:
        patch.setattr(bed.card, "graphLaunch", fails)
        with raises(OutOfMemory, "no room on the card for a captured program"):
            f(full(5))
    assert f(full(5)).tolist() == [15] * 4 and "are captured in one graph" in f.explain()


def test_a_program_without_room_for_copies_runs_its_kernels_one_by_one_until_there_is(bed, monkeypatch):
    weight, allocate = full(1.0).requires_grad_(), bed.device.allocate
    optimizer = gradcore.optim.SGD([weight], lr=0.5)

    @gradcore.compile
    def f(x):
        optimizer.step()
        return x * weight.detach()

    def full_up(nbytes, tag):
        if tag.op == "program":
            raise OutOfMemory(f"out of memory: planted for {tag.role} of {tag.op}\nand those who hold the rest")
        return allocate(nbytes, tag)

    monkeypatch.setattr(bed.device, "allocate", full_up)
    weight.grad = full(4.0)
    for k in range(7):
        if k == 4:
            # There is room, and the pool has it.
            monkeypatch.undo()
            gradcore.zeros(1 << 20, device="cuda")
        optimizer.param_groups[0]["lr"] = k
        assert f(full(1)).tolist() == [1 - 4 * sum(range(k + 1))] * 4
        if 1 <= k < 4:
            assert ("  in its last run its kernels were launched one by one: there is no room for copies of what differs "
                    "from run to run: out of memory: planted for input of program") in f.explain().splitlines()
    assert f.explain().endswith("captured in one graph") and len(bed.device.ledger.arenas) == 1
