"""Programs whose memory was replaced hold none of it from the next trace on, unless a tensor still shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn


def new_memory(model: Any, optimizer: Any) -> None:
    for p in model.parameters():
        p.data = p.data.clone()


def other_dtype(model: Any, optimizer: Any) -> None:
    optimizer.state.clear()
    model.to(gradcore.float64 if model.weight.dtype == gradcore.float32 else gradcore.float32)


def loaded_state(model: Any, optimizer: Any) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("replace", [new_memory, other_dtype, loaded_state])
def test_memory_that_was_replaced_is_freed(replace: Callable[[Any, Any], None]) -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        model = nn.Linear(50, 50)
        optimizer = gradcore.optim.Adam(model.parameters())

        @wrap
        def train(x: Any, model: Any = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        @wrap
        def predict(x: Any, model: Any = model) -> Any:
            with gradcore.no_grad():
                return model(x).sum()

        before, live = gradcore.memory_allocated(), []
        for k in range(12):
            x = gradcore.ones(3, 50, dtype=model.weight.dtype)
            train(x)
            y = predict(x).item()
            del x
            live.append((gradcore.memory_allocated() - before, y))
            if k % 4 == 3:
                replace(model, optimizer)
        model.zero_grad()
        found.append(live)
        if wrap is gradcore.compile:
            assert len(train.programs) == 1 and train.explain().count("trace") <= 8
    assert found[0] == found[1]


def test_memory_that_takes_turns_keeps_its_programs() -> None:
    model = nn.Linear(4, 4)
    average = [gradcore.full(p.shape, 2.0) for p in model.parameters()]
    predict = gradcore.compile(lambda x: model(x).detach())
    x = gradcore.ones(1, 4)
    for _ in range(5):
        predict(x)
        for k, p in enumerate(model.parameters()):
            p.data, average[k] = average[k], p.data
    assert len(predict.traces) == 2 and len(predict.programs) == 2


def test_the_former_memory_of_a_leaf_that_is_given_is_freed() -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        p, live = nn.Parameter(gradcore.ones(100)), []
        f = wrap(lambda x: (x * 2).sum().detach())
        for k in range(6):
            p.data = gradcore.full((100,), float(k))
            value = [f(p).item() for _ in range(3)]
            live.append((gradcore.memory_allocated(), value))
        found.append([(nbytes - live[0][0], value) for nbytes, value in live])
    assert found[0] == found[1] and len(f.programs) == 1


def test_a_result_whose_gradient_has_run_holds_no_program() -> None:
    def live(wrap: Any) -> int:
        before = gradcore.memory_allocated()
        model, x = nn.Linear(50, 50), gradcore.ones(3, 50)
        forward = wrap(model.forward)
        losses = [forward(x).sum() for _ in range(3)]
        for loss in losses:
            loss.backward()
        new_memory(model, None)
        losses.append(forward(x).sum().detach())
        return gradcore.memory_allocated() - before

    assert live(gradcore.compile) == live(lambda f: f)


def test_state_that_a_checkpoint_has_replaced_is_freed_where_a_function_only_clears_gradients() -> None:
    model = nn.Linear(50, 50)
    optimizer = gradcore.optim.Adam(model.parameters())

    @gradcore.compile
    def gradients(x: Any) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()

    live = []
    for _ in range(4):
        for _ in range(3):
            gradients(gradcore.ones(3, 50))
            optimizer.step()
        live.append(gradcore.memory_allocated())
        optimizer.load_state_dict(optimizer.state_dict())
    # The first call finds no gradients.
    assert live == live[:1] * 4 and len(gradients.traces) == 2


def test_state_that_a_checkpoint_has_replaced_is_freed_where_the_first_call_has_no_gradients() -> None:
    model = nn.Linear(50, 50)
    optimizer = gradcore.optim.Adam(model.parameters())

    @gradcore.compile
    def train(x: Any) -> None:
        optimizer.step()
        optimizer.zero_grad()
        model(x).square().mean().backward()

    live = []
    for _ in range(2):
        for rows in (1, 2, 2, 2):
            train(gradcore.ones(rows, 50))
        live.append(gradcore.memory_allocated())
        optimizer.load_state_dict(optimizer.state_dict())
    assert live[0] == live[1]
