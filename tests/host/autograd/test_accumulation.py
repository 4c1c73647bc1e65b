"""Gradients that add up: whose bytes they lie in, when they are added in place, and when residuals go."""

from __future__ import annotations

import gradcore
from tests.conftest import raises
from tests.host.autograd.test_engine import leaf


def test_leaves_never_share_a_gradient() -> None:
    a, b, w = leaf(1.0, 2.0), leaf(3.0, 4.0), gradcore.tensor([5.0, 6.0])
    # The sum hands on the cotangent that it gets, which is a buffer of its own.
    ((a + b) * w).sum().backward()
    assert a.grad.storage is not b.grad.storage
    assert {t.grad.storage.block.tag.role for t in (a, b)} == {"gradient"}
    a.grad.zero_()
    assert b.grad.tolist() == [5.0, 6.0]


def test_a_gradient_that_nobody_holds_is_added_to_in_place() -> None:
    a, w = leaf(1.0, 2.0), gradcore.tensor([5.0, 6.0])
    (a * w).sum().backward()
    serial = a.grad.storage.serial
    (a * w).sum().backward()
    assert a.grad.storage.serial == serial and a.grad.tolist() == [10.0, 12.0]
    for look in (lambda: a.grad, lambda: a.grad[:1], lambda: a.grad.detach()):
        held = look()
        before = held.tolist()
        (a * w).sum().backward()
        assert held.tolist() == before, "somebody may still read it"


def test_a_gradient_is_no_part_of_a_larger_buffer_and_lies_in_order() -> None:
    a, b, m = leaf(1.0, 2.0), leaf(3.0, 4.0), gradcore.ones(2, 3, requires_grad=True)
    for t in (a, b, m):
        # A leaf's hooks run when nothing refers to the cotangent any more that the sum has handed on.
        t.register_hook(lambda g: None)
    (gradcore.cat([gradcore.ones(2), a + 1]) * gradcore.ones(4)).sum().backward()
    ((b + 1).sum() * 1).backward()
    ((m + 1).T * gradcore.ones(3, 2)).sum().backward()
    for t in (a, b, m):
        assert t.grad.storage.nbytes == t.spec.nbytes and t.grad.is_contiguous() and set(t.grad.flatten().tolist()) == {1.0}


def test_a_gradient_with_a_graph_has_bytes_of_its_own() -> None:
    a, given = leaf(1.0, 2.0), gradcore.ones(2)
    a.backward(given, create_graph=True)
    a.grad.data.zero_()
    assert given.tolist() == [1.0, 1.0]
    a.grad = None
    # The gradient of a sum repeats one number, which could not be written to.
    a.sum().backward(create_graph=True)
    a.sum().backward()
    assert a.grad.tolist() == [2.0, 2.0] and a.grad.is_contiguous()


def test_a_retained_gradient_has_bytes_of_its_own() -> None:
    a, given = leaf(1.0, 2.0), gradcore.ones(2)
    first = a * 1
    second = first + 1
    for y in (first, second):
        y.retain_grad()
    second.backward(given, retain_graph=True)
    second.grad.mul_(5)
    assert given.tolist() == first.grad.tolist() == [1.0, 1.0]
    first.sum().backward()
    assert first.grad.mul_(2).tolist() == [4.0, 4.0]


def test_a_repeated_number_is_not_added_to_in_place() -> None:
    a = leaf(1.0, 2.0)
    y = a * 2
    first = y * 5
    ((y + 1).sum() * 3 + first.sum()).backward()
    assert a.grad.tolist() == [16.0, 16.0]


def test_backward_from_a_leaf_calls_its_hooks() -> None:
    a = gradcore.tensor(1.0, requires_grad=True)
    a.register_hook(lambda g: g * 3)
    a.backward()
    assert a.grad.item() == 3.0


def test_a_node_with_a_hook_gives_its_residuals_back_when_it_has_run() -> None:
    a = leaf(1.0, 2.0)
    y = a * a
    y.grad_fn.register_hook(lambda inputs, outputs: None)
    y.sum().backward()
    assert y.grad_fn.saved is None and a.storage.block.keeps == 0


def test_what_a_hook_of_a_node_holds_is_not_written_to() -> None:
    a = leaf(1.0, 2.0)
    held: list[gradcore.Tensor] = []
    y = a * 3
    y.grad_fn.register_hook(lambda inputs, outputs: held.extend((*inputs[:1], *outputs)))
    y.sum().backward(retain_graph=True)
    a.grad.zero_()
    y.sum().backward()
    assert [g.tolist() for g in held] == [[3.0, 3.0], [1.0, 1.0]] * 2 and a.grad.tolist() == [3.0, 3.0]


def test_a_leaf_has_its_gradient_before_any_older_node_runs() -> None:
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    seen: list[str] = []
    y = a * a
    b.register_hook(lambda g: seen.append("the leaf"))
    y.grad_fn.register_prehook(lambda gs: seen.append("the node"))
    (b * y).sum().backward()
    assert seen == ["the leaf", "the node"]


def test_the_gradient_that_a_result_retains_may_be_dropped() -> None:
    a = leaf(1.0, 2.0)
    y = a * 2
    held = gradcore.memory_requested()
    for asked in (True, False):
        if asked:
            y.retain_grad()
        for _ in range(2):
            y.sum().backward(retain_graph=True, inputs=None if asked else [y])
            assert y.grad.tolist() == [1.0, 1.0]
            y.grad = None
            assert y.grad is None and y.retains_grad
    del a.grad
    assert a.grad is None and gradcore.memory_requested() == held
    (a * 3).sum().backward()
    assert a.grad.tolist() == [3.0, 3.0]


def test_a_tensor_is_not_its_own_gradient() -> None:
    a = leaf(1.0, 2.0)
    with raises(RuntimeError, "can't assign Variable as its own grad"):
        a.grad = a
    assert a.grad is None


def test_gradients_of_what_is_not_used_may_be_zeros_with_a_graph() -> None:
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    for create_graph in (False, True):
        found = gradcore.autograd.grad((a * a).sum(), [a, b], create_graph=create_graph, materialize_grads=True)
        assert [g.requires_grad for g in found] == [create_graph] * 2 and found[1].tolist() == [0.0, 0.0]
    sum(g.sum() for g in found).backward()
    assert a.grad.tolist() == [2.0, 2.0] and b.grad is None
    with raises(RuntimeError, "'inputs' argument to 'grad' cannot be empty"):
        gradcore.autograd.grad(a.sum(), [])
    del found
