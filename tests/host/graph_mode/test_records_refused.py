"""What ``forward()`` of a recorded graph refuses, since another run would leave it out silently; and what is no part of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore.autograd.graph import GradientEdge
from gradcore.nn import functional as F
from tests.conftest import raises


class Tripled(gradcore.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 3


#: The tensors of :func:`hooked`, since a gradient that is retained goes with its tensor.
HELD: list[Any] = []


def hooked(hang: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(a: Any) -> Any:
        h = a * 3
        hang(h)
        HELD.append(h)
        return h.sum()

    return run


@pytest.mark.parametrize("backward_first", [False, True])
@pytest.mark.parametrize("run, part", [
    (lambda a: Tripled.apply(a).sum(), "cannot run TripledBackward again"),
    (lambda a: Tripled.apply(a), "cannot run TripledBackward again"),
    (hooked(lambda h: h.register_hook(lambda g: g * 2)), "hook or a retained gradient on the result of MulBackward0"),
    (hooked(lambda h: h.retain_grad()), "hook or a retained gradient on the result of MulBackward0"),
    (hooked(lambda h: h.grad_fn.register_prehook(lambda gs: gs)), "hook or a retained gradient on the result of MulBackward0")])
def test_what_another_run_would_leave_out_is_refused(run: Callable[[Any], Any], part: str, backward_first: bool) -> None:
    a = gradcore.ones(1, requires_grad=True)
    with gradcore.record():
        y = run(a)
    if backward_first:
        y.backward()
    with raises(RuntimeError, part):
        y.forward()
    HELD.clear()


def test_functions_before_the_record_and_hooks_on_leaves_run() -> None:
    a, w = gradcore.ones(1, requires_grad=True), gradcore.ones(1, requires_grad=True)
    before = Tripled.apply(a)
    before.register_hook(lambda g: g * 10)
    w.register_hook(lambda g: g * 100)
    with gradcore.record():
        y = (before * w).sum()
    y.forward()
    y.backward()
    assert (y.item(), a.grad.item(), w.grad.item()) == (3.0, 30.0, 300.0)


def test_a_write_that_only_reads_what_is_behind_it_is_not_run_again() -> None:
    x, total = gradcore.ones(2), gradcore.zeros(2)
    with gradcore.record():
        h = x + 1
        total.copy_(h)
        total.mul_(2)
        y = h * 3
    total.zero_()
    assert (y.forward().tolist(), total.tolist()) == ([6.0, 6.0], [0.0, 0.0])


@pytest.mark.parametrize("run", [
    lambda x, w: (x * 2).add_(w), lambda x, w: F.batch_norm(x, gradcore.zeros(2), gradcore.ones(2), w, training=True)])
def test_a_write_that_reads_a_leaf_from_inside_is_run_again(run: Callable[[Any, Any], Any]) -> None:
    x = gradcore.tensor([[0.0, 3.0], [1.0, -1.0]])
    with gradcore.record():
        w = gradcore.full((2,), 5.0, requires_grad=True)
        y = run(x, w)
    x.copy_(gradcore.tensor([[7.0, 2.0], [-4.0, 0.5]]))
    y.forward()[0].sum().backward()
    found, w.grad = w.grad.tolist(), None
    wanted = run(x, w)
    wanted[0].sum().backward()
    assert (y.tolist(), found) == (wanted.tolist(), w.grad.tolist())


def test_a_leaf_is_not_computed_again() -> None:
    with gradcore.record():
        w = gradcore.nn.Parameter(gradcore.ones(2))
    with raises(RuntimeError, "not computed under `with gradcore.record():`"):
        w.forward()
    assert w.requires_grad


def test_views_that_another_thread_takes_meanwhile_are_not_recorded() -> None:
    w = gradcore.arange(6.0).reshape(2, 3)
    turned = w.t()
    with gradcore.record():
        other = threading.Thread(target=turned.view, args=(3, 2, 1))
        other.start()
        other.join()
        y = w * 2
    w.add_(1)
    assert y.forward().tolist() == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]


def test_gradients_inside_a_record_are_computed_again_from_what_forward_kept() -> None:
    w, c = gradcore.tensor([0.1, 0.2], requires_grad=True), gradcore.tensor([3.0, 4.0])
    with gradcore.record():
        g, = gradcore.autograd.grad(((w * 2).tanh() * c).sum(), w)
    with gradcore.no_grad():
        w.mul_(2)
    expected, = gradcore.autograd.grad(((w * 2).tanh() * c).sum(), w)
    assert g.forward().tolist() == expected.tolist()


@pytest.mark.parametrize("again", [False, True])
def test_a_gradient_in_the_place_of_a_recorded_tensor_was_not_recorded(again: bool) -> None:
    w = gradcore.tensor([0.1, 0.2], requires_grad=True)
    with gradcore.record():
        x = w * 2
        y = x.tanh()
    if again:
        y.forward()
        x = GradientEdge(y.grad_fn.next_functions[0][0], 0)
    loss = (y * 3).sum()
    del y
    g, = gradcore.autograd.grad(loss, x)
    with pytest.raises(RuntimeError, match="needs a recorded graph"):
        g.forward()
