"""What is part of a tensor's graph and what is not: the same lines give the same results in both libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from tests.conftest import collector

CASES: dict[str, Callable[[Any], Any]] = {}
case = collector(CASES)


def numbers(x: Any) -> Any:
    return None if x is None else x.tolist()


@case
def a_cast_to_integers_has_no_gradient(t: Any) -> Any:
    x = t.tensor([0.3, 1.7], requires_grad=True)
    (x - x.long() + x * x.bool()).sum().backward()
    return numbers(x.grad), x.long().requires_grad, x.to(t.int32).requires_grad


@case
def a_frozen_leaf_keeps_its_gradient(t: Any) -> Any:
    w = t.nn.Parameter(t.ones(2))
    (w * 3).sum().backward()
    w.requires_grad_(False)
    frozen = numbers(w.grad)
    w.requires_grad_(True)
    (w * 2).sum().backward()
    return frozen, numbers(w.grad)


@case
def a_graph_leads_to_a_leaf_that_was_frozen_meanwhile(t: Any) -> Any:
    w = t.nn.Parameter(t.ones(2))
    loss = (w * 3).sum()
    w.requires_grad_(False).requires_grad_(True)
    loss.backward()
    return numbers(w.grad)


@case
def a_leaf_that_was_frozen_meanwhile_gets_nothing(t: Any) -> Any:
    w, v = t.nn.Parameter(t.ones(2)), t.nn.Parameter(t.ones(2))
    w.register_post_accumulate_grad_hook(lambda p: p.fill_(5))
    optimizer = t.optim.SGD([w, v], lr=0.5)
    loss = (w * v * 3).sum()
    w.requires_grad_(False)
    loss.backward(retain_graph=True)
    optimizer.step()
    frozen = numbers(w), numbers(w.grad), numbers(v.grad)
    w.requires_grad_()
    (w * 2).sum().backward()
    return frozen, numbers(w.grad)


@case
def hooks_outlast_a_frost(t: Any) -> Any:
    w = t.nn.Parameter(t.ones(2))
    w.register_hook(lambda g: g * 0)
    w.requires_grad_(False).requires_grad_(True)
    (w * 3).sum().backward()
    return numbers(w.grad)


@case
def an_update_takes_a_frozen_gradient(t: Any) -> Any:
    w = t.nn.Parameter(t.ones(1))
    optimizer = t.optim.SGD([w], lr=0.5)
    (w * 1).sum().backward()
    w.requires_grad_(False)
    optimizer.step()
    after = w.item()
    optimizer.zero_grad()
    return after, numbers(w.grad)


@case
def a_gradient_given_to_what_needs_none(t: Any) -> Any:
    x = t.ones(2)
    x.grad = t.ones(2) * 4
    return numbers(x.grad), x.requires_grad


@case
def a_view_of_what_was_detached(t: Any) -> Any:
    a = t.tensor([1.0, 2.0], requires_grad=True)
    x = a * 1
    z = x.detach()[:2]
    x.mul_(2)
    (x * z).sum().backward()
    return z.requires_grad, numbers(z), numbers(a.grad)


@case
def a_write_through_what_was_detached(t: Any) -> Any:
    a, w = t.ones(3, requires_grad=True), t.tensor(5.0, requires_grad=True)
    x = a * 1
    e = x[:]
    x.detach().mul_(w)
    e.sum().backward()
    return numbers(a.grad), numbers(w.grad)


@case
def what_is_drawn_anew_depends_on_nothing(t: Any) -> Any:
    w = t.ones(3, requires_grad=True)
    y, z = w * 2, w * 3
    y.normal_()
    z.uniform_(1, 2)
    (y + z).sum().backward()
    return numbers(w.grad)


@case
def what_is_filled_depends_on_the_value(t: Any) -> Any:
    w = t.ones(3, requires_grad=True)
    x = t.zeros(3)
    x.fill_(w.sum())
    x.sum().backward()
    return numbers(w.grad)


@case
def assigned_values_lose_leading_ones(t: Any) -> Any:
    w = t.ones(1, 2, requires_grad=True)
    x = t.zeros(3)
    x[0] = t.tensor([5.0])
    x[t.tensor([0, 2])] = w * 6
    x.sum().backward()
    return numbers(x), numbers(w.grad)


@case
def a_number_in_a_text(t: Any) -> Any:
    return f"{t.tensor(0.5)} {t.tensor(7)} {t.tensor(0.25):.3f} {t.ones(2)}"


@case
def whole_numbers_are_round(t: Any) -> Any:
    return numbers(t.round(t.tensor([1, 2]))), str(t.round(t.tensor([1, 2])).dtype).rpartition(".")[2]


@case
def a_factor_is_taken_in_the_dtype_of_the_sum(t: Any) -> Any:
    halves = t.tensor([3.0], dtype=t.float16)
    return (numbers(t.add(t.zeros(1), t.tensor([100], dtype=t.int8), alpha=2)), numbers(t.add(t.zeros(1), halves, alpha=1e5)),
            numbers(t.zeros(1).sub_(t.tensor([100], dtype=t.int8), alpha=3)))


@case
def joined_parts_have_gradients_of_their_own_dtype(t: Any) -> Any:
    x, y = (t.ones(2, dtype=getattr(t, kind), requires_grad=True) for kind in ("float16", "float64"))
    t.cat([x, t.ones(2), y]).sum().backward()
    return [str(p.grad.dtype).rpartition(".")[2] for p in (x, y)]


@case
def a_cross_product_along_the_first_3(t: Any) -> Any:
    a, b = t.arange(18.0).reshape(3, 2, 3), t.ones(3, 2, 3)
    return numbers(t.cross(a, b)), numbers(t.cross(a, b, 2)), numbers(t.linalg.cross(a, b))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Using torch.cross:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_it_is_as_in_torch(name: str, torch: Any) -> None:
    assert CASES[name](gradcore) == CASES[name](torch)


@pytest.mark.oracle
@pytest.mark.parametrize("write", [
    lambda y: y.mul_(y), lambda y: y.div_(y), lambda y: y.mul_(y.detach()), lambda y: y[0].mul_(y[0]),
    lambda y: y.atan2_(y), lambda y: y.addcmul_(y, y), lambda y: y.pow_(y)],
    ids=["mul", "div", "detached", "part by part", "atan2", "addcmul", "pow"])
def test_an_operand_that_was_overwritten_is_no_residual(write: Callable[[Any], Any], torch: Any) -> None:
    """Backward would read the overwritten values."""
    for t in (torch, gradcore):
        x = t.tensor([2.0, 3.0], requires_grad=True)
        y = x * 1
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
            write(y)
            y.sum().backward()


@pytest.mark.oracle
def test_an_operand_that_is_another_part_of_the_target_is_read_before_the_write(torch: Any) -> None:
    """PyTorch refuses what NumPy computes."""
    y = torch.tensor([2.0, 3.0], requires_grad=True) * 1
    with pytest.raises(RuntimeError, match="single memory location"):
        y.mul_(y[0])
    x = gradcore.tensor([2.0, 3.0], requires_grad=True)
    y = x * 1
    y.mul_(y[0])
    y.sum().backward()
    assert y.tolist() == [4.0, 6.0] and x.grad is not None and x.grad.tolist() == [7.0, 2.0]


def test_unused_results_give_no_gradients() -> None:
    """Weight decay would shrink parameters with a gradient of 0."""
    a, b = gradcore.nn.Parameter(gradcore.ones(1)), gradcore.nn.Parameter(gradcore.ones(1))
    optimizer = gradcore.optim.SGD([a, b], lr=0.1, weight_decay=0.5)
    both = gradcore.compile(lambda x: (x * a, x * b))
    for _ in range(4):
        optimizer.zero_grad()
        both(gradcore.ones(1))[0].sum().backward()
        optimizer.step()
        assert b.grad is None
    assert b.item() == 1.0 and a.item() < 1.0


def test_a_gradient_of_0_stays_one() -> None:
    """It depends on no cotangent, but has a graph."""
    x = gradcore.tensor([0.3, 1.7], requires_grad=True)
    for f in (lambda x: x.floor(), gradcore.compile(lambda x: x.floor())):
        for _ in range(2):
            x.grad = None
            f(x).sum().backward()
            assert x.grad.tolist() == [0.0, 0.0]
