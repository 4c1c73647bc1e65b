"""Programs as CUDA graphs, without a GPU: addresses, inputs of a run, streams, and memory that remains."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore import cuda
from gradcore.devices import precision
from gradcore.devices.gpu import mailbox as gpu_mailbox
from gradcore.events import UNTAGGED
from tests.host.cuda.captured_steps import Training, data, full, on, plant
from tests.host.cuda.graph_bed import bits

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]


# -- addresses -------------------------------------------------------------------------------------------------------------


def test_every_address_in_a_graph_is_the_programs_own_or_captured(bed):
    captured = Training(wrap=gradcore.compile)
    for k in range(3):
        captured.step(k)
    replay = next(iter(captured.run._entries.values()))[0].replay
    blocks = [replay._bound.arena.block, replay._fixed.own.block, *(s.block for s in replay.trace.storages.values())]
    ranges = [(b.address, b.address + b.size) for b in blocks]
    segments = [(at, at + len(memory)) for at, memory in bed.card.held.items()]
    words = [int(word) for arguments in bed.captured for a in arguments if a.nbytes % 8 == 0
             for word in np.frombuffer(a.tobytes(), np.uint64)]
    pointers = [w for w in words if any(low <= w < high for low, high in segments)]
    assert len(pointers) > 30
    assert [p for p in pointers if not any(low <= p < high for low, high in ranges)] == []


def test_a_gradient_that_is_held_is_not_written_to(bed):
    eager, captured = Training(), Training(wrap=gradcore.compile)
    held = []
    for k in range(9):
        assert eager.step(k) == captured.step(k) and eager.state() == captured.state()
        if k in (3, 6):
            held += [[p.grad for p in t.model.parameters()] for t in (eager, captured)]
    assert list(map(bits, held[0])) == list(map(bits, held[1])) and list(map(bits, held[2])) == list(map(bits, held[3]))
    assert "are captured in one graph" in captured.run.explain() and bed.card.calls["streamBeginCapture"] == 3
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
    assert "are captured in one graph" in f.explain() and bed.card.calls["graphLaunch"] >= 5


# -- what a run brings -----------------------------------------------------------------------------------------------------


def test_inputs_of_any_layout_and_inputs_that_share_bytes(bed):
    f = gradcore.compile(lambda x, y: (x.tanh() * 2 + 1, y * 2))
    for k in range(4):
        whole = full(k, 3, 4)
        whole[0].add_(whole[1])
        for x, y in ((whole, whole), (whole.transpose(0, 1), full(k)), (whole[1:, 1:], whole), (whole[:0], full(k))):
            for found, expected in zip(f(x, y), (x.tanh() * 2 + 1, y * 2), strict=True):
                assert bits(found) == bits(expected)
    assert f.explain().count("are captured in one graph") == 4


@pytest.mark.parametrize("places", [(64, 0, 128, 192), (7, 263, 519), (3, 0, 1, 259, 256)])
def test_an_input_that_lies_elsewhere_in_its_storage(bed, places):
    def step(part, other):
        part.mul_(2)
        return part + other, part[1:]

    run = gradcore.compile(step)
    expected = np.arange(800, dtype=np.float32)
    x = gradcore.tensor(expected, **on)
    for first in (*places, *places):
        total, view = run(x[first:first + 6], x[first + 2:first + 8])
        expected[first:first + 6] *= 2
        assert bits(x) == expected.tobytes()
        assert bits(total) == (expected[first:first + 6] + expected[first + 2:first + 8]).tobytes()
        assert bits(view) == expected[first + 1:first + 6].tobytes()
    assert len(run.traces) == len({first % 64 for first in places})
    assert "are captured in one graph" in run.explain()


def test_an_input_that_has_other_values_by_now(bed):
    def parts(x):
        return x[2:4].tanh() + x[5:7]

    f = gradcore.compile(parts)
    x = gradcore.tensor(np.arange(8, dtype=np.float32), **on)
    for _ in range(5):
        x.add_(1)
        assert bits(f(x)) == bits(parts(x))


def test_an_input_that_is_written_to_is_written_to(bed):
    f = gradcore.compile(lambda x: x.mul_(3).add_(1))
    for k in range(5):
        x = full(k)
        version = x._version
        assert f(x).storage is x.storage and x.tolist() == [3 * k + 1] * 4 and x._version > version
    assert "2 kernel calls are captured in one graph" in f.explain()


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
    plant(bed, op, lambda: bed.device.allocate(64, UNTAGGED))
    w, v = (gradcore.ones(4, requires_grad=True, **on) for _ in range(2))
    f = gradcore.compile(lambda x: (x * w).tanh())
    for k in range(4):
        x, y = (full(k / 8).requires_grad_() for _ in range(2))
        found = f(x * 2).sum()
        # Memory that the program freed when it could not be captured is used by others when its second part runs.
        taken = [full(77, 128), full(77, 256)]
        found.backward()
        del taken
        (y * 2 * v).tanh().sum().backward()
        assert bits(w.grad) == bits(v.grad) and bits(x.grad) == bits(y.grad), k
    assert f"one by one: {op} in layer (root)" in f.explain() and not bed.card.nodes
    assert bed.card.calls["streamBeginCapture"] == begun


def test_every_nth_call_is_checked_against_eager(bed):
    training = Training(wrap=lambda step: gradcore.compile(step, check_every=2))
    for k in range(8):
        training.step(k)
    assert "are captured in one graph" in training.run.explain()


def test_graphs_of_the_explicit_form_are_captured(bed):
    w = gradcore.ones(4, requires_grad=True, **on)
    forward = gradcore.trace(lambda x: (w * x).tanh(), full(0))
    loss = gradcore.trace(lambda y, x: (y * x).sum(), (forward.outputs, full(0)))
    slopes = gradcore.gradients(loss, wrt=w)
    for k in range(6):
        x, z = full(k / 8), full(k / 4)
        y = forward.execute(x)
        total = loss.execute(z)
        found, = slopes.execute()
        expected = (w * x).tanh()
        whole = (expected * z).sum()
        assert bits(y) == bits(expected) and bits(total) == bits(whole)
        assert bits(found) == bits(gradcore.autograd.grad(whole, [w])[0]), k
    assert len(bed.card.nodes) == 3 and bed.card.calls["graphLaunch"] == 15


def test_a_program_from_a_file_is_captured(bed, tmp_path):
    eager, trained = Training(), Training(wrap=gradcore.compile)
    for k in range(3):
        eager.step(k), trained.step(k)
    trained.run.save(tmp_path / "step.gradcore")
    program = gradcore.load_program(tmp_path / "step.gradcore", device="cuda")
    for k in range(3, 8):
        program.learning_rate = eager.optimizer.param_groups[0]["lr"]
        gradcore.manual_seed(k)
        program.state["generator"].copy_(bed.device.generator.get_state().to("cuda"))
        assert bits(program(*data(k))) == eager.step(k), k
    assert bed.card.nodes and bed.card.calls["graphLaunch"] >= 4
    assert [bits(t) for t in program.state.values() if t.requires_grad] == [bits(p) for p in eager.model.parameters()]


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


def test_each_graph_has_a_workspace_for_products_of_its_own(bed):
    one, two = Training(wrap=gradcore.compile), Training(wrap=gradcore.compile)
    for k in range(4):
        one.step(k), two.step(k)
    bed.card.deviceSynchronize()
    by_stream = {}
    for call in bed.library._lt.calls:
        by_stream.setdefault(call["stream"], set()).add(call["workspace"])
    assert len(by_stream) == 3 and all(map(all, by_stream.values()))
    assert len(set().union(*by_stream.values())) == 3, "eager's, and one for each graph's stream"


def test_another_precision_of_products_is_captured_anew(bed, monkeypatch):
    monkeypatch.setattr(precision, "_chosen", "highest")
    x = gradcore.tensor(np.random.default_rng(0).standard_normal((8, 8), np.float32), **on)
    f = gradcore.compile(lambda x: x @ x)
    found = {}
    for chosen in ("highest", "high", "highest"):
        gradcore.set_float32_matmul_precision(chosen)
        for _ in range(3):
            found.setdefault(chosen, bits(x @ x))
            assert bits(f(x)) == found[chosen], chosen
    assert found["highest"] != found["high"] and bed.card.calls["streamBeginCapture"] == 3
    assert len(f.traces) == 1 and "are captured in one graph" in f.explain()


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


@pytest.mark.parametrize("when", range(8))
def test_memory_of_a_program_that_goes_waits_for_its_last_run(bed, when):
    bed.card.rng.seed(when)
    f, side = gradcore.compile(lambda x: x.tanh() * 2), cuda.Stream()
    for k in range(3):
        f(full(k / 8))
    with cuda.stream(side):
        y = f(full(0.5))
    del f
    taken = [full(77, 128) for _ in range(4)]
    bed.card.deviceSynchronize()
    assert bits(y) == bits(full(0.5).tanh() * 2) and bits(taken[0]) == bits(full(77, 128))


def test_the_programs_own_memory_is_in_the_account(bed):
    # The device's generator is created by the first trace, and stays.
    gradcore.compile(lambda x: x * 3)(full(1))
    live = bed.device.ledger.requested
    f = gradcore.compile(lambda x: x * 2)
    x = full(1)
    f(x), f(x)
    own = [b for b in bed.device.ledger.live.values() if b.tag.op == "program"]
    assert [(b.requested, b.tag.role) for b in own] == [(512 + 2 * gpu_mailbox.TURN, "input")]
    reserved = bed.device.ledger.reserved
    for _ in range(5):
        f(x)
    assert bed.device.ledger.reserved == reserved
    del f, x
    assert bed.device.ledger.requested == live


def test_what_programs_own_is_said_to_be_theirs_where_it_grows(bed):
    f = gradcore.compile(lambda x: x * 2)
    for length in range(1, 8):
        x = full(1, length)
        with gradcore.step(device="cuda") as step:
            f(x), f(x), f(x)
    (grown,) = (g for g in step.report.growth.grown if g.op == "program")
    assert grown.held_by == "program" and ": a compiled function's own\n" in str(step.report)


def test_a_report_of_a_captured_step_is_that_of_the_kernels_one_by_one(bed):
    reports = []
    for capture in (False, True):
        training = Training(wrap=lambda step, capture=capture: gradcore.compile(step, capture=capture))
        for k in range(4):
            with gradcore.step(device="cuda") as s:
                training.step(k)
        reports.append(s.report)
        inputs = next(iter(training.run._entries.values()))[0].replay._fixed.own.block.requested if capture else 0
        del training
    before, after = reports
    assert after.peak.requested == before.peak.requested + inputs
    assert [p.phase for p in after.phases] == [p.phase for p in before.phases]
