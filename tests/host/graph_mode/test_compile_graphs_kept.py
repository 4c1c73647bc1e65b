"""Graphs that a compiled function leaves behind: of arguments that it writes to, of what it captured, of what it returns."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn, ones

Wrap = Callable[[Any], Any]


def a_view_of_another_argument_is_written(wrap: Wrap) -> Any:
    w = ones(2, 3, requires_grad=True)
    base = w * 1
    wrap(lambda a, b: (b.mul_(2), a.sum())[1])(base, base[0]).backward()
    return w.grad.tolist()


def an_argument_is_a_view_and_is_written(wrap: Wrap) -> Any:
    w = ones(2, 3, requires_grad=True)
    base = w * 1
    wrap(lambda b: b.mul_(2).sum())(base[0])
    base.sum().backward()
    return w.grad.tolist()


def an_argument_is_written_that_has_views(wrap: Wrap) -> Any:
    w = ones(2, 3, requires_grad=True)
    base = w * 1
    shown = base.view(6)
    wrap(lambda b: b.mul_(2).sum())(base)
    shown.sum().backward()
    return w.grad.tolist()


def an_argument_is_returned(wrap: Wrap) -> Any:
    f, found = wrap(lambda x: (x, x * 3)), []
    for _ in range(3):
        w = ones(2, requires_grad=True)
        x = w * 1
        same, _ = f(x)
        same.mul_(2)
        x.sum().backward()
        found.append((same is x, w.grad.tolist()))
    return found


def an_argument_is_given_twice(wrap: Wrap) -> Any:
    f, found = wrap(lambda x, y: (x * y).sum()), []
    for _ in range(3):
        w = ones(2, requires_grad=True)
        x = w * 2
        f(x, x).backward()
        found.append(w.grad.tolist())
    return found


def a_result_that_keeps_no_residuals_beside_a_backward(wrap: Wrap) -> Any:
    w, found = nn.Parameter(ones(2)), []
    f = wrap(lambda x: (gradcore.autograd.grad((w * x).sum(), [w])[0], w + x))
    for _ in range(3):
        w.grad = None
        _, y = f(ones(2))
        (y.sum() + w.pow(2).sum()).backward()
        found.append(w.grad.tolist())
    return found


def a_captured_tensor_gets_a_graph(wrap: Wrap) -> Any:
    w, total = nn.Parameter(ones(1)), gradcore.zeros(1)
    f = wrap(lambda x: (total.add_(w * x), x * 1)[1])
    for _ in range(3):
        f(ones(1))
    total.sum().backward()
    return w.grad.tolist()


def a_base_gets_a_graph_through_a_captured_view(wrap: Wrap) -> Any:
    w, total = nn.Parameter(ones(1)), gradcore.zeros(2)
    part = total[:1]
    f = wrap(lambda x: (part.add_(w * x), x * 1)[1])
    for _ in range(3):
        f(ones(1))
    total.sum().backward()
    return w.grad.tolist()


def a_function_that_runs_the_gradient_of_a_compiled_call(wrap: Wrap) -> Any:
    m = nn.Linear(2, 1, bias=False)
    m.weight.data = ones(1, 2)
    f, back = wrap(lambda x: m(x).sum()), wrap(lambda loss: loss.backward())
    for _ in range(3):
        back(f(ones(1, 2)))
    return m.weight.grad.tolist()


def arguments_written_before_a_gradient_that_needs_none_of_them(wrap: Wrap) -> Any:
    w = nn.Parameter(ones(3))
    f = wrap(lambda x: (w + x).sum())
    for _ in range(3):
        x = ones(3)
        loss = f(x)
        x.add_(1)
        loss.backward()
    return w.grad.tolist()


@pytest.mark.parametrize("program", [
    a_view_of_another_argument_is_written, an_argument_is_a_view_and_is_written, an_argument_is_written_that_has_views,
    an_argument_is_returned, an_argument_is_given_twice, a_result_that_keeps_no_residuals_beside_a_backward,
    a_captured_tensor_gets_a_graph, a_base_gets_a_graph_through_a_captured_view,
    a_function_that_runs_the_gradient_of_a_compiled_call, arguments_written_before_a_gradient_that_needs_none_of_them])
def test_it_is_as_in_eager_mode(program: Callable[[Wrap], Any]) -> None:
    assert program(gradcore.compile) == program(lambda f: f)


def test_arguments_that_the_gradient_reads_must_not_be_written() -> None:
    w = nn.Parameter(ones(3))
    f = gradcore.compile(lambda x: (w * x).sum())
    for _ in range(2):
        x = ones(3)
        loss = f(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    # The pending gradient's memory goes with its graph.
    del loss
    gc.collect()


def test_inputs_that_the_gradient_does_not_read_are_given_back_at_once() -> None:
    w = nn.Parameter(ones(1))
    f = gradcore.compile(lambda x: x.mean() * w)
    for _ in range(3):
        x = ones(256, 256)
        loss = f(x)
        before = gradcore.memory_allocated()
        del x
        assert before - gradcore.memory_allocated() == 256 * 256 * 4
        with gradcore.step(level="events") as s:
            loss.backward()
        assert s.report.peak.allocated < 256 * 256 * 4
        assert w.grad.tolist() == [1.0]
        w.grad = None


def test_an_error_while_tracing_leaves_the_arguments_graphs() -> None:
    w = ones(2, requires_grad=True)
    x = w * 2
    edge = x.edge

    def broken(x: Any) -> Any:
        x * 3
        raise KeyError("no")

    with pytest.raises(KeyError):
        gradcore.compile(broken)(x)
    assert x.edge is edge
    x.sum().backward()
    assert w.grad.tolist() == [2.0, 2.0]


def test_the_reasons_say_what_prevents_a_replay() -> None:
    w, total = nn.Parameter(ones(1)), gradcore.zeros(1)
    f = gradcore.compile(lambda x: (total.add_(w * x), x * 1)[1])
    f(ones(1))
    graph_is_left = "it leaves a graph in a tensor that it refers to: store it detached, or return it"
    assert graph_is_left in f.traces[0]
    # It is said in the same way of a tensor that is new, to which nothing is written.
    kept = SimpleNamespace()

    def g(x: Any) -> Any:
        kept.product = w * x
        return kept.product * 1

    compiled = gradcore.compile(g)
    compiled(ones(1))
    assert graph_is_left in compiled.traces[0]
    inner, back = gradcore.compile(lambda x: (w * x).sum()), gradcore.compile(lambda loss: loss.backward())
    back(inner(ones(1)))
    back(inner(ones(1)))
    assert "it runs the gradient of an earlier compiled call" in back.traces[-1]
