"""Compiled functions inside traces, records and steps, and vice versa."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.errors import TraceError
from gradcore.program.graphs import again
from tests.conftest import raises
from tests.host.graph_mode.test_compile import data, net, same, same_state, step_of


def test_a_compiled_function_inside_another_is_part_of_it() -> None:
    inner = gradcore.compile(lambda x: x * 2)
    outer = gradcore.compile(lambda x: inner(x) + 1)
    x = gradcore.ones(2)
    assert inner(x).tolist() == inner(x).tolist() == [2, 2]
    for _ in range(3):
        assert outer(x).tolist() == [3, 3]
    assert len(outer.programs[0].instructions) == 2 and len(inner.traces) == 1


def test_a_compiled_module_inside_a_compiled_step() -> None:
    model, other = net(), net()
    compiled = gradcore.compile(other)
    steps = (step_of(model, gradcore.optim.SGD(model.parameters(), lr=0.1)),
             gradcore.compile(step_of(compiled, gradcore.optim.SGD(other.parameters(), lr=0.1))))
    for k in range(5):
        losses = []
        for step in steps:
            gradcore.manual_seed(k)
            losses.append(step(*data(k)))
        assert same(*losses) and same_state(model, other)


def test_compiled_functions_inside_graphs_and_records() -> None:
    f = gradcore.compile(lambda x: x * 2)
    x = gradcore.ones(2)
    f(x), f(x)
    graph = gradcore.trace(lambda x: f(x) + 1, x)
    assert graph.execute(gradcore.full((2,), 4.0)).tolist() == [9, 9]
    with gradcore.record():
        y = f(x) + 1
    x.fill_(3)
    assert y.forward().tolist() == [7, 7]
    g = gradcore.compile(lambda x: x * 3)
    assert g(x).tolist() == [9, 9] and len(g.programs) == 1


def test_a_step_inside_a_traced_function_is_refused() -> None:
    layer = nn.Linear(2, 2)

    def f(x: Any) -> Any:
        with gradcore.step():
            return layer(x)

    with raises(TraceError, "a traced function opened and closed a step (gradcore.step) or another recording, or ran a graph"):
        gradcore.compile(f)(gradcore.ones(1, 2))
    assert gradcore.compile(layer)(gradcore.ones(1, 2)).shape == (1, 2)


def test_the_update_of_a_step_that_was_opened_inside_stays() -> None:
    layer = nn.Linear(2, 2)
    optimizer = gradcore.optim.SGD(layer.parameters(), lr=0.5)

    @gradcore.compile
    def f(x: Any) -> None:
        with gradcore.step():
            layer(x).sum().backward()
            optimizer.step()

    before = layer.bias.tolist()
    for k in range(1, 3):
        optimizer.zero_grad()
        with raises(TraceError, "or a loaded program: do that around the call"):
            f(gradcore.ones(1, 2))
        assert layer.bias.tolist() == pytest.approx([b - 0.5 * k for b in before])


def test_several_updates_in_one_call_count_their_steps() -> None:
    models, optimizers, runs = [], [], []
    for wrap in (lambda f: f, gradcore.compile):
        model = net()
        optimizer = gradcore.optim.NAdam(model.parameters(), lr=0.05)
        step = step_of(model, optimizer)
        models.append(model)
        optimizers.append(optimizer)
        runs.append(wrap(lambda x, y, step=step: [step(x, y) for _ in range(3)]))
    for k in range(4):
        losses = []
        for run in runs:
            gradcore.manual_seed(k)
            losses.append(run(*data(k)))
        assert all(map(same, *losses)) and same_state(*models)
    assert len(runs[1].traces) == 2 and {s["step"] for s in optimizers[1].state.values()} == {12}


def test_a_compiled_function_with_a_program_is_recorded_op_by_op() -> None:
    w, x = gradcore.tensor([2.0, 3.0], requires_grad=True), gradcore.ones(2)
    inner = gradcore.compile(lambda x: x * w)
    inner(x)
    inner(x)
    with gradcore.record():
        y = inner(x).sum()
    x.copy_(gradcore.tensor([5.0, 7.0]))
    y.forward().backward()
    assert y.item() == 31 and w.grad.tolist() == [5.0, 7.0]


def test_a_recording_that_cannot_begin_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(device: Any) -> None:
        raise gradcore.OutOfMemory("out of memory", asked=16)

    double = gradcore.compile(lambda x: x * 2)
    with monkeypatch.context() as patched:
        patched.setattr(again, "default_generator", full)
        with pytest.raises(gradcore.OutOfMemory), gradcore.record():
            pass
    double(gradcore.ones(3))
    assert len(double.programs) == 1
    del double
