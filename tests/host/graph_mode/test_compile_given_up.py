"""What a program was traced with, and the user has given up: it goes, and the program with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn

Wrap = Callable[[Any], Any]


class Held:
    """The least that a trainer needs: it refers to a model and an optimizer."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
        self.optimizer = gradcore.optim.Adam(self.model.parameters())


def update(model: Any, optimizer: Any, x: Any) -> Any:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def methods(wrap: Wrap) -> tuple[Callable[[], Any], Any]:
    class Trainer(Held):
        @wrap
        def step(self, x: Any) -> Any:
            return update(self.model, self.optimizer, x)

    def trainer() -> Any:
        return Trainer().step

    return trainer, Trainer.step


def arguments(wrap: Wrap) -> tuple[Callable[[], Any], Any]:
    step = wrap(update)

    def trainer() -> Any:
        held = Held()
        return lambda x: step(held.model, held.optimizer, x)

    return trainer, step


def objects(wrap: Wrap) -> tuple[Callable[[], Any], Any]:
    step = wrap(lambda held, x, *, scale: update(held.model, held.optimizer, x * scale))

    def trainer() -> Any:
        held = Held()
        return lambda x: step(held, x, scale=2.0)

    return trainer, step


def closures(wrap: Wrap) -> tuple[Callable[[], Any], Any]:
    held: Any = None

    def run(x: Any) -> Any:
        return update(held.model, held.optimizer, x)

    step = wrap(run)

    def trainer() -> Any:
        nonlocal held
        held = Held()
        return step

    return trainer, step


@pytest.mark.parametrize("kind", [methods, arguments, objects, closures])
def test_trainers_that_are_given_up_are_freed(kind: Callable[[Wrap], tuple[Callable[[], Any], Any]], uncollected: None) -> None:
    found, x = [], gradcore.ones(4, 32)
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        trainer, step = kind(wrap)
        before, live = gradcore.memory_allocated(), []
        for _ in range(10):
            run = trainer()
            live.append(([run(x).item() for _ in range(4)], gradcore.memory_allocated() - before))
            if wrap is gradcore.compile:
                assert len(step.programs) == 1
            del run
        found.append(live)
        del trainer
    assert found[0] == found[1]
    assert len(step.programs) == (kind is closures)
    assert len(step.traces) == 20


def test_an_optimizer_that_another_replaced_is_freed(uncollected: None) -> None:
    x = gradcore.ones(4, 32)

    def phases(wrap: Wrap) -> tuple[list[int], Any]:
        model = nn.Linear(32, 32)
        optimizer: Any = None
        step = wrap(lambda x: update(model, optimizer, x))
        before, live = gradcore.memory_allocated(), []
        for make in (gradcore.optim.Adam, gradcore.optim.SGD, gradcore.optim.Adam):
            optimizer = make(model.parameters())
            for _ in range(4):
                step(x)
            live.append(gradcore.memory_allocated() - before)
        return live, step

    eager, step = phases(lambda f: f)[0], phases(gradcore.compile)
    assert eager == step[0]
    assert len(step[1].programs) == 1
    assert sum(t.startswith("the variable optimizer of <lambda>'s closure is a different object")
               for t in step[1].traces) == 2


def test_a_model_that_goes_takes_its_program_along_at_once(uncollected: None) -> None:
    predict = gradcore.compile(lambda model, x: model(x).detach())
    x, before = gradcore.ones(4, 32), gradcore.memory_allocated()
    for _ in range(3):
        model = nn.Linear(32, 32)
        for _ in range(3):
            assert predict(model, x).tolist() == model(x).tolist()
        assert len(predict.programs) == 1
        del model
        assert not predict.programs and gradcore.memory_allocated() == before


def test_an_object_with_the_id_of_one_that_went_is_another() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

    multiply = gradcore.compile(lambda x, scale: x * scale.by, max_programs=100)
    x, ids = gradcore.ones(2), []
    for k in range(20):
        scale = Scale(float(k))
        ids.append(id(scale))
        assert multiply(x, scale).tolist() == multiply(x, scale).tolist() == [k, k]
        del scale
    assert len({*ids}) < 20 and not multiply.programs
    assert all("another object" in reason for reason in multiply.traces[1:])


def test_a_leaf_that_goes_takes_its_program_along() -> None:
    f = gradcore.compile(lambda w, x: (w * x).sum().detach(), max_programs=100)
    x, before = gradcore.ones(100), gradcore.memory_allocated()
    for k in range(10):
        w = gradcore.full((100,), float(k)).requires_grad_()
        assert [f(w, x).item() for _ in range(3)] == [100.0 * k] * 3
        del w
        assert not f.programs and gradcore.memory_allocated() == before
    assert all("x = x.detach().requires_grad_()" in reason for reason in f.traces[1:])


def test_a_program_that_was_saved_knows_its_optimizer_still(tmp_path: Any) -> None:
    held, x = Held(), gradcore.ones(4, 32)
    step = gradcore.compile(update)
    for _ in range(3):
        step(held.model, held.optimizer, x)
    step.save(tmp_path / "step.program")
    loaded = gradcore.load_program(tmp_path / "step.program")
    for _ in range(3):
        assert loaded(x).item() == step(held.model, held.optimizer, x).item()
