"""Explicit graphs follow the tensors that they read, also if the tensors' memory was replaced."""

from __future__ import annotations

from typing import Any
from weakref import ref

import pytest

import gradcore
from gradcore import nn
from gradcore.errors import TraceError
from tests.host.graph_mode.test_graphs import chain, round_of

F = nn.functional


def test_a_chain_goes_on_with_the_new_memory_of_parameters() -> None:
    model, *parts = chain()
    for k in range(5):
        for p, g in zip(model.parameters(), round_of(model, *parts, k), strict=True):
            p.data = p.data - g * 0.1


def test_what_the_graph_writes_to_is_followed_too() -> None:
    seen, x = gradcore.zeros(2), gradcore.ones(2)
    graph = gradcore.trace(lambda x: seen.add_(x) * 2, x)
    assert graph.execute(x).tolist() == [4, 4]
    before, seen.data = seen.data, gradcore.full((2,), 10.0)
    assert graph.execute(x).tolist() == [22, 22] and seen.tolist() == [11, 11] and before.tolist() == [2, 2]
    assert seen._version > 0


def test_the_old_memory_goes_back() -> None:
    w, x = gradcore.ones(1000), gradcore.ones(1000)
    graph = gradcore.trace(lambda x: (x * w).sum(), x)
    graph.execute(x)
    live = gradcore.memory_requested()
    w.data = gradcore.zeros(1000)
    assert graph.execute(x).item() == 0
    assert gradcore.memory_requested() == live


def test_memory_that_is_given_before_the_first_round_is_followed() -> None:
    w, x = gradcore.full((3,), 2.0, requires_grad=True), gradcore.ones(3)
    graph = gradcore.trace(lambda x: (x * w * w).sum(), x)
    slope = gradcore.gradients(graph, wrt=w)
    before, w.data = ref(w.storage), gradcore.full((3,), 5.0)
    for _ in range(2):
        assert graph.execute(x).item() == 75 and slope.execute()[0].tolist() == [10] * 3
        assert before() is None


def test_memory_that_a_gradient_has_taken_since_is_not_read() -> None:
    x, held = gradcore.ones(3, requires_grad=True), [gradcore.tensor([1.0, 2.0, 3.0])]
    first = gradcore.trace(lambda x: x * 2, x)
    second = gradcore.trace(lambda y: (y * held.pop()).mean(), first.outputs)
    gradcore.gradients(second, wrt=first.outputs)
    with pytest.raises(TraceError, match="from before the run was read and then freed"):
        first.execute(x)


def test_memory_that_is_given_in_the_middle_of_a_round_is_refused() -> None:
    w, x = gradcore.full((3,), 2.0, requires_grad=True), gradcore.ones(3)
    graph = gradcore.trace(lambda x: (x * w * w).sum(), x)
    slope = gradcore.gradients(graph, wrt=w)
    graph.execute(x), slope.execute()
    graph.execute(x)
    w.data = gradcore.full((3,), 5.0)
    with pytest.raises(TraceError, match=r"was replaced .* after <graph of <lambda>, part 1 of 2> was executed"):
        slope.execute()
    assert graph.execute(x).item() == 75 and slope.execute()[0].tolist() == [10] * 3


@pytest.mark.parametrize(("other", "now"), [
    (lambda: gradcore.ones(2, 4)[:, :3], r"float32\[2, 3\] strides \(4, 1\)"),
    (lambda: gradcore.ones(2, 3, dtype=gradcore.float64), r"float64\[2, 3\]"),
    (lambda: gradcore.ones(3), r"float32\[3\]"),
    (lambda: gradcore.ones(7)[1:].view(2, 3), "offset 1"),
])
def test_memory_of_another_layout_is_refused(other: Any, now: str) -> None:
    w, x = gradcore.zeros(2, 3), gradcore.ones(2, 3)
    graph = gradcore.trace(lambda x: x + w, x)
    graph.execute(x)
    before, w.data = w.data, other()
    with pytest.raises(TraceError, match=rf"a tensor, float32\[2, 3\] on cpu, which is now .*{now}.*: trace it again"):
        graph.execute(x)
    w.data = before
    assert graph.execute(x).tolist() == [[1] * 3] * 2


def test_of_two_tensors_in_one_memory_both_have_to_move() -> None:
    w, x = gradcore.zeros(2, 3), gradcore.ones(3)
    row = w[0]
    graph = gradcore.trace(lambda x: (w + x, row + x), x)
    w.data = gradcore.ones(2, 3)
    with pytest.raises(TraceError, match="another tensor that shared the old memory"):
        graph.execute(x)
    row.data = w[0]
    assert [t.tolist() for t in graph.execute(x)] == [[[2] * 3] * 2, [2] * 3]


def test_a_tensor_that_is_on_another_device_now_is_refused() -> None:
    w, x = gradcore.zeros(2), gradcore.ones(2)
    graph = gradcore.trace(lambda x: x + w, x)
    graph.execute(x)
    w.data = gradcore.zeros(2, device="meta")
    with pytest.raises(TraceError, match=r"a tensor, float32\[2\] on cpu, which is now float32\[2\] on meta: trace it again"):
        graph.execute(x)


def test_memory_that_is_too_small_for_what_the_graph_reads_of_it_is_refused() -> None:
    whole, w, x = [gradcore.arange(8.0)], gradcore.zeros(4), gradcore.ones(4)
    w.data = whole[0][:4]
    graph = gradcore.trace(lambda x: x + w + whole[0][4:], x)
    assert graph.execute(x).tolist() == [5, 7, 9, 11]
    # Of the two tensors in this memory only the part is left.
    whole.clear()
    w.data = gradcore.zeros(4)
    with pytest.raises(TraceError, match="trace it again"):
        graph.execute(x)
    w.data = gradcore.zeros(8)[:4]
    assert graph.execute(x).tolist() == [1] * 4


def test_a_leaf_that_moved_is_named() -> None:
    layer, x = nn.Linear(3, 1), gradcore.ones(3)
    graph = gradcore.trace(lambda x: layer(x), x)
    graph.execute(x)
    layer.weight.data = gradcore.ones(2)
    with pytest.raises(TraceError, match=r"traced with weight, float32\[1, 3\]"):
        graph.execute(x)


@pytest.mark.parametrize("detached", [lambda c: c.detach(), lambda c: c.data])
def test_a_tensor_of_which_only_a_detached_one_is_read_is_followed(detached: Any) -> None:
    c, x = gradcore.ones(2), gradcore.ones(2)
    graph = gradcore.trace(lambda x: x * detached(c), x)
    with gradcore.record():
        y = detached(c) * 2
    for k in range(1, 4):
        assert graph.execute(x).tolist() == [k, k] and y.forward().tolist() == [2 * k, 2 * k]
        c.data = gradcore.full((2,), k + 1.0)


def test_a_detached_result_that_is_computed_again_has_no_graph() -> None:
    a = gradcore.ones(2, requires_grad=True)
    with gradcore.record():
        y = a * 2
        z = y.detach()
    for k in (1.0, 2.0, 3.0):
        a.data = gradcore.full((2,), k)
        assert not z.forward().requires_grad and y.forward().requires_grad and z.tolist() == y.tolist() == [2 * k, 2 * k]
