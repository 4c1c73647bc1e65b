"""Moves between devices pass gradients back; pinned memory and meta stand for a GPU here, and tests/gpu tests one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import memory_stats, nn, optim
from gradcore.devices.availability import cuda_status
from gradcore.errors import DeviceError, TraceError
from gradcore.ops.optimizer import sgd_
from tests.conftest import raises


def pinned(*values: float) -> gradcore.Tensor:
    return gradcore.tensor(values).pin_memory()


@pytest.mark.skipif(cuda_status().available, reason="with a GPU pinned memory does not stand for one, and nothing moves")
def test_the_gradient_goes_back_through_the_move() -> None:
    weight = pinned(2.0, 3.0).requires_grad_()
    moved = weight.to("cpu")
    assert moved is not weight and moved.requires_grad and not moved.is_leaf
    (moved * gradcore.tensor([5.0, 7.0])).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [5.0, 7.0]


def test_the_gradient_goes_on_through_what_was_moved() -> None:
    weight = pinned(2.0, 3.0).requires_grad_()
    (weight * 3).to("cpu", gradcore.float64).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [3.0, 3.0] and weight.grad.dtype == np.float32


def test_a_moved_gradient_has_a_gradient() -> None:
    x = pinned(2.0, 3.0).requires_grad_()
    y = x.to("cpu")
    (first,) = gradcore.autograd.grad((y * y * y).sum(), x, create_graph=True)
    first.sum().backward()
    assert first.tolist() == [12.0, 27.0] and x.grad is not None and x.grad.tolist() == [12.0, 18.0]


def test_a_move_is_a_node_that_keeps_nothing() -> None:
    x = gradcore.ones(1000, requires_grad=True) * 2
    before = memory_stats("meta")["requested"]
    moved = x.to("meta")
    assert moved.grad_fn is not None and moved.grad_fn.name() == "ToCopyBackward"
    y = moved + 1
    del moved
    assert y.requires_grad and memory_stats("meta")["requested"] == before + 4000
    del y
    assert memory_stats("meta")["requested"] == before


def test_no_gradient_is_taken_where_none_is_wanted() -> None:
    x = gradcore.ones(3, requires_grad=True)
    with gradcore.no_grad():
        assert not x.to("meta").requires_grad
    assert not x.detach().to("meta").requires_grad


def test_copy_between_devices_has_a_gradient() -> None:
    source, target = pinned(2.0, 3.0).requires_grad_(), gradcore.zeros(2)
    target.copy_(source)
    (target * gradcore.tensor([5.0, 7.0])).sum().backward()
    assert source.grad is not None and source.grad.tolist() == [5.0, 7.0]


def test_modules_keep_leaves_when_they_move() -> None:
    module = gradcore.nn.Linear(2, 3).to("meta")
    assert all(p.is_leaf and p.requires_grad and p.device.type == "meta" for p in module.parameters())


def test_meta_has_no_gradient_to_give_back() -> None:
    x = gradcore.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="meta"):
        x.to("meta").sum().backward()
    assert x.grad is None


def test_a_tensor_as_another_one_is_goes_where_that_is() -> None:
    there = gradcore.zeros(1, device="meta", dtype=gradcore.float64)
    moved = gradcore.ones(3).type_as(there)
    assert moved.device == gradcore.device("meta") and moved.dtype == gradcore.float64


def test_a_number_and_positions_may_be_on_the_cpu() -> None:
    x, mask = gradcore.zeros(4, 5, device="meta"), gradcore.ones(4, 5, dtype=np.bool_, device="meta")
    number, rows = gradcore.tensor(2.0), gradcore.tensor([0, 2, -1])
    for made in (x * number, number / x, x > number, x ** number, x.clamp(min=number), gradcore.where(mask, number, x),
                 x.masked_fill(mask, number), gradcore.lerp(x, x, number), x.add_(number)):
        assert made.device == "meta" and made.shape == (4, 5)
    x[0] = x[rows, 1:4] = x[mask] = number
    assert x[rows].shape == (3, 5) and x[rows, gradcore.zeros(3, dtype=np.int64, device="meta")].shape == (3,)
    assert x[..., gradcore.tensor(1)].shape == (4,) and {t.device.type for t in (x[rows], x[1, rows])} == {"meta"}
    assert (number * gradcore.ones((), dtype=np.float64, device="meta")).dtype == np.float64
    assert (number * gradcore.ones(3, dtype=np.int64, device="meta")).dtype == np.float32


def test_the_gradient_of_a_number_on_the_cpu_goes_back_there() -> None:
    number = gradcore.tensor(2.0, requires_grad=True)
    x = gradcore.ones(3, device="meta", requires_grad=True)
    y = (x * number).sum()
    assert any(node.name() == "ToCopyBackward" for node, _ in y.grad_fn.next_functions[0][0].next_functions if node)
    assert gradcore.autograd.grad(y, x)[0].device == "meta"


def test_what_is_assigned_may_be_on_the_cpu() -> None:
    x = gradcore.zeros(4, 5, device="meta")
    x[1:3] = gradcore.ones(2, 5)
    x[0] = gradcore.ones(1)
    x[gradcore.tensor([True, False, True, False])] = 1.0
    x[gradcore.ones(4, 5, dtype=np.bool_)] = gradcore.tensor(2.0)
    assert x.device == "meta" and x._version == 4


def test_repetitions_of_which_the_sum_is_given_are_not_read() -> None:
    counts = gradcore.tensor([1, 0, 2])
    assert gradcore.zeros(3, 2, device="meta").repeat_interleave(counts.to("meta"), 0, output_size=3).shape == (3, 2)
    compiled = gradcore.compile(lambda x, n: x.repeat_interleave(n, 0, output_size=3) * 2)
    for repeats, repeated in (([1, 0, 2], [0.0, 4.0, 4.0]), ([0, 3, 0], [2.0, 2.0, 2.0])):
        assert compiled(gradcore.arange(3.0), gradcore.tensor(repeats)).tolist() == repeated
    assert len(compiled.programs) == 1 and len(compiled.traces) == 1


def test_the_gradient_of_a_number_that_a_function_returns_goes_back_there() -> None:
    class Filled(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, number: Any) -> Any:
            return gradcore.ones(3)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.sum()

    number = gradcore.ones((), device="meta", requires_grad=True)
    Filled.apply(number).sum().backward()
    assert number.grad is not None and number.grad.device == "meta" and number.grad.shape == ()


def test_a_learning_rate_may_be_on_the_cpu() -> None:
    p = nn.Parameter(gradcore.ones(3, device="meta"))
    p.grad = gradcore.ones(3, device="meta")
    rate = gradcore.tensor(0.1)
    optim.SGD([p], lr=rate, momentum=0.9).step()
    assert rate.device == "cpu"
    # But none of the tensors that are updated.
    with raises(DeviceError, "same device"):
        sgd_([p, rate], [p.grad, rate], [], rate, 0.0, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False,
             first=False)


@pytest.mark.parametrize("use", [
    lambda x, one: x + one, lambda x, one: one.add_(x.sum()), lambda x, one: gradcore.cat([x, one]),
    lambda x, one: one[gradcore.zeros(1, dtype=np.int64, device="meta")]])
def test_nothing_else_may_be_on_another_device(use: Callable[..., object]) -> None:
    with raises(DeviceError, "same device"):
        use(gradcore.ones(3, device="meta"), gradcore.ones(1))


def test_positions_on_the_cpu_are_checked_before_they_are_copied() -> None:
    with raises(IndexError, "out of bounds"):
        gradcore.zeros(4, device="meta")[gradcore.tensor([0, 4])]


def test_a_trace_says_that_a_number_is_copied_to_the_device() -> None:
    number = gradcore.tensor(2.0)
    with raises(TraceError, "test_moves.py", "makes a tensor from host data"):
        gradcore.compile(lambda x: x * number)(gradcore.ones(3, device="meta"))
    with raises(TraceError, "test_moves.py", "by a copy to another device"):
        gradcore.compile(lambda x: x[gradcore.arange(2)])(gradcore.ones(3, device="meta"))


def test_a_missing_cotangent_is_zeros_on_the_device_of_its_output() -> None:
    class Both(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2, x.to("meta")

        @staticmethod
        def backward(ctx: Any, *gs: Any) -> Any:
            assert [g.device.type for g in gs] == ["cpu", "meta"]
            return gs[0] * 2

    x = gradcore.ones(3, requires_grad=True)
    Both.apply(x)[0].sum().backward()
    assert x.grad.tolist() == [2.0] * 3
