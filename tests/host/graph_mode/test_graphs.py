"""Explicit graphs: traced, chained, executed by hand, and recorded graphs that run again."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.errors import TraceError
from tests.conftest import raises
from tests.host.graph_mode.test_compile import data, net, same

F = nn.functional


def chain() -> tuple[Any, Any, Any, Any]:
    """A network, the graphs of its forward, of the loss, and of the gradients."""
    model = net().eval()
    x, y = data(0)
    graph = gradcore.trace(model, x)
    loss_graph = gradcore.trace(F.cross_entropy, (graph.outputs, y))
    return model, graph, loss_graph, gradcore.gradients(loss_graph, wrt=list(model.parameters()))


def round_of(model: Any, graph: Any, loss_graph: Any, slope: Any, k: int) -> Any:
    """Execute a chain on batch ``k``, compare all that it returns with an eager run, and return the gradients."""
    x, y = data(k)
    scores, loss, grads = graph.execute(x), loss_graph.execute(y), slope.execute()
    model.zero_grad()
    expected = F.cross_entropy(model(x), y)
    expected.backward()
    assert same(scores, model(x)) and same(loss, expected)
    assert all(same(g, p.grad) for g, p in zip(grads, model.parameters(), strict=True))
    return grads


def test_a_chain_of_graphs_gives_what_eager_runs_give() -> None:
    model, *parts = chain()
    for k in range(5):
        grads = round_of(model, *parts, k)
        with gradcore.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(g * 0.1)


def test_what_a_later_graph_reads_stays_and_the_rest_is_back() -> None:
    _, graph, loss_graph, slope = chain()
    x, y = data(0)
    graph.execute(x), loss_graph.execute(y), slope.execute()
    live = gradcore.memory_requested()
    out = graph.execute(x)
    # tanh's output and the scores, which the loss and the gradients read; and the scores that were returned.
    assert gradcore.memory_requested() - live == 5 * 8 * 4 + 2 * 5 * 3 * 4
    loss_graph.execute(y)
    assert gradcore.memory_requested() - live == 5 * 8 * 4 + 2 * 5 * 3 * 4
    grads = slope.execute(keep=[])
    assert grads == (None,) * 4
    del out
    assert gradcore.memory_requested() == live
    graph.execute(x, keep=[])
    assert gradcore.memory_requested() - live == 5 * 8 * 4 + 5 * 3 * 4
    graph.execute(x, keep=[])
    assert gradcore.memory_requested() - live == 5 * 8 * 4 + 5 * 3 * 4


def test_a_report_sees_each_part_of_a_chain() -> None:
    _, graph, loss_graph, slope = chain()
    x, y = data(0)
    with gradcore.step() as s:
        graph.execute(x), loss_graph.execute(y), slope.execute()
    assert sum(s.report.by_layer.values()) == s.report.peak.allocated and {"0", "3"} <= s.report.by_layer.keys()
    assert graph.plan.nbytes == graph.plan.bound and len(graph.program.instructions) == 3


def test_gradients_for_inputs_and_for_outputs_of_graphs_before() -> None:
    a = gradcore.tensor([1.0, 2.0], requires_grad=True)
    first = gradcore.trace(lambda x: x * x, a)
    second = gradcore.trace(lambda y: (y * 3).sum(), first.outputs)
    slope = gradcore.gradients(second, wrt=[a, first.outputs])
    for values in ([1.0, 2.0], [3.0, -1.0]):
        x = gradcore.tensor(values)
        assert first.execute(x).tolist() == [v * v for v in values]
        assert second.execute().item() == 3 * sum(v * v for v in values)
        gx, gy = slope.execute()
        assert gx.tolist() == [6 * v for v in values] and gy.tolist() == [3, 3]


def test_structures_of_inputs_and_outputs() -> None:
    graph = gradcore.trace(lambda pair, scale: {"sum": pair[0] + pair[1], "scaled": [pair[0] * scale]},
                           ((gradcore.ones(2), gradcore.ones(2)), 3.0))
    found = graph.execute(gradcore.ones(2), gradcore.full((2,), 2.0))
    assert found["sum"].tolist() == [3, 3] and found["scaled"][0].tolist() == [3, 3]
    kept = graph.execute(gradcore.ones(2), gradcore.ones(2), keep=[graph.outputs["sum"]])
    assert kept["sum"].tolist() == [2, 2] and kept["scaled"] == [None]
    # One output alone, and all of them in the function's own structure.
    for keep, there in (graph.outputs["sum"], False), (graph.outputs, True), ({}, None):
        kept = graph.execute(gradcore.ones(2), gradcore.ones(2), keep=keep)
        assert (kept["scaled"] != [None], kept["sum"] is not None) == (bool(there), there is not None)
    with pytest.raises(TypeError, match=r"such as graph\.outputs, but got int"):
        graph.execute(gradcore.ones(2), gradcore.ones(2), keep=3)


def test_graphs_take_dicts_and_can_be_asked_before_they_run() -> None:
    x, y = gradcore.full((3,), 2.0), gradcore.full((3,), 5.0)
    first = gradcore.trace(lambda given: {"sum": given["x"] + given["y"][0]}, ({"x": x, "y": [y]},))
    second = gradcore.trace(lambda given: given["sum"] * 2, (first.outputs,))
    assert repr(first) == "<graph of <lambda>, part 1 of 2>" and "<output 0 of <graph of <lambda>, part 1 of 2>" in repr(
        first.outputs["sum"])
    assert first.plan is second.plan and [i.op for i in second.program.instructions] == ["mul"]
    for k in range(3):
        assert first.execute(x * k, y)["sum"].tolist() == [2 * k + 5] * 3
        assert second.execute().tolist() == [4 * k + 10] * 3


def test_an_execution_that_failed_does_not_count() -> None:
    """What a later graph reads is of the last run of the one before."""
    x = gradcore.ones(3)
    first = gradcore.trace(lambda x: x * 2, x)
    second = gradcore.trace(lambda y: y + 1, first.outputs)
    first.execute(x), second.execute()
    with raises(TraceError, "was traced with float32[3] as input 0, but got float32[2]"):
        first.execute(gradcore.ones(2))
    with raises(TraceError, "execute that first, once for each execution"):
        second.execute()
    first.execute(x * 3)
    assert second.execute().tolist() == [7] * 3


def test_mistakes_are_named() -> None:
    model, graph, loss_graph, slope = chain()
    x, y = data(0)
    with raises(TypeError, "takes 1 tensor, but got 0"):
        graph.execute()
    with raises(TypeError, "input 0 is int"):
        graph.execute(3)
    with raises(TraceError, "traced with float32[5, 6]", "got float32[4, 6]"):
        graph.execute(data(0, batch=4)[0])
    with raises(TraceError, "<graph of Sequential, part 1 of 3>", "execute that first"):
        loss_graph.execute(y)
    graph.execute(x)
    with raises(TraceError, "execute that first"):
        slope.execute()
    with raises(TraceError, "has been executed: chain"):
        gradcore.trace(lambda s: s * 2, graph.outputs)
    x.add_(1)
    with raises(RuntimeError, "modified by an inplace operation"):
        loss_graph.execute(y)
    with raises(TraceError, "runs backward or updates parameters"):
        gradcore.trace(lambda x: model(x).sum().backward(), x)
    with raises(TraceError, "on the host"):
        gradcore.trace(lambda x: x * x.sum().item(), x)
    with raises(TypeError, "at least one tensor"):
        gradcore.trace(lambda x: x, 3)
    with raises(TraceError, "ran no op on cpu: there is nothing to execute"):
        gradcore.trace(lambda x: x, x)
    with raises(TypeError, "a function and example inputs, or a matrix", "int"):
        gradcore.trace(3)
    others = gradcore.trace(lambda x: x * 2, x), gradcore.trace(lambda x: x * 3, x)
    with raises(TraceError, "different chains"):
        gradcore.trace(lambda a, b: a + b, (others[0].outputs, others[1].outputs))
    model.zero_grad()


def test_the_trace_of_a_matrix_is_still_its_trace() -> None:
    assert gradcore.trace(gradcore.eye(3)).item() == 3


# -- built graphs that are run again -----------------------------------------------------------------------------------


def test_a_built_graph_is_run_again_on_new_values() -> None:
    a = gradcore.tensor([1.0, 2.0], requires_grad=True)
    w = gradcore.tensor([3.0, 4.0], requires_grad=True)
    with gradcore.record():
        h = (a * w).tanh()
        y = (h * w).sum()
    y.backward()
    for k in range(4):
        values = [0.1 * k, 0.2 * k]
        if k % 2:
            a.data = gradcore.tensor(values)
        else:
            with gradcore.no_grad():
                a.copy_(gradcore.tensor(values))
        a.grad = w.grad = None
        assert y.forward() is y
        y.backward()
        x, v = a.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
        expected = ((x * v).tanh() * v).sum()
        expected.backward()
        assert same(y, expected) and same(a.grad, x.grad) and same(w.grad, v.grad)
    with raises(RuntimeError, "a second time"):
        y.backward()


def test_views_lists_numbers_and_writes_in_place_are_run_again() -> None:
    a = gradcore.ones(2, 3, requires_grad=True)

    def f(a: Any) -> Any:
        b = gradcore.cat([a.T[1:], (a * 2).view(3, 2)]) + 1.0
        c = b.clone()
        c[0].mul_(3)
        with gradcore.no_grad():
            d = (b * 2).sum()
        return (c * b.detach()).sum() + d

    with gradcore.record():
        y = f(a)
    for k in range(3):
        a.data = gradcore.full((2, 3), float(k))
        a.grad = None
        y.forward()
        y.backward()
        x = gradcore.full((2, 3), float(k), requires_grad=True)
        expected = f(x)
        expected.backward()
        assert same(y, expected) and same(a.grad, x.grad)


def test_parameters_are_trained_through_a_built_graph() -> None:
    model, other = net().eval(), net().eval()
    x, y = data(0)
    with gradcore.record():
        loss = F.cross_entropy(model(x), y)
    optimizers = [gradcore.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
    for k in range(4):
        new_x, new_y = data(k)
        x.copy_(new_x)
        y.copy_(new_y)
        optimizers[0].zero_grad()
        loss.forward()
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        expected = F.cross_entropy(other(new_x), new_y)
        expected.backward()
        optimizers[1].step()
        assert same(loss, expected)
    assert all(map(same, model.parameters(), other.parameters()))


def test_what_was_not_recorded_cannot_be_run_again() -> None:
    y = gradcore.ones(2) * 2
    with raises(RuntimeError, "not computed under `with gradcore.record():`"):
        y.forward()
    with raises(TraceError, "on the host"), gradcore.record():
        (gradcore.ones(2) * 2).tolist()
    with gradcore.record():
        z = y * 2
    assert z.forward().tolist() == [4, 4]


@pytest.mark.parametrize("kept", [True, False])
def test_a_record_lives_as_long_as_what_it_made(kept: bool) -> None:
    live = gradcore.memory_requested()
    a = gradcore.ones(100)
    with gradcore.record():
        y = a * 2
    del a
    assert gradcore.memory_requested() - live == 800
    if kept:
        y.forward()
    del y
    assert gradcore.memory_requested() == live


def recorded(f: Any) -> Any:
    with gradcore.record():
        y = f(gradcore.ones(3))
    return y.forward()


@pytest.mark.parametrize("run", [
    lambda f: gradcore.compile(f)(gradcore.ones(3)), lambda f: gradcore.trace(f, gradcore.ones(3)).execute(gradcore.ones(3)),
    recorded], ids=["compile", "trace", "record"])
def test_the_first_random_numbers_of_a_device_may_be_drawn_by_what_is_traced(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradcore.device("cpu"), "generator", None)
    found = run(lambda x: x + F.dropout(x, 0.5))
    assert set(found.tolist()) <= {1.0, 3.0}


def test_leaves_that_are_made_inside_keep_their_values_and_get_gradients() -> None:
    x = gradcore.tensor([[1.0, 2.0]])
    with gradcore.record():
        layer = nn.Linear(2, 2)
        w = gradcore.full((2,), 3.0, requires_grad=True)
        v = gradcore.zeros(2).requires_grad_()
        y = (layer(x) * w + v[1:] * w.view(2)).sum()
    y.backward()
    leaves = [*layer.parameters(), w, v]
    for k in range(3):
        x.fill_(k + 1.0)
        w.data = gradcore.full((2,), float(k))
        with gradcore.no_grad():
            layer.bias.add_(1)
        for p in leaves:
            p.grad = None
        y.forward()
        y.backward()
        found = [p.grad.clone() for p in leaves]
        for p in leaves:
            p.grad = None
        expected = (layer(x) * w + v[1:] * w.view(2)).sum()
        expected.backward()
        assert same(y, expected) and all(same(g, p.grad) for g, p in zip(found, leaves, strict=True))


def test_a_leaf_that_was_filled_in_place_inside_is_not_filled_again() -> None:
    with gradcore.record():
        w = gradcore.empty(2)
        w.fill_(3.0)
        y = w.requires_grad_() * 2
    with gradcore.no_grad():
        w.fill_(5.0)
    assert y.forward().tolist() == [10, 10] and w.tolist() == [5, 5]


def test_a_leaf_that_is_made_of_other_tensors_inside_is_refused() -> None:
    x = gradcore.ones(2)
    with gradcore.record():
        a = (x * 2).requires_grad_()
        y = (a * a).sum()
    y.backward()
    with raises(RuntimeError, "from other tensors and then got requires_grad_()"):
        y.forward()


def test_what_is_detached_before_it_is_read_has_a_gradient_too() -> None:
    x = gradcore.tensor([1.0, 2.0], requires_grad=True)
    with gradcore.record():
        y = (x.detach() * x).sum()
    for values in ([1.0, 2.0], [3.0, 4.0]):
        x.data, x.grad = gradcore.tensor(values), None
        y.forward()
        y.backward()
        assert x.grad.tolist() == values


def test_the_first_device_of_a_process_may_be_first_used_inside() -> None:
    run = ("import gradcore\n"
           "with gradcore.record():\n"
           "    y = gradcore.full((2,), 3.0, requires_grad=True) * 2\n"
           "print(y.forward().tolist())")
    assert subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True).stdout == "[6.0, 6.0]\n"
