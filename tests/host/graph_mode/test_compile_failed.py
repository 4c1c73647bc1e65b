"""After a replay that raises, as after an eager step that does, no gradient counts that nobody has."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore import nn


@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_replay_that_raises_leaves_no_gradient_behind(first: bool, logged: bool) -> None:
    good, bad = gradcore.zeros(4, dtype=gradcore.int64), gradcore.full((4,), 99)
    x = gradcore.ones(4, 64)

    def live(wrap: Any) -> tuple[list[tuple[int, int]], list[float], Any]:
        """Bytes behind those of before, after good steps, the bad one, and others."""
        gradcore.manual_seed(0)
        model = nn.Linear(64, 8)
        optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        @wrap
        def step(x: Any, y: Any) -> Any:
            if first:
                optimizer.step()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if not first:
                optimizer.step()
            return loss

        def run(y: Any) -> float:
            if not logged:
                return step(x, y).item()
            with gradcore.step():
                return step(x, y).item()

        def bytes_live() -> tuple[int, int]:
            return gradcore.memory_requested() - before[0], gradcore.memory_allocated() - before[1]

        before = gradcore.memory_requested(), gradcore.memory_allocated()
        found, losses = [], []
        for _ in range(2):
            losses += [run(good) for _ in range(4)]
            found.append(bytes_live())
            with pytest.raises(IndexError, match="Target 99"):
                run(bad)
            assert [p.grad for p in model.parameters()] == [None, None]
            found.append(bytes_live())
            optimizer.zero_grad()
            found.append(bytes_live())
        losses.append(run(good))
        found.append(bytes_live())
        return found, losses, step

    eager, compiled = live(lambda f: f), live(gradcore.compile)
    assert eager[:2] == compiled[:2]
    assert compiled[2].programs


def test_nor_that_of_a_backward_before_what_raises() -> None:
    model, x = nn.Linear(4, 3), gradcore.ones(2, 4)

    @gradcore.compile
    def step(first: Any, second: Any) -> None:
        model.zero_grad()
        for y in (first, second):
            nn.functional.cross_entropy(model(x), y).backward()

    good, bad = gradcore.zeros(2, dtype=gradcore.int64), gradcore.full((2,), 99)
    for _ in range(3):
        step(good, good.clone())
    with pytest.raises(IndexError, match="Target 99"):
        step(good, bad)
    assert [p.grad for p in model.parameters()] == [None, None]


@pytest.mark.parametrize("name", ["Adam", "NAdam", "ASGD", "SGD"])
def test_an_update_before_what_raises_is_counted(name: str) -> None:
    good, bad = gradcore.zeros(4, dtype=gradcore.int64), gradcore.full((4,), 99)
    x = gradcore.ones(4, 3)

    def states(wrap: Any) -> list[Any]:
        gradcore.manual_seed(0)
        models = nn.Linear(3, 8), nn.Linear(3, 8)
        before, after = (getattr(gradcore.optim, name)(model.parameters(), lr=0.1) for model in models)

        @wrap
        def step(y: Any) -> Any:
            before.step()
            before.zero_grad()
            after.zero_grad()
            loss = nn.functional.cross_entropy(models[0](x) + models[1](x), y)
            loss.backward()
            after.step()
            return loss

        for _ in range(4):
            step(good)
        traced = [*getattr(step, "traces", [])]
        with pytest.raises(IndexError, match="Target 99"):
            step(bad)
        assert wrap is not gradcore.compile or (step.programs and step.traces == traced)
        parameters = [p for model in models for p in model.parameters()]
        kept = [value for o in (before, after) for state in o.state.values() for value in state.values()]
        return [v.tolist() if isinstance(v, gradcore.Tensor) else v for v in [*parameters, *kept]]

    assert states(gradcore.compile) == states(lambda f: f)
