"""Common cases, with live bytes before and after, equal on NumPy and meta."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import gradcore
from gradcore.errors import AlreadyReleased
from tests.conftest import raises

SIZE = 1000
BYTES = 4 * SIZE


class Case:
    """A device, its live bytes relative to now, and leaves on it."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._start = gradcore.memory_requested(device)

    @property
    def live(self) -> int:
        return gradcore.memory_requested(self.device) - self._start

    def leaf(self) -> Any:
        return gradcore.full((SIZE,), 3.0, device=self.device, requires_grad=True)


@pytest.fixture(params=["cpu", "meta"])
def case(request: pytest.FixtureRequest) -> Any:
    found = Case(request.param)
    yield found
    assert found.live == 0, "nothing is left once the case has ended"


def two_losses(case: Case) -> tuple[Any, Any, Any]:
    a = case.leaf()
    b = a ** 2
    c = b * 2
    return a, c.mean(), c.sum()


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["mean first", "sum first"])
def test_two_losses_on_one_trunk(case: Case, order: tuple[int, int]) -> None:
    made = two_losses(case)
    a, first, second = made[0], made[order[0]], made[order[1]]
    del made
    # b and c are freed; pow keeps a, which is live anyway.
    assert case.live == BYTES + 8
    first.backward(retain_graph=True)
    assert case.live == 2 * BYTES + 8, "and the gradient"
    second.backward()
    assert case.live == 2 * BYTES + 8
    if case.device == "cpu":
        assert a.grad[0].item() == pytest.approx(12 + 12 / SIZE)
    for loss in (first, second):
        with raises(AlreadyReleased, "Trying to backward through the graph a second time", "MulBackward0", "test_classic.py"):
            loss.backward()


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["mean first", "sum first"])
def test_two_losses_without_retaining(case: Case, order: tuple[int, int]) -> None:
    made = two_losses(case)
    a, first, second = made[0], made[order[0]], made[order[1]]
    del made
    first.backward()
    before = None if case.device == "meta" else a.grad.tolist()
    with raises(AlreadyReleased, "Trying to backward through the graph a second time"):
        second.backward()
    assert case.live == 2 * BYTES + 8
    assert before is None or a.grad.tolist() == before, "an error adds nothing"


def test_a_new_loss_on_a_trunk_that_was_freed(case: Case) -> None:
    a = case.leaf()
    trunk = a.exp()
    trunk.sum().backward()
    loss = (trunk + 1).sum()
    with raises(AlreadyReleased, "a second time", "ExpBackward0"):
        loss.backward()
    shared = a + 1
    shared.sum().backward()
    (shared * 2).sum().backward()


@pytest.mark.parametrize("widths", [(1, 1, 1, 1), (1, 50, 20, 70, 30), (90, 10, 10, 10)])
def test_without_a_graph_the_peak_is_the_widest_pair_of_neighbors(case: Case, widths: tuple[int, ...]) -> None:
    weights = [gradcore.ones(*pair, device=case.device) for pair in pairwise(widths)]
    x = gradcore.ones(SIZE, widths[0], device=case.device)
    held = gradcore.memory_requested(case.device) - x.nbytes
    with gradcore.no_grad():
        gradcore.reset_peak_memory_stats(case.device)
        for weight in weights:
            x = x @ weight
    pairs = [one + two for one, two in pairwise(widths)]
    assert gradcore.max_memory_requested(case.device) - held == max(pairs) * BYTES


def test_in_a_loop_the_last_graph_alone_is_alive(case: Case) -> None:
    w = case.leaf()
    lives = []
    for _ in range(4):
        y = w.exp()
        loss = y.sum()
        lives.append(case.live)
    assert set(lives) == {2 * BYTES + 4}
    del y, loss
    assert case.live == BYTES


HOLD: dict[str, tuple[Callable[[Any], Any], bool, int]] = {
    # What is held of k = a.exp(), whether it has a graph, live bytes once k and a are gone: the graph holds only a's slot.
    "m = k": (lambda k: k, True, BYTES), "m = k.detach()": (lambda k: k.detach(), False, BYTES),
    "m = k.sum()": (lambda k: k.sum(), True, BYTES + 4), "m = k.sum().detach()": (lambda k: k.sum().detach(), False, 4),
}


@pytest.mark.parametrize("name", HOLD)
def test_nodes_stay_while_something_refers_to_them(case: Case, name: str) -> None:
    hold, graph, nbytes = HOLD[name]
    k = case.leaf().exp()
    m = hold(k)
    del k
    assert (m.grad_fn is not None, case.live) == (graph, nbytes)


def test_an_average_under_no_grad_ties_no_steps_together(case: Case) -> None:
    student, teacher = case.leaf(), case.leaf().detach()
    lives = []
    for _ in range(5):
        loss = (student * teacher).sum()
        loss.backward()
        with gradcore.no_grad():
            student -= 0.1 * student.grad
            teacher.mul_(0.99).add_(student, alpha=0.01)
        del loss
        lives.append(case.live)
    assert set(lives) == {3 * BYTES} and teacher.grad_fn is None
