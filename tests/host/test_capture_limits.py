"""Programs as CUDA graphs, with no GPU: what cannot be captured, what moves, streams, and what is left behind."""

from __future__ import annotations

import gc
import shutil
import threading

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore  # noqa: E402
from gradcore import cuda, nn  # noqa: E402
from gradcore.devices import gpu_numbers, gpu_optimizers  # noqa: E402
from gradcore.errors import CaptureError  # noqa: E402
from gradcore.events import TAGS  # noqa: E402
from tests.host.graph_bed import Bed, bits, emulator_of  # noqa: E402
from tests.host.test_capture import Training, on  # noqa: E402

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]


def launched(bed):
    """Everything that the tests below launch."""
    for kind in ("SGD", "Adam"):
        training = Training(kind, gradcore.compile)
        for k in range(3):
            training.step(k)
    w = gradcore.ones(4, requires_grad=True, **on)
    for _ in range(2):
        (w * gradcore.ones(4, **on)).tanh().sum().backward()
        y = (w * gradcore.ones(4, **on)).tanh()
        (y.sum() * 1 + (y * 2).sum() * 2).backward()
        w[:1].expand(4).contiguous()
    x = gradcore.ones(3, 4, **on)
    x.mul_(3).add_(1)
    for y in (x, x.transpose(0, 1), x[1:, 1:], gradcore.zeros(0, 4, **on)):
        (y.tanh() * 2 + 1).sum()
    x[0].add_(x[1])


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulator_of(tmp_path_factory.mktemp("limits"), launched)


@pytest.fixture
def bed(emulator):
    with Bed(emulator).in_place() as found:
        yield found
        found.card.deviceSynchronize()
        assert found.card.wrong == [] and found.card.graphs == {} and found.card.capturing == {}
        assert found.device.memory is found.device.stack.top and found.device.bridge.capturing is None


def full(value, *shape):
    return gradcore.full(shape or (4,), float(value), **on)


def plant(bed, op, during):
    """Let the kernel of ``op`` do something first, in a capture alone."""
    kernel = bed.device.kernels[op]

    def planted(*arrays, **attrs):
        if bed.card.capturing:
            during()
        kernel(*arrays, **attrs)

    bed.device.kernels[op] = planted


# -- what cannot be captured -----------------------------------------------------------------------------------------------

REFUSED = {
    "an allocation from the pool": (lambda bed: bed.device.allocate(512, 0), "512 bytes were allocated during the capture"),
    "an allocation of CuPy's": (lambda bed: cupy.ndarray((100,), np.float32), "400 bytes were allocated during the capture"),
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
    assert "its kernels are called one by one: tanh in layer (root), setup, " in reason and text in reason
    assert "test_capture_limits.py:" in reason and bed.card.calls["streamBeginCapture"] == 1
    assert not bed.card.nodes
    g = gradcore.compile(lambda x: x * 2 + 1)
    for k in range(3):
        assert bits(g(full(k))) == bits(full(k) * 2 + 1)
    assert "2 kernels' calls are one graph" in g.explain()
    assert bed.card.calls["streamCreateWithPriority"] == 1, "the stream captures again"


def test_a_capture_that_fails_raises_a_capture_error_and_leaves_things_as_they_were(bed):
    graphs, names = bed.device.graphs, []
    with pytest.raises(CaptureError, match="1,024 bytes were allocated during the capture"):
        graphs.capture(lambda: bed.device.allocate(1024, 0))
    with pytest.raises(KeyboardInterrupt):
        graphs.capture(lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    for name in ("streamEndCapture", "graphInstantiate", "streamBeginCapture"):
        bed.card.faults = {name: (bed.card.calls[name] + 1,)}
        with pytest.raises(bed.card.CUDARuntimeError, match="700"):
            graphs.capture(lambda: None)
    graph = graphs.capture(lambda: bed.card.give("planted", lambda: names.append("ran")))
    assert names == [] and bed.card.nodes == {graph._handle: ["planted"]}
    graph.launch(bed.device.stream)
    bed.card.deviceSynchronize()
    assert names == ["ran"] and bed.card.calls["streamCreateWithPriority"] == 1 and bed.card.current == 0


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
    thread = threading.Thread(target=lambda: found.append(bed.device.allocate(512, 0).nbytes))

    def run():
        thread.start()
        thread.join()

    # The pool has room, so that no cudaMalloc is needed.
    gradcore.zeros(8, **on)
    bed.device.graphs.capture(run)
    assert found == [512]


def test_a_library_that_refuses_is_named(bed):
    bed.products.refuses = True
    eager, captured = Training(), Training(wrap=gradcore.compile)
    for k in range(5):
        assert eager.step(k) == captured.step(k) and eager.state() == captured.state()
    assert "calling cuBLAS API during stream capture is currently unsupported" in captured.run.explain()
    assert "linear in layer 0, forward, " in captured.run.explain()


def test_compile_without_capture(bed):
    f = gradcore.compile(lambda x: x * 2, capture=False)
    for k in range(3):
        assert f(full(k)).tolist() == [2 * k] * 4
    assert not bed.card.calls["streamBeginCapture"]


# -- what would be baked ---------------------------------------------------------------------------------------------------


def test_a_rate_that_a_kernel_asks_for_cannot_be_captured(bed):
    sgd = bed.device.kernels["sgd_"]
    bed.device.kernels["sgd_"] = lambda *args, **attrs: sgd(*args[:3], float(args[3]), *args[4:], **attrs)
    eager, captured = Training("SGD"), Training("SGD", gradcore.compile)
    for k in range(5):
        assert eager.step(k) == captured.step(k) and eager.state() == captured.state()
    assert "sgd_ in layer (root), optimizer" in captured.run.explain()
    assert "asks for the value of a number that changes from run to run" in captured.run.explain()


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_planted_rate_in_a_kernels_arguments_is_found(bed, kind, monkeypatch):
    """Without the guard above, the comparison with eager steps sees it as soon as the schedule moves."""
    monkeypatch.setattr(gpu_optimizers, "Moving", type(None))
    monkeypatch.setattr(gpu_numbers.Moving, "__float__", lambda self: float(self.block.values[self.at]))
    eager, captured = Training(kind), Training(kind, gradcore.compile)
    for k in range(3):
        eager.step(k), captured.step(k)
    assert eager.state() == captured.state(), "the run before the capture"
    eager.step(3), captured.step(3)
    assert "are one graph" in captured.run.explain() and eager.state() != captured.state()


def test_a_planted_missing_copy_of_an_input_is_found(bed, monkeypatch):
    f = gradcore.compile(lambda x: x.tanh() * 2)
    for k in range(3):
        f(full(k))
    assert bits(f(full(5))) == bits(full(5).tanh() * 2)
    monkeypatch.setattr(bed.device.graphs, "copy", lambda *arguments: None)
    assert bits(f(full(7))) == bits(full(5).tanh() * 2)


def test_a_number_that_comes_during_the_capture_comes_too_late():
    sent = []
    numbers = gpu_numbers.Numbers(1, 4096, lambda *copied: sent.append(copied))
    rate, step = numbers.number(), numbers.number()
    numbers.values[:] = [0.5, 3]
    numbers.frozen = True
    dtype = np.dtype([("rate", "f8"), ("power", "f8")])
    with pytest.raises(CaptureError, match="first asked for during the capture"):
        numbers.hold(dtype, lambda a, b: (a, a ** b), (rate, step))
    with pytest.raises(CaptureError, match="asks for the value"):
        float(rate)
    numbers.frozen = False
    assert float(rate) == 0.5 and numbers.hold(dtype, lambda a, b: (a, a ** b), (rate, step)) == 4096
    assert sent[0][::2] == (4096, 16)
    numbers.frozen = True
    assert numbers.hold(dtype, lambda a, b: (a, a ** b), (rate, step)) == 4096 and len(sent) == 1
    numbers.values[:] = [2.0, 5]
    numbers.fill()
    assert numbers._staged[:16].view(np.float64).tolist() == [2.0, 32.0] and sent[1][::2] == (4096, 128)


# -- addresses -------------------------------------------------------------------------------------------------------------


def test_every_address_in_a_graph_is_the_programs_own_or_captured(bed):
    captured = Training(wrap=gradcore.compile)
    for k in range(3):
        captured.step(k)
    replay = next(iter(captured.run._entries.values()))[0].replay
    blocks = [replay._arena.block, replay._own.block, *(s.block for s in replay.trace.storages.values())]
    ranges = [(b.address, b.address + b.size) for b in blocks]
    segments = [(at, at + len(memory)) for at, memory in bed.card.held.items()]
    words = [int(word) for arguments in bed.captured for a in arguments if a.nbytes % 8 == 0
             for word in np.frombuffer(a.tobytes(), np.uint64)]
    pointers = [w for w in words if any(low <= w < high for low, high in segments)]
    assert len(pointers) > 40
    assert [p for p in pointers if not any(low <= p < high for low, high in ranges)] == []


def test_a_gradient_that_is_held_is_not_written_to(bed):
    eager, captured = Training(), Training(wrap=gradcore.compile)
    held = []
    for k in range(9):
        assert eager.step(k) == captured.step(k) and eager.state() == captured.state()
        if k in (3, 6):
            held += [[p.grad for p in t.model.parameters()] for t in (eager, captured)]
    assert list(map(bits, held[0])) == list(map(bits, held[1])) and list(map(bits, held[2])) == list(map(bits, held[3]))
    assert "are one graph" in captured.run.explain() and bed.card.calls["streamBeginCapture"] == 3
    assert len(bed.card.nodes) == 1, "the graphs over the other arenas are gone"


def test_a_program_whose_memory_always_moves_is_not_captured_for_ever(bed):
    eager, captured = Training(), Training(wrap=gradcore.compile)
    held = []
    for k in range(9):
        assert eager.step(k) == captured.step(k) and eager.state() == captured.state()
        held += [p.grad for p in captured.model.parameters()]
    assert "moved 3 times before it was launched" in captured.run.explain()
    assert bed.card.calls["streamBeginCapture"] == 3 and not bed.card.nodes
    captured.run._entries.clear()


def test_gradients_that_add_up_are_captured_where_they_lie(bed):
    w = gradcore.ones(4, requires_grad=True, **on)
    f = gradcore.compile(lambda x: (w * x).tanh().sum().backward())
    expected = gradcore.ones(4, requires_grad=True, **on)
    for k in range(12):
        if k in (5, 9):
            w.grad, expected.grad = full(2), full(2)
        f(full(k / 8))
        (expected * full(k / 8)).tanh().sum().backward()
        assert bits(w.grad) == bits(expected.grad), k
    assert "are one graph" in f.explain() and bed.card.calls["graphLaunch"] >= 5


def test_memory_that_a_captured_tensor_leaves_is_noticed(bed):
    w = gradcore.ones(4, **on)
    f = gradcore.compile(lambda x: w * x)
    for k in range(3):
        f(full(k))
    replay = next(iter(f._entries.values()))[0].replay
    other = full(9)
    storage = w.storage
    before, storage.block = storage.block, other.storage.block
    try:
        assert replay.run([full(2)])[0].tolist() == [18] * 4
    finally:
        storage.block = before
    assert replay.run([full(2)])[0].tolist() == [2] * 4


# -- what a run brings -----------------------------------------------------------------------------------------------------


def test_inputs_of_any_layout_and_inputs_that_share_bytes(bed):
    f = gradcore.compile(lambda x, y: (x.tanh() * 2 + 1, y * 2))
    for k in range(4):
        whole = full(k, 3, 4)
        whole[0].add_(whole[1])
        for x, y in ((whole, whole), (whole.transpose(0, 1), full(k)), (whole[1:, 1:], whole), (whole[:0], full(k))):
            for found, expected in zip(f(x, y), (x.tanh() * 2 + 1, y * 2), strict=True):
                assert bits(found) == bits(expected)
    assert f.explain().count("are one graph") == 4


def test_an_input_that_has_other_values_by_now(bed):
    f = gradcore.compile(lambda x: x.tanh() * 2)
    x = full(0)
    for _ in range(5):
        x.add_(1)
        assert bits(f(x)) == bits(x.tanh() * 2)


def test_an_input_that_is_written_to_is_written_to(bed):
    f = gradcore.compile(lambda x: x.mul_(3).add_(1))
    for k in range(5):
        x = full(k)
        version = x._version
        assert f(x).storage is x.storage and x.tolist() == [3 * k + 1] * 4 and x._version > version
    assert "2 kernels' calls are one graph" in f.explain()


def test_a_caller_differentiates(bed):
    w, v = (gradcore.ones(4, requires_grad=True, **on) for _ in range(2))
    f, g = gradcore.compile(lambda x: (w * x).tanh()), lambda x: (v * x).tanh()
    for k in range(5):
        xs = [full(k / 8), full(k / 4)]
        for run in (f, g):
            ys = [run(x) for x in xs]
            (ys[0].sum() * 1 + ys[1].sum() * 2).backward()
        assert bits(w.grad) == bits(v.grad), k
    assert "of the second part" in f.explain() and len(bed.card.nodes) == 4, "two arenas, two parts each"
    del f, run
    assert not bed.card.nodes


@pytest.mark.parametrize(("op", "begun"), [("tanh", 1), ("tanh_grad", 2)])
def test_a_caller_differentiates_what_cannot_be_captured(bed, op, begun):
    plant(bed, op, lambda: bed.device.allocate(64, 0))
    w, v = (gradcore.ones(4, requires_grad=True, **on) for _ in range(2))
    f = gradcore.compile(lambda x: (x * w).tanh())
    for k in range(4):
        x, y = (full(k / 8).requires_grad_() for _ in range(2))
        f(x * 2).sum().backward()
        (y * 2 * v).tanh().sum().backward()
        assert bits(w.grad) == bits(v.grad) and bits(x.grad) == bits(y.grad), k
    assert f"one by one: {op} in layer (root)" in f.explain() and not bed.card.nodes
    assert bed.card.calls["streamBeginCapture"] == begun


def test_every_nth_call_is_checked_against_eager(bed):
    training = Training(wrap=lambda step: gradcore.compile(step, check_every=2))
    for k in range(8):
        training.step(k)
    assert "are one graph" in training.run.explain()


# -- life ------------------------------------------------------------------------------------------------------------------


def test_two_graphs_live_at_once_and_go_with_their_programs(bed):
    eager, one, two = Training("SGD"), Training("SGD", gradcore.compile), Training("Adam", gradcore.compile)
    other = Training("Adam")
    for k in range(7):
        assert (eager.step(k), other.step(k)) == (one.step(k), two.step(k))
    assert eager.state() == one.state() and other.state() == two.state()
    assert len(bed.card.nodes) == 2 and bed.card.calls["streamCreateWithPriority"] == 2
    del one
    assert len(bed.card.nodes) == 1
    f = gradcore.compile(lambda x: x * 2)
    f(full(1)), f(full(1))
    assert len(bed.card.nodes) == 2 and bed.card.calls["streamCreateWithPriority"] == 2
    f._entries.clear()
    two.run._entries.clear()
    assert not bed.card.nodes


def test_a_program_that_launches_nothing_has_no_graph(bed):
    f = gradcore.compile(lambda x: x.view(-1))
    for _ in range(3):
        assert f(full(1)).tolist() == [1] * 4
    g = gradcore.compile(lambda x: (x * 2)[:0] * 3)
    for _ in range(3):
        assert g(full(1)).shape == (0,)
    assert not bed.card.wrong


@pytest.mark.parametrize("seed", range(8))
def test_runs_on_other_streams_wait_for_the_runs_before(bed, seed):
    bed.card.rng.seed(seed)
    f = gradcore.compile(lambda x: x.tanh() * 2)
    streams = [cuda.default_stream(), cuda.Stream(), cuda.Stream()]
    found = []
    for k in range(12):
        with cuda.stream(streams[k % 3]):
            found.append(f(full(k / 8)))
            if k % 4 == 0:
                bed.card.run(3)
    bed.card.deviceSynchronize()
    for k, y in enumerate(found):
        assert bits(y) == bits(full(k / 8).tanh() * 2)
    assert len(bed.card.nodes) == 1 and bed.card.calls["streamBeginCapture"] == 1


def test_the_programs_own_memory_is_in_the_account(bed):
    live = bed.device.ledger.requested
    f = gradcore.compile(lambda x: x * 2)
    x = full(1)
    f(x), f(x)
    own = [b for b in bed.device.ledger.live.values() if TAGS[b.tag].op == "program"]
    assert [(b.requested, TAGS[b.tag].role) for b in own] == [(512, "input")]
    reserved = bed.device.ledger.reserved
    for _ in range(5):
        f(x)
    assert bed.device.ledger.reserved == reserved
    del f, x
    assert bed.device.ledger.requested == live


def test_a_report_of_a_captured_step_is_that_of_the_kernels_one_by_one(bed):
    reports = []
    for capture in (False, True):
        training = Training(wrap=lambda step, capture=capture: gradcore.compile(step, capture=capture))
        for k in range(4):
            with gradcore.step(device="cuda") as s:
                training.step(k)
        reports.append(s.report)
        inputs = next(iter(training.run._entries.values()))[0].replay._own.block.requested if capture else 0
        del training
    before, after = reports
    assert after.peak.requested == before.peak.requested + inputs
    assert [p.phase for p in after.phases] == [p.phase for p in before.phases]


def test_the_collector_is_off_during_a_capture(bed):
    gc.enable()
    seen = []
    try:
        bed.device.graphs.capture(lambda: seen.append(gc.isenabled()))
        assert seen == [False] and gc.isenabled()
    finally:
        gc.disable()


def test_a_layer_that_is_compiled_names_where_it_cannot_be_captured(bed):
    plant(bed, "tanh", lambda: bed.device.allocate(64, 0))
    model = nn.Sequential(nn.Tanh(), nn.Tanh())
    f = gradcore.compile(model)
    for k in range(3):
        f(full(k))
    assert "tanh in layer 0, forward, " in f.explain()
