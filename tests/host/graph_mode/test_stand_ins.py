"""Inputs of a run replace those in recorded calls, through whatever view the calls use them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.devices.device import get_device
from gradcore.devices.host.tape import STRAIGHT
from gradcore.program.replaying.replay import Replay
from gradcore.spec import TensorSpec
from tests.rows import ROWS, Row, parts


def replay_of(compiled: Any) -> Replay:
    found: Replay = next(iter(compiled._entries.values()))[0].replay
    return found


def numbers(*shape: int, seed: int = 0) -> Any:
    return gradcore.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def check(function: Callable[..., Any], *batches: tuple[Any, ...]) -> list[str]:
    """Trace on the first batch, replay on each: the bits of eager calls. Returns the names of the called functions."""
    compiled = gradcore.compile(function)
    for batch in (batches[0], *batches):
        given = [t.detach().clone() for t in batch]
        before = [t.detach().clone() for t in batch]
        with gradcore.no_grad():
            expected, found = function(*given), compiled(*before)
        for a, b in zip((*given, expected), (*before, found), strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()
    assert len(compiled.traces) == 1, "the later batches were replayed"
    return [getattr(f, "__name__", "partial") for f, _ in chain(*replay_of(compiled)._bound.calls.parts)]


@pytest.mark.parametrize("row", [r for r in ROWS if r.op in STRAIGHT and r.operands()], ids=str)
def test_ops_on_what_a_run_brings_are_replayed(row: Row) -> None:
    compiled = gradcore.compile(lambda *tensors: row.call(list(tensors)))
    for seed in (0, 0, 1):
        given, same = ([gradcore.tensor(v) for v in row.values(seed=seed)] for _ in range(2))
        for a, b in zip(parts(row.call(given)), parts(compiled(*same)), strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()


def test_a_linear_layer_on_a_batch_is_written_out_forward_and_backward() -> None:
    layer = gradcore.nn.Linear(5, 3)

    def step(x: Any) -> Any:
        layer.zero_grad()
        loss = layer(x).square().sum()
        loss.backward()
        return loss

    compiled = gradcore.compile(step)
    for k in range(3):
        x = numbers(4, 5, seed=k)
        found, g = compiled(x).item(), layer.weight.grad.numpy().tobytes()
        assert found == step(x).item() and g == layer.weight.grad.numpy().tobytes()
    names = [getattr(f, "__qualname__", "") for f, _ in chain(*replay_of(compiled)._bound.calls.parts)]
    assert not any("linear" in name for name in names), "no kernel is called for what NumPy calls do"


def test_views_of_what_a_run_brings_are_views_of_each_runs_own() -> None:
    check(lambda x: (x.t() @ x)[1:, ::2] * x[0, 1] + x.reshape(-1)[3:5], (numbers(4, 3),), (numbers(4, 3, seed=1),))


def test_a_tensor_that_is_brought_twice_and_two_views_of_one() -> None:
    def f(a: Any, b: Any) -> Any:
        return a * 2 + b

    compiled = gradcore.compile(f)
    x, y = numbers(3), numbers(3, seed=1)
    whole = numbers(6, seed=2)
    for a, b in ((x, y), (x, y), (x, x), (x, x), (y, y), (whole[:3], whole[3:]), (whole[:3], whole[3:]), (y, x)):
        assert compiled(a, b).tolist() == f(a, b).tolist()


def test_what_a_run_brings_may_be_written_to() -> None:
    def f(x: Any) -> Any:
        x.add_(1)
        x.fill_(2.0)
        x[1:].mul_(3)
        return x * x

    called = check(f, (numbers(4),), (numbers(4, seed=1),))
    assert called[:3] == ["add_", "fill_", "mul_"], "what a run could not reach is left to the kernel"


def test_empty_tensors_and_tensors_without_dimensions() -> None:
    check(lambda x: (x + 1) * 2, (gradcore.zeros(0, 3),), (gradcore.zeros(0, 3),))
    check(lambda x: (x + 1) * 2, (numbers(),), (numbers(seed=1),))


def test_cotangents_that_begin_inside_a_storage() -> None:
    weight = numbers(4, 3).requires_grad_()
    compiled = gradcore.compile(lambda x: x @ weight)
    whole = numbers(6, 3, seed=3)
    for k in range(4):
        x, g = numbers(2, 4, seed=k), whole[k:k + 2]
        weight.grad = None
        compiled(x).backward(g)
        found = weight.grad.tolist()
        weight.grad = None
        (x @ weight).backward(g)
        assert found == weight.grad.tolist()


def test_borrowed_bytes_have_no_size_in_the_books() -> None:
    compiled = gradcore.compile(lambda x: gradcore.relu(x[:2]).sum() + gradcore.relu(x).sum() * 2)
    for k in range(3):
        values = np.arange(12, dtype=np.float32).reshape(3, 4) - k
        found = compiled(gradcore.from_numpy(values))
        assert found.item() == np.maximum(values[:2], 0).sum() + 2 * np.maximum(values, 0).sum()
    assert len(compiled.traces) == 1


def test_nothing_of_a_batch_is_held_when_its_run_has_ended() -> None:
    compiled = gradcore.compile(lambda x: gradcore.relu(x) * 2)
    device = get_device("cpu")
    compiled(numbers(1000))
    compiled(numbers(1000))
    before = device.ledger.requested
    for k in range(3):
        compiled(numbers(1000, seed=k))
        assert device.ledger.requested == before
    shown = [args[at] for places in replay_of(compiled)._bound.calls.patches.values() for args, at, _ in places]
    assert shown == [None] * len(shown) and shown


def test_labels_that_are_brought_are_looked_at_in_every_run() -> None:
    layer = gradcore.nn.Linear(3, 3)

    def step(x: Any, y: Any) -> Any:
        layer.zero_grad()
        loss = gradcore.nn.functional.cross_entropy(layer(x), y)
        loss.backward()
        return loss

    compiled = gradcore.compile(step)
    x = numbers(4, 3)
    for labels in ([0, 1, 2, 0], [2, 1, 0, 0], [0, -100, 2, 1], [1, 1, 1, 1]):
        found = compiled(x, gradcore.tensor(labels)).item(), layer.weight.grad.tolist()
        assert found == (step(x, gradcore.tensor(labels)).item(), layer.weight.grad.tolist())
    with pytest.raises(IndexError, match="Target 3 is out of bounds"):
        compiled(x, gradcore.tensor([0, 1, 2, 3]))
    assert any("loss_with_slopes" in getattr(f, "__qualname__", "") for f, _ in chain(*replay_of(compiled)._bound.calls.parts))


def test_a_stand_in_is_outside_the_books() -> None:
    device = get_device("cpu")
    before = device.ledger.requested, device.ledger.reserved, device.ledger.allocations
    block = device.stand_in(1 << 30)
    assert block is not None and device.array(block, TensorSpec.of((1 << 28,), "float32")).size == 1 << 28
    assert (device.ledger.requested, device.ledger.reserved, device.ledger.allocations) == before
