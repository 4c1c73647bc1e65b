"""The engine: which gradients are computed, from which graphs, and its errors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.autograd import grad
from gradcore.engine.state import local
from gradcore.errors import AlreadyReleased, ModifiedInPlace
from gradcore.events import Launch, typed
from gradcore.nn import functional as F
from tests.conftest import raises


def leaf(*values: float) -> Any:
    return gradcore.tensor(list(values) if len(values) > 1 else values[0], requires_grad=True)


def cpu() -> Any:
    return gradcore.device("cpu").ledger


# -- what arrives ------------------------------------------------------------------------------------------------------


def test_a_diamond_adds_both_ways() -> None:
    x = leaf(1.0, 2.0)
    a = x * 3
    ((a * a) + a).sum().backward()
    assert x.grad.tolist() == [21.0, 39.0]


def test_an_operand_used_twice_counts_twice() -> None:
    x = leaf(3.0)
    (x * x).backward()
    assert x.grad.item() == 6.0
    y = leaf(2.0)
    (y + y).backward()
    assert y.grad.item() == 2.0


def test_a_long_way_and_a_short_way_meet() -> None:
    x = leaf(2.0)
    y = x
    for _ in range(10):
        y = y * 1.5
    (y * x + x).backward()
    assert x.grad.item() == pytest.approx(2 * 2 * 1.5 ** 10 + 1, rel=1e-6)


def test_several_roots_run_as_one_pass() -> None:
    x = leaf(1.0, 2.0)
    shared = x * 2
    gradcore.autograd.backward([shared.sum(), (shared * shared).sum()])
    assert x.grad.tolist() == [10.0, 18.0]


def test_a_root_that_feeds_another_root() -> None:
    x = leaf(2.0)
    a = x * x
    b = a * 3
    gradcore.autograd.backward([b, a], [None, gradcore.tensor(10.0)])
    assert x.grad.item() == 4 * 13


def test_the_same_root_twice() -> None:
    x = leaf(2.0)
    y = x * x
    gradcore.autograd.backward([y, y])
    assert x.grad.item() == 8.0


def test_gradients_of_unused_outputs_are_zero() -> None:
    x = leaf(1.0, 5.0, 3.0)
    first, _, last = x.split(1)
    values, _ = (x * 2).max(0)
    (first * 2 + last * 0 + values).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 0.0]


def test_what_is_no_scalar_takes_a_gradient() -> None:
    x = leaf(1.0, 2.0)
    (x * x).backward(gradcore.tensor([10.0, 100.0]))
    assert x.grad.tolist() == [20.0, 400.0]


def test_a_leaf_is_its_own_root() -> None:
    x = leaf(2.0)
    x.backward()
    assert x.grad.item() == 1.0


def test_the_gradient_that_was_given_stays_the_callers() -> None:
    x, given = leaf(1.0, 2.0), gradcore.tensor([1.0, 1.0])
    for _ in range(2):
        (x + 0.0).backward(given)
    assert given.tolist() == [1.0, 1.0] and x.grad.tolist() == [2.0, 2.0]
    assert x.grad.storage is not given.storage


def test_gradients_add_up() -> None:
    x = leaf(1.0, 2.0)
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [5.0, 5.0]


def test_a_gradient_that_is_held_is_not_written_to() -> None:
    x = leaf(1.0, 2.0)
    (x * 2).sum().backward()
    held = x.grad
    view = held[:1]
    (x * 3).sum().backward()
    assert held.tolist() == [2.0, 2.0] and view.tolist() == [2.0] and x.grad.tolist() == [5.0, 5.0]


def test_two_leaves_never_share_a_gradients_bytes() -> None:
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (x + y).sum().backward()
    assert x.grad.storage is not y.grad.storage
    (x * 5).sum().backward()
    assert x.grad.tolist() == [6.0, 6.0] and y.grad.tolist() == [1.0, 1.0]


def test_a_gradient_has_its_leafs_shape_and_dtype() -> None:
    x = gradcore.tensor(np.ones((2, 1), np.float16), requires_grad=True)
    y = gradcore.tensor(np.ones(3, np.float64), requires_grad=True)
    (x * y).sum().backward()
    assert (x.grad.dtype, tuple(x.grad.shape)) == (np.float16, (2, 1)) and x.grad.tolist() == [[3.0], [3.0]]
    assert (y.grad.dtype, tuple(y.grad.shape)) == (np.float64, (3,)) and y.grad.is_contiguous()
    z = leaf(1.0, 2.0)
    z.backward(gradcore.ones(2, dtype=np.float64))
    assert z.grad.dtype == np.float32


# -- graphs that run twice ---------------------------------------------------------------------------------------------


def test_a_second_backward_is_an_error_with_pytorchs_words() -> None:
    a = leaf(3.0)
    c = a.exp()
    c.backward()
    with raises(AlreadyReleased, "Trying to backward through the graph a second time", "retain_graph=True",
                "ExpBackward0", "test_engine.py"):
        c.backward()
    assert issubclass(AlreadyReleased, RuntimeError)


def test_a_factor_that_is_kept_goes_too() -> None:
    a = leaf(3.0)
    c = a * 5
    c.backward()
    with raises(RuntimeError, "Trying to backward through the graph a second time"):
        c.backward()
    assert a.grad.item() == 5.0


def test_a_graph_that_keeps_nothing_runs_twice() -> None:
    a = leaf(1.0, 2.0)
    c = (a + 1).sum()
    c.backward()
    c.backward()
    assert a.grad.tolist() == [2.0, 2.0]


def test_a_retained_graph_runs_again() -> None:
    a = leaf(3.0)
    c = a * a
    c.backward(retain_graph=True)
    c.backward()
    assert a.grad.item() == 12.0
    with raises(RuntimeError, "a second time"):
        c.backward()


# -- in place ----------------------------------------------------------------------------------------------------------


def test_a_residual_that_was_written_to_names_op_and_line() -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    z = y * y
    y += 1  # the line that the error names
    line = sys._getframe().f_lineno - 1
    with raises(ModifiedInPlace, "has been modified by an inplace operation", "MulBackward0", "is at version 1",
                "expected version 0", f"test_engine.py:{line}", "by add_"):
        z.sum().backward()
    assert x.grad is None


def test_writing_before_the_read_is_fine() -> None:
    x = leaf(1.0, 2.0)
    y = x * 2
    y += 1
    y *= 3
    (y * y).sum().backward()
    assert x.grad.tolist() == [2 * 9 * 2 * 3.0, 2 * 15 * 2 * 3.0]


def test_a_leaf_is_not_written_to() -> None:
    x = leaf(1.0, 2.0)
    with raises(RuntimeError, "a leaf Variable that requires grad is being used in an in-place operation"):
        x += 1
    with gradcore.no_grad():
        x += 1
    assert x.tolist() == [2.0, 3.0] and x._version == 1


def test_an_op_that_needs_what_it_overwrites_keeps_a_copy() -> None:
    x, factor = leaf(1.0, 2.0), leaf(3.0, 4.0)
    y = x * 1
    y *= factor
    y.sum().backward()
    assert factor.grad.tolist() == [1.0, 2.0] and x.grad.tolist() == [3.0, 4.0]


# -- grad --------------------------------------------------------------------------------------------------------------


def test_grad_returns_and_leaves_leaves_alone() -> None:
    x, y = leaf(2.0), leaf(3.0)
    a = x * y
    out = a * a
    gx, ga = grad(out, [x, a])
    assert (gx.item(), ga.item()) == (2 * 6 * 3.0, 12.0) and x.grad is y.grad is None


def test_grad_runs_only_what_leads_there() -> None:
    x, y = leaf(2.0), leaf(3.0)
    ledger = cpu()
    out = x * 2 + y.exp()
    log = ledger.begin_log()
    (g,) = grad(out, x)
    ledger.end_log()
    assert g.item() == 2.0
    assert "exp" not in [r.invocation.op for r in map(typed, log) if isinstance(r, Launch)]
    assert len([r for r in map(typed, log) if isinstance(r, Launch) and r.invocation.op == "mul"]) == 1


def test_grad_of_what_was_not_used() -> None:
    x, y = leaf(2.0), leaf(3.0)
    with raises(RuntimeError, "appears to not have been used in the graph", "allow_unused=True", "inputs[1]"):
        grad(x * 2, [x, y])
    gx, gy = grad(x * 2, [x, y], allow_unused=True)
    assert gx.item() == 2.0 and gy is None
    gx, gy = grad(x * 2, [x, y], materialize_grads=True)
    assert gy.item() == 0.0
    with raises(RuntimeError, "does not require grad"):
        grad(x * 2, [gradcore.tensor(1.0)])


def test_grad_takes_pytorchs_arguments() -> None:
    weights = {"w": leaf(2.0), "b": leaf(1.0)}
    y = weights["w"] * weights["w"] * 3 + weights["b"]
    found = grad(y, weights.values(), only_inputs=True, allow_unused=None)
    assert [g.item() for g in found] == [12.0, 1.0]
    with raises(ValueError, "Expected allow_unused to be True or not passed when materialize_grads=True"):
        grad(y, weights["w"], materialize_grads=True, allow_unused=False)
    with raises(TypeError, "grad: expected inputs to be tensors, but got str"):
        grad(y, weights)


def test_gradients_for_each_cotangent_of_a_batch_are_stacked() -> None:
    x, w, unused = gradcore.tensor([1.0, 2.0], requires_grad=True), leaf(3.0), leaf(1.0)
    y = x * x * w
    found = grad(y, [x, w, unused], gradcore.eye(2), is_grads_batched=True, create_graph=True, allow_unused=True)
    assert [found[0].tolist(), found[1].tolist(), found[2]] == [[[6.0, 0.0], [0.0, 12.0]], [1.0, 4.0], None]
    assert grad(found[0].sum(), w)[0].item() == 6.0
    for given in (None, gradcore.tensor(1.0), gradcore.ones(0, 2)):
        with raises(RuntimeError, "is_grads_batched=True", "a first dimension of one size, at least 1"):
            grad(y, x, given, is_grads_batched=True)
    grad(y, x, gradcore.eye(2), is_grads_batched=True)
    with raises(AlreadyReleased, "a second time"):
        grad(y, x, gradcore.eye(2), is_grads_batched=True)


def test_grad_of_grad() -> None:
    x = leaf(2.0)
    (first,) = grad(x ** 3, x, create_graph=True)
    (second,) = grad(first, x, create_graph=True)
    (third,) = grad(second, x)
    assert (first.item(), second.item(), third.item()) == (12.0, 12.0, 6.0)


def test_a_penalty_on_the_gradient() -> None:
    x, w = leaf(1.0, 2.0), leaf(0.5, -1.0)
    (g,) = grad((x * w).tanh().sum(), x, create_graph=True)
    (g * g).sum().backward()
    t = np.tanh(np.array([0.5, -2.0]))
    slope = 1 - t * t
    w_ = np.array([0.5, -1.0])
    x_ = np.array([1.0, 2.0])
    expected = 2 * slope * w_ * (slope + w_ * -2 * t * slope * x_)
    np.testing.assert_allclose(w.grad.tolist(), expected, rtol=1e-5)


def test_create_graph_leaves_a_gradient_with_a_graph() -> None:
    x = leaf(2.0)
    (x * x * x).backward(create_graph=True)
    assert x.grad.requires_grad and x.grad.item() == 12.0
    (second,) = grad(x.grad, x)
    assert second.item() == 12.0
    x.grad = None


def test_a_graph_can_be_walked_down_to_its_leaves() -> None:
    a, b = leaf(1.0, 2.0), gradcore.ones(2)
    node = (a * b).grad_fn
    (end, index), beside = node.next_functions
    assert (end.name(), index, beside) == ("torch::autograd::AccumulateGrad", 0, (None, 0))
    assert end.variable is a and end.next_functions == () and repr(end) == "<AccumulateGrad>"
    del a
    assert end.variable is None


def test_ops_run_within_a_kernel() -> None:
    """A signal's handler, and what is called as an object goes, may run between two lines of a kernel."""
    x = gradcore.ones(3, requires_grad=True)
    weight, target = gradcore.ones(4, 3), gradcore.zeros(2, dtype=gradcore.int64)

    def handler() -> None:
        found.append((x * 2 + x.exp()).sum().item())
        loss = F.cross_entropy(gradcore.ones(2, 3) @ weight.T, target)
        found.append((gradcore.sort(x.detach())[0].tolist(), x.detach().clone().add_(1).tolist(), loss.item()))
        (x * x).sum().backward()
        with raises(RuntimeError, "all elements of input should be between 0 and 1, but there are 2.0 and 2.0"):
            F.binary_cross_entropy(x.detach() * 2, x.detach())

    found: list[object] = []
    handler()
    local.state.launch(handler)
    assert found[:2] == found[2:]
    assert x.grad.tolist() == [4.0] * 3
