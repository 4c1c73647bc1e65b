"""Chains of explicit graphs: their log, what they hold between two graphs, and what they refuse."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.errors import TraceError
from gradcore.events import Launch, Mark
from gradcore.utils.checkpoint import checkpoint
from tests.conftest import raises
from tests.host.graph_mode.test_compile import data
from tests.host.graph_mode.test_graphs import chain

F = gradcore.nn.functional


def test_the_log_of_a_chain_has_the_launches_and_the_marks_of_an_eager_run() -> None:
    model, graph, loss_graph, slope = chain()
    x, y = data(0)
    graph.execute(x), loss_graph.execute(y), slope.execute()

    def eager() -> None:
        gradcore.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))

    def chained() -> None:
        graph.execute(x), loss_graph.execute(y), slope.execute()

    found = []
    for run in (eager, chained):
        with gradcore.step() as s:
            run()
        found.append([(r.what, r.label) if isinstance(r, Mark) else (r.invocation, r.tag.phase, r.tag.layer)
                      for r in s.recording.records if isinstance(r, (Launch, Mark))])
    assert found[0] == found[1] and ("begin", "backward") in found[1]


def test_a_round_that_was_left_may_begin_again_with_other_values_in_its_inputs() -> None:
    x = gradcore.ones(3)
    first = gradcore.trace(lambda x: x * 2, x)
    second = gradcore.trace(lambda y: y + 1, first.outputs)
    first.execute(x)
    x.add_(1)
    assert first.execute(x).tolist() == [4] * 3 and second.execute().tolist() == [5] * 3


def test_a_chain_that_has_run_holds_none_of_its_inputs() -> None:
    x = gradcore.ones(1000)
    first = gradcore.trace(lambda x: x * 2, x)
    second = gradcore.trace(lambda y, z: y + z, (first.outputs, x))
    first.execute(x), second.execute(x)
    live = gradcore.memory_requested()
    first.execute(gradcore.ones(1000)), second.execute(gradcore.ones(1000))
    assert gradcore.memory_requested() == live


def test_a_chain_holds_no_gradients_of_networks_that_it_does_not_run() -> None:
    held = gradcore.memory_requested()
    other = nn.Linear(100, 100)
    other(gradcore.ones(2, 100)).sum().backward()
    graph = gradcore.trace(lambda x: x * 2, gradcore.ones(1))
    del other
    # Until it is executed, it has argument and result of the traced run.
    assert gradcore.memory_requested() - held == 8
    assert graph.execute(gradcore.ones(1)).item() == 2


def test_what_only_the_next_launch_reads_counts_as_live_until_then() -> None:
    x = gradcore.ones(1000)
    first = gradcore.trace(lambda x: x * 2, x)
    second = gradcore.trace(lambda y: y + 1, first.outputs)
    first.execute(x), second.execute()
    live = gradcore.memory_requested()
    first.execute(x, keep=[])
    assert gradcore.memory_requested() == live + 4000
    second.execute(keep=[])
    assert gradcore.memory_requested() == live


def test_gradients_of_a_graph_that_also_returns_what_needs_none() -> None:
    w = gradcore.tensor([2.0, 3.0], requires_grad=True)
    graph = gradcore.trace(lambda x: ((x * w).sum(), (x * w).detach()), gradcore.ones(2))
    slope = gradcore.gradients(graph, wrt=w)
    loss, products = graph.execute(gradcore.full((2,), 5.0))
    assert loss.item() == 25 and products.tolist() == [10, 15] and slope.execute()[0].tolist() == [5, 5]


def test_a_graph_of_an_optimizers_step_is_refused() -> None:
    w = gradcore.ones(2, requires_grad=True)
    w.grad = gradcore.ones(2)
    optimizer = gradcore.optim.SGD([w], lr=0.1)

    def update(x: Any) -> Any:
        optimizer.step()
        return x * 2

    with pytest.raises(TraceError, match="runs backward or updates parameters"):
        gradcore.trace(update, gradcore.ones(2))


@pytest.mark.parametrize("disturbed", [0, 1])
def test_one_graph_that_another_thread_disturbed_is_enough_to_refuse_the_chain(disturbed: int) -> None:
    def double(x: Any) -> Any:
        return x * 2

    def disturbing(x: Any) -> Any:
        other = threading.Thread(target=lambda: double(x))
        other.start()
        other.join()
        return x + 1

    functions: list[Callable[[Any], Any]] = [double, double]
    functions[disturbed] = disturbing
    first = gradcore.trace(functions[0], gradcore.ones(2))
    second = gradcore.trace(functions[1], first.outputs)
    with pytest.raises(TraceError, match="another thread used the device during the trace"):
        first.execute(gradcore.ones(2))
    del second


def test_gradients_of_what_was_written_to_in_between_raise_as_in_eager_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = gradcore.ones(5, 3)
    graph = gradcore.trace(model, x)
    loss = gradcore.trace(lambda h: (h * h).sum(), graph.outputs)
    slopes = gradcore.gradients(loss, wrt=list(model.parameters()))
    for written, between in ((model[2].weight, 1), (model[2].weight, 2), (model[0].weight, 2), (model[2].bias, 2)):
        graph.execute(x)
        for k in (1, 2):
            if between == k:
                with gradcore.no_grad():
                    written.add_(1)
            if k == 1:
                loss.execute()
        if written is model[2].weight:
            with raises(gradcore.errors.ModifiedInPlace, "2.weight, float32[2, 4]", "from the first graph on"):
                slopes.execute()
        else:
            # No gradient reads it.
            slopes.execute()
    graph.execute(x), loss.execute()
    out = (model(x) ** 2).sum()
    for g, p in zip(slopes.execute(), gradcore.autograd.grad(out, list(model.parameters())), strict=True):
        assert (g - p).abs().max().item() < 1e-4


def test_inputs_of_another_device_or_in_other_memory_than_traced_are_refused() -> None:
    graph = gradcore.trace(lambda x, y: x + y, (x := gradcore.ones(2), x))
    with raises(TraceError, "was traced on cpu, but input 0 is on meta"):
        graph.execute(*[gradcore.ones(2, device="meta")] * 2)
    with raises(TraceError, "with input 1 sharing another input's memory, but got separate ones: trace it again"):
        graph.execute(gradcore.ones(2), gradcore.ones(2))


def test_numbers_may_be_drawn_between_the_graphs_of_a_checkpoint() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    run = partial(checkpoint, model, use_reentrant=False)
    x = gradcore.arange(6.0).view(3, 2)
    graph = gradcore.trace(run, x)
    loss = gradcore.trace(lambda h: h.square().sum(), graph.outputs)
    slopes = gradcore.gradients(loss, wrt=[model[0].weight])
    for k in range(3):
        found = []
        norm = {name: b.clone() for name, b in model[1].named_buffers()}
        for chained in (False, True):
            gradcore.manual_seed(k)
            model[1].load_state_dict(norm, strict=False)
            h = graph.execute(x * k) if chained else run(x * k)
            between = gradcore.rand(3).tolist()
            total = loss.execute() if chained else h.square().sum()
            g, = slopes.execute() if chained else gradcore.autograd.grad(total, model[0].weight)
            found.append((between, total.item(), g.tolist(), [b.tolist() for b in model[1].buffers()], gradcore.rand(1).item()))
        assert found[0] == found[1]
