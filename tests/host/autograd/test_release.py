"""When residuals are released: as soon as a node has run, after an error, and with the graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.devices.host.device import HostDevice, host_table, make_host
from gradcore.engine.state import local
from gradcore.errors import AlreadyReleased, ModifiedInPlace, OutOfMemory
from gradcore.events import KEEP, Alloc, Drop, Free, Keep, Launch, typed
from gradcore.memory.resource import Stream
from gradcore.nn import functional as F
from tests.conftest import raises
from tests.host.autograd.test_engine import cpu, leaf
from tests.meta.memory_stacks import stack


def test_residuals_go_back_as_soon_as_their_node_ran() -> None:
    x = gradcore.tensor(np.zeros(1000, np.float32), requires_grad=True)
    y = x
    ledger = cpu()
    log = ledger.begin_log()
    for _ in range(5):
        # Its rule runs two ops, of which the last reads the cotangent: no result takes the place of what is read.
        y = y.expm1()
    loss = y.sum()
    del y
    loss.backward()
    ledger.end_log()
    records = [typed(r) for r in log]
    keeps = [r for r in records if isinstance(r, Keep) and r.node]
    ran = {}
    for position, r in enumerate(records):
        if isinstance(r, Launch) and r.invocation.op == "mul":
            ran[r.node] = position
    assert len(keeps) == len(ran) == 5
    for k, keep in enumerate(reversed(keeps)):
        dropped = next(i for i, r in enumerate(records) if isinstance(r, Drop) and r.node == keep.node)
        freed = next(i for i, r in enumerate(records) if isinstance(r, Free) and r.serial == keep.serial)
        assert records[dropped].reason == "consumed" and dropped > ran[keep.node] and freed > ran[keep.node]
        if k < 4:
            following = ran[keeps[3 - k].node]
            made = next(i for i in range(following, 0, -1) if isinstance(records[i], Alloc))
            assert dropped < made and freed < made, "the next node's gradient is made where this one's residual lay"


@pytest.mark.parametrize("op, sizes, gone, rules", [
    (lambda a, b: a @ b, ((200, 100), (100, 300)), 0, ["matmul", "matmul"]),
    (lambda a, b: a * b, ((300,), (300,)), 1, ["mul", "mul"]),
    (lambda a, b: a / b, ((300,), (300,)), 0, ["neg", "div", "mul", "div", "div"]),
    (F.conv2d, ((5, 3, 8, 8), (4, 3, 3, 3)), 0, ["conv2d_weight_grad", "conv2d_input_grad"])])
def test_an_operand_goes_back_before_the_rule_that_does_not_read_it(op: Any, sizes: Any, gone: int, rules: list[str]) -> None:
    leaves = [gradcore.rand(*size, requires_grad=True) for size in sizes]
    for retain in (True, False):
        operands = [x * 2 for x in leaves]
        serials = [x.storage.serial for x in operands]
        y = op(*operands)
        loss, node = (y * gradcore.rand(y.shape)).sum(), y.grad_fn.id
        del operands, y
        with gradcore.step() as step:
            loss.backward(retain_graph=retain)
        launched = [k for k, r in enumerate(step.log) if isinstance(r, Launch) and r.node == node]
        freed = {r.serial: k for k, r in enumerate(step.log) if isinstance(r, Free)}
        assert [step.log[k].invocation.op for k in launched] == rules
        if retain:
            assert freed.keys().isdisjoint(serials)
            expected = [x.grad.tolist() for x in leaves]
            for x in leaves:
                x.grad = None
            loss.backward()
            assert [x.grad.tolist() for x in leaves] == expected
        else:
            assert launched[-2] < freed[serials[gone]] < launched[-1]


def test_a_node_that_runs_is_not_run_again_by_what_it_has_not_released_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another thread may, while the second of its rules runs."""
    x, w = gradcore.rand(3, requires_grad=True), gradcore.rand(3, requires_grad=True)
    loss, one, state = (x / (w * 1)).sum(), gradcore.ones(()), local.state
    launch, ops = state.launch, []

    def launching(kernel: Any, *arrays: Any) -> None:
        ops.append(kernel)
        if len(ops) == 5:
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward(one)
        launch(kernel, *arrays)

    monkeypatch.setattr(state, "launch", launching)
    loss.backward(one)
    assert len(ops) > 5 and np.allclose(w.grad.numpy(), -(x / w / w).detach().numpy())


def test_a_buffer_counts_its_keepers() -> None:
    """A log that begins later opens with them, and so does the text of an out-of-memory error."""
    x = leaf(1.0, 2.0)
    block = x.storage.block
    y, z = x * x, x * x
    assert block.keeps == 4
    del y
    ledger = cpu()
    log = ledger.begin_log()
    ledger.end_log()
    assert block.keeps == [typed(r) for r in log if r[:2] == (KEEP, block.serial)].count(
        Keep(block.serial, 0, "kept before the log began")) == 2
    z.sum().backward()
    assert block.keeps == 0


def test_two_buffers_are_enough_for_the_gradients_of_a_chain() -> None:
    x = gradcore.tensor(np.ones(25_000, np.float32), requires_grad=True)
    ledger = cpu()
    y = x
    for _ in range(10):
        y = y + 1.0
    loss = y.sum()
    del y
    before = ledger.allocated
    ledger.reset_peaks()
    loss.backward()
    assert ledger.peaks[1] - before <= 2 * 100_352 + 2048


def test_an_exception_in_a_rule_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    x = leaf(1.0, 2.0)
    state = local.state
    modes = (state.grad, state.scope, state.site, state.node)
    z = x.tanh()
    loss = (z * 2).sum()
    before = cpu().live.keys()

    def broken(*arrays: Any, **attrs: Any) -> None:
        raise RuntimeError("the kernel broke")

    device = gradcore.device("cpu")
    monkeypatch.setitem(device.kernels, "tanh_grad", broken)
    saved = dict(device.calls)
    device.calls.clear()
    with raises(RuntimeError, "the kernel broke"):
        loss.backward()
    device.calls.update(saved)
    monkeypatch.undo()
    device.calls.clear()
    assert (state.grad, state.scope, state.site, state.node) == modes
    assert cpu().live.keys() <= before and x.grad is None
    with raises(AlreadyReleased, "a second time"):
        loss.backward()


def test_a_caught_error_pins_nothing() -> None:
    """With the collector off: no frame may hold a reference to the exception that it raised."""

    def modified() -> None:
        x = leaf(1.0, 2.0)
        y = x * 2
        z = y * y
        y += 1
        z.sum().backward()

    def released() -> None:
        y = leaf(1.0, 2.0).exp().sum()
        y.backward()
        y.backward()

    def shapes() -> None:
        (leaf(1.0, 2.0) * 2) @ gradcore.ones(3, 4)

    def no_scalar() -> None:
        (leaf(1.0, 2.0) * 2).backward()

    for run, kind in ((modified, ModifiedInPlace), (released, AlreadyReleased), (shapes, RuntimeError),
                      (no_scalar, RuntimeError)):
        before = set(cpu().live)
        try:
            run()
        except kind:
            pass
        else:
            raise AssertionError(run)
        assert set(cpu().live) == before, run.__name__


def test_a_script_can_go_on_after_running_out() -> None:
    device = make_host()
    device.stack.limit.limit = 8 << 20

    def step(rows: int) -> float:
        w = gradcore.ones(1024, 64, device=device, requires_grad=True)
        x = gradcore.ones(rows, 1024, device=device)
        loss = ((x @ w) * 2).exp().mean()
        loss.backward()
        return float(w.grad.sum().item())

    step(8)
    live, allocated = set(device.ledger.live), device.ledger.allocated
    for _ in range(3):
        with raises(OutOfMemory, "out of memory", "test_release.py", "largest holder"):
            step(100_000)
        assert set(device.ledger.live) == live and device.ledger.allocated == allocated
        step(8)
    rows = 4096
    while True:
        try:
            step(rows)
            break
        except OutOfMemory:
            rows //= 2
    assert 64 <= rows < 2048 and set(device.ledger.live) == live


@pytest.mark.parametrize("fail_at", range(1, 14))
def test_an_allocation_that_fails_anywhere_in_a_step_leaves_nothing(fail_at: int) -> None:
    memory = stack("host", fail_at=(fail_at,))
    device = HostDevice("cpu", memory, Stream(0), host_table())

    def step() -> list[float]:
        x = gradcore.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
        (x.softmax(1) @ x).tanh().sum().backward()
        return x.grad.tolist()

    modes = local.state.grad, local.state.scope, local.state.site, local.state.node
    failed = False
    try:
        step()
    except OutOfMemory:
        failed = True
    assert failed == (memory.top.count >= fail_at)
    assert device.ledger.live == {} and device.ledger.requested == 0
    assert (local.state.grad, local.state.scope, local.state.site, local.state.node) == modes
    memory.top.fail_at.clear()
    again = step()
    assert again == step()
    assert device.ledger.live == {}


def test_a_dead_graph_gives_everything_back() -> None:
    x = leaf(1.0, 2.0)
    before = set(cpu().live)
    loss = (x * x).exp().sum()
    assert set(cpu().live) > before
    del loss
    assert set(cpu().live) == before


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_thousand_steps_live_where_the_second_left_them(optimizer: str) -> None:
    ledger, before = cpu(), set(cpu().live)
    x, target = gradcore.randn(16, 8), gradcore.randn(16, 1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    updates = getattr(gradcore.optim, optimizer)(model.parameters(), lr=0.05 if optimizer == "SGD" else 0.005)
    losses, figures = [], []
    for _ in range(1000):
        updates.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        updates.step()
        losses.append(loss.item())
        del loss
        figures.append((ledger.requested, ledger.allocated, ledger.reserved))
    assert set(figures[1:]) == {figures[1]}
    assert losses[-1] < 0.5 * losses[0] and np.isfinite(losses).all()
    # The collector is off.
    del x, target, model, updates
    assert set(ledger.live) == before


# -- depth -------------------------------------------------------------------------------------------------------------

CHAIN = """
import sys, threading
import gradcore
count = int(sys.argv[1])
def run():
    x = gradcore.tensor([1.0, 2.0], requires_grad=True)
    before = gradcore.memory_allocated()
    y = x
    for _ in range(count):
        y = y * 1.0
    del y
    assert gradcore.memory_allocated() == before, "released without running"
    y = x
    for _ in range(count):
        y = y * 1.0
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    del y
    assert gradcore.memory_allocated() == before + 512
    done.append(True)
done = []
threading.stack_size(1024 * 1024)
thread = threading.Thread(target=run)
thread.start()
thread.join()
assert done
"""


def test_a_chain_of_any_length_runs_on_a_small_stack() -> None:
    """In a separate process, which too deep a recursion would end. The stack has ten bytes per node.

    Python 3.13 needs 600 KiB of it: it frees objects thousands of levels deep before it defers one.
    """
    root = Path(gradcore.__file__).resolve().parents[1]
    result = subprocess.run([sys.executable, "-c", CHAIN, "100000"], cwd=root, capture_output=True, text=True, timeout=250)
    assert result.returncode == 0, result.stderr[-2000:]
