"""Results of backward that take the place of what is read for the last time: when they do, and what keeps them from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.engine import dispatch
from gradcore.engine.spending import take_over
from gradcore.engine.state import local
from gradcore.events import Alloc, Free, Launch
from gradcore.nn import functional as F
from gradcore.ops import all_ops
from tests.rows import ROWS, Row, parts, tensors_of

SPENDING = sorted(name for name, op in all_ops().items() if any(getattr(rule.fn, "spends", False) for rule in op.rules))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops whose results have taken an operand's place."""
    found: list[str] = []

    def noted(state: Any, call: Any, *rest: Any) -> Any:
        place = take_over(state, call, *rest)
        found.extend([call.op.name] * (place is not None))
        return place

    monkeypatch.setattr(dispatch, "take_over", noted)
    return found


def _nowhere(state: Any, *rest: Any) -> None:
    state.spending = None


def _gradients(row: Row, wanted: list[int]) -> list[bytes]:
    """Of some operands, which are computed, as are the cotangents."""
    tensors = tensors_of(row)
    leaves = [tensors[k].requires_grad_() for k in wanted]
    for k, leaf in zip(wanted, leaves, strict=True):
        tensors[k] = leaf * 1
    results = [r for r in parts(row.call(tensors)) if r.requires_grad]
    del tensors
    seed = gradcore.Generator().manual_seed(0)
    # Named, so that the products take no place.
    factors = [gradcore.rand(r.shape, generator=seed, dtype=r.dtype) for r in results]
    loss = sum((r * factor).sum() for r, factor in zip(results, factors, strict=True))
    del results
    loss.backward()
    return [leaf.grad.numpy().tobytes() for leaf in leaves]


@pytest.mark.parametrize("name", SPENDING)
def test_gradients_are_the_same_bits(name: str, taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(row, some) for row in ROWS if row.op == name and (wanted := row.wanted())
             for some in (*([k] for k in wanted), wanted)]
    found = [_gradients(*case) for case in cases]
    assert taken, f"no row of {name} writes a gradient over an operand"
    monkeypatch.setattr(dispatch, "take_over", _nowhere)
    assert found == [_gradients(*case) for case in cases]


def _kept(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def case(w: Any) -> Any:
        y = (w * 2).tanh()
        held = of(y)
        loss = (y * 3).sum()
        del y
        loss.backward()
        return held

    return case


def _hooked(w: Any) -> Any:
    held: list[Any] = []

    def pack(x: Any) -> int:
        held.append(x)
        return len(held) - 1

    with gradcore.autograd.graph.saved_tensors_hooks(pack, held.__getitem__):
        loss = (w * 2).tanh().sum()
    loss.backward()
    return held[0]


def _retained(w: Any) -> Any:
    loss = (w * 2).tanh().sum()
    loss.backward(retain_graph=True)
    w.grad = None
    loss.backward(retain_graph=True)
    return None


def _differentiable(w: Any) -> Any:
    w.grad = gradcore.autograd.grad((w * 2).tanh().sum(), w, create_graph=True)[0].detach()
    return None


@pytest.mark.parametrize("case", [
    _kept(lambda y: y), _kept(lambda y: y[1:]), _kept(lambda y: y.detach()), _kept(lambda y: y.detach().numpy()),
    _kept(lambda y: np.from_dlpack(y.detach())), _kept(lambda y: y.square()), _kept(lambda y: y.storage),
    _hooked, _retained, _differentiable],
    ids=["name", "view", "detached", "array", "DLPack", "another graph", "storage", "pack hook", "retained", "create_graph"])
def test_what_somebody_else_sees_is_left_alone(case: Callable[[Any], Any], taken: list[str]) -> None:
    w = gradcore.tensor([0.1, 0.2, 0.3], requires_grad=True)
    held = case(w)
    assert "tanh_grad" not in taken
    times = 1 if case in (_hooked, _retained, _differentiable) else 3
    y = np.tanh(2 * w.detach().numpy())
    np.testing.assert_allclose(w.grad.numpy(), times * 2 * (1 - y * y), rtol=1e-6)
    if isinstance(held, gradcore.Tensor):
        squared = held.grad_fn is not None and held.grad_fn.name() == "SquareBackward0"
        np.testing.assert_allclose(held.detach().numpy(), y * y if squared else y[-len(held):], rtol=1e-6)


@pytest.mark.parametrize("hang", [lambda y, kept: y.register_hook(kept.append),
                                  lambda y, kept: y.grad_fn.register_prehook(lambda gs: kept.extend(gs))],
                         ids=["of a tensor", "of a node"])
def test_a_hook_may_keep_the_cotangent(hang: Callable[..., Any]) -> None:
    w, c = gradcore.tensor([-1.0, 2.0], requires_grad=True), gradcore.tensor([3.0, 4.0])
    kept: list[Any] = []
    y = F.leaky_relu(w * 2, 0.5)
    hang(y, kept)
    loss = (y * c).sum()
    del y
    loss.backward()
    assert kept[0].tolist() == [3.0, 4.0] and w.grad.tolist() == [3.0, 8.0]


def test_an_input_without_a_gradient_may_be_asked_for() -> None:
    w, lambd = gradcore.ones(3, requires_grad=True), gradcore.ones((), requires_grad=True)
    y = all_ops()["hardshrink"](w * 2, lambd * 1).sum()
    assert gradcore.autograd.grad(y, [lambd], allow_unused=True) == (None,)


def test_memory_of_another_library_is_left_alone(taken: list[str]) -> None:
    w, array = gradcore.ones(3, requires_grad=True), np.arange(3, dtype=np.float32)
    ((w * 1) * gradcore.from_numpy(array)).sum().backward()
    assert not taken and array.tolist() == w.grad.tolist() == [0.0, 1.0, 2.0]


def test_pinned_memory_is_left_alone(taken: list[str]) -> None:
    w = gradcore.ones(3, requires_grad=True)
    y = -(w * 2)
    y.register_hook(lambda g: g.pin_memory())
    (y * 3).sum().backward()
    assert not taken and w.grad.tolist() == [-6.0] * 3


def test_a_part_of_a_storage_is_left_alone(taken: list[str]) -> None:
    w = gradcore.ones(4, requires_grad=True)
    F.silu((w * 1)[:2]).sum().backward()
    assert not taken


def test_the_gradient_of_a_leaf_has_a_place_of_its_own(taken: list[str]) -> None:
    w = gradcore.ones(3, requires_grad=True)
    w.tanh().sum().backward()
    assert not taken


def test_a_result_is_as_new(taken: list[str]) -> None:
    w = gradcore.ones(3, requires_grad=True)
    x = w * 2
    seen: list[Any] = []
    x.register_hook(lambda g: seen.append((g._version, g.storage.views)))
    y = x * 3
    y.mul_(1)
    y.view(-1)
    loss = F.silu(y).sum()
    del x, y
    loss.backward()
    assert taken == ["silu_grad", "mul", "mul"] and seen == [(0, None)]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_gradient_of_a_loss_lies_where_the_logits_were(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w, hidden = gradcore.ones(50, 4, device=device, requires_grad=True), gradcore.ones(600, 4, device=device)
    labels = gradcore.zeros(600, dtype=gradcore.int64, device=device)

    def run() -> gradcore.step:
        w.grad = None
        with gradcore.step(device=device) as step:
            F.cross_entropy(F.linear(hidden, w), labels).backward()
        return step

    step = run()
    log = step.log
    launch, = [r for r in log if isinstance(r, Launch) and r.invocation.op == "cross_entropy_grad"]
    (logits, made), (freed, _) = [[(k, r) for k, r in enumerate(log) if isinstance(r, kind) and r.serial in (
        launch.inputs[1], launch.outputs[0])] for kind in (Alloc, Free)]
    assert made[0] == freed[0] + 1 and freed[1].serial == launch.inputs[1] != launch.outputs[0] == made[1].serial
    assert (logits[1].segment, logits[1].offset) == (made[1].segment, made[1].offset)
    monkeypatch.setattr(dispatch, "take_over", _nowhere)
    assert run().report.peak.requested - step.report.peak.requested == 600 * 50 * 4


@pytest.mark.parametrize("parameters", [("weight", "bias"), ("bias",)])
def test_the_gradient_of_a_layers_input_lies_where_the_input_was_read(parameters: tuple[str, ...], taken: list[str]) -> None:
    layer, w = nn.Linear(4, 8), gradcore.rand(3, 4, requires_grad=True)
    for name, p in layer.named_parameters():
        p.requires_grad_(name in parameters)
    (layer(w * 2) * 3).sum().backward()
    # Without a gradient of the weight the input was not kept.
    assert taken == (["linear_grad"] if "weight" in parameters else [])
    np.testing.assert_allclose(w.grad.numpy(), 6 * layer.weight.detach().numpy().sum(0) * np.ones((3, 1)), rtol=1e-6)


def test_the_gradient_of_a_square_weight_is_not_its_input(taken: list[str]) -> None:
    """It has the input's shape, and reads the input to the end."""
    w, x = gradcore.rand(4, 4, requires_grad=True), gradcore.rand(4, 4)
    F.linear(x * 1, w * 1).sum().backward()
    assert not taken and np.allclose(w.grad.numpy(), x.numpy().sum(0))


@pytest.mark.parametrize("op", ["sigmoid", "tanh"])
def test_a_node_keeps_what_its_op_reads_until_that_has_run(op: str) -> None:
    w = gradcore.ones(1000, device="meta", requires_grad=True)
    with gradcore.step(device="meta") as step:
        y = getattr(w * 2, op)()
        (y * 3).sum().backward()
    assert step.report.peak.op == f"{op}_grad"
    assert step.report.by_role["residual"] == 4096


def test_a_node_keeps_what_it_reads_beside_a_cotangent_of_others() -> None:
    w = gradcore.ones(1000, device="meta", requires_grad=True)
    with gradcore.step(device="meta") as step:
        y = w * 2
        ((y.tanh() + F.silu(y)) * 3).sum().backward()
    assert step.report.peak.op == "silu_grad" and step.report.by_role["residual"] == 2 * 4096


def test_the_graph_of_a_gradient_keeps_the_cotangents_that_it_reads() -> None:
    w, c = gradcore.tensor([0.5, 1.0], requires_grad=True), gradcore.tensor([3.0, 4.0])
    loss = ((w * 1).exp() * c).sum()
    slope, = gradcore.autograd.grad(loss, w, create_graph=True)
    slope.sum().backward()
    assert w.grad.tolist() == slope.tolist()


def test_a_cotangent_that_was_read_is_no_longer_held_when_the_result_is_delivered() -> None:
    w = gradcore.ones(3, requires_grad=True)
    with gradcore.step() as step:
        x = w * 2
        loss = ((x + F.silu(x)) * 3).sum()
        del x
        loss.backward()
    # The sum passes one cotangent on to both, and is added to in place once the gradient of silu has read it.
    assert [r.invocation.op for r in step.log if isinstance(r, Launch)][-3:] == ["silu_grad", "add_", "mul"]


def test_an_op_that_a_signals_handler_runs_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    w, other = gradcore.ones(3, requires_grad=True), gradcore.ones(3)
    found: list[Any] = []

    def interrupted(*call: Any) -> Any:
        if not found:
            found.append(None)
            gradcore.neg(other)
        found.append(take_over(*call))
        return found[-1]

    monkeypatch.setattr(dispatch, "take_over", interrupted)
    (w * 2).tanh().sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * (1 - np.tanh(np.float32(2)) ** 2) * np.ones(3), rtol=1e-5)
    assert other.tolist() == [1.0, 1.0, 1.0] and found[:3] == [None] * 3


def test_nothing_is_held_for_an_op_that_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = (gradcore.ones(3, requires_grad=True) * 2).tanh().sum()

    def failing(*call: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(dispatch, "take_over", failing)
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    assert local.state.spending is None
