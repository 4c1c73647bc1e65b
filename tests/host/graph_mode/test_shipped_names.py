"""What the tensors and the optimizers of a saved program are called, and which of them a file cannot have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn, optim
from gradcore.errors import TraceError
from tests.conftest import raises


def saved(compiled: Any, path: Path, *inputs: Any) -> Any:
    """The program of a compiled function from a file, after two calls."""
    for _ in range(2):
        compiled(*inputs)
    compiled.save(path / "f")
    return gradcore.load_program(path / "f")


def test_tensors_have_the_names_of_the_places_that_the_code_reads(tmp_path: Path) -> None:
    weight = gradcore.full((2,), 2.0, requires_grad=True)
    box, items = SimpleNamespace(scale=gradcore.full((2,), 3.0)), [gradcore.full((2,), 5.0)]
    table = {"k": gradcore.full((2,), 7.0)}
    eleven, none = gradcore.full((2,), 11.0), ()

    @gradcore.compile
    def f(x: Any, shift: Any = eleven) -> Any:
        return x * weight * box.scale * items[0] * table["k"] + shift + len(none)

    with gradcore.no_grad():
        loaded = saved(f, tmp_path, gradcore.ones(2))
    assert {name: t.tolist()[0] for name, t in loaded.state.items()} == {
        "weight": 2.0, "scale": 3.0, "items[0]": 5.0, "table['k']": 7.0, "defaults[0]": 11.0}


def test_modules_name_their_own_by_the_longest_path_and_the_rest_by_its_role(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), nn.Dropout(0.5))
    optimizer = optim.SGD(model.parameters(), momentum=0.5)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    loaded = saved(gradcore.compile(step), tmp_path, gradcore.ones(4, 3))
    parameters = ["0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias"]
    buffers = [f"0.1.{name}" for name, _ in model[0][1].named_buffers()]
    assert set(loaded.state) - {*buffers} == {*parameters, *[f"{p}.momentum_buffer" for p in parameters], "generator"}
    assert set(loaded.state) & {*buffers} >= {"0.1.running_mean", "0.1.running_var"}


def test_every_group_of_every_optimizer_keeps_its_own_rate(tmp_path: Path) -> None:
    a, b, c = (nn.Parameter(gradcore.ones(1)) for _ in range(3))
    one, two = optim.SGD([{"params": [a], "lr": 0.5}, {"params": [b], "lr": 0.25}]), optim.SGD([c], lr=0.125)

    def step() -> Any:
        a.grad = b.grad = c.grad = None
        (a + b + c).sum().backward()
        for optimizer in (one, two, one):
            optimizer.step()
        return (a + b).detach(), (c * 1).detach()

    loaded = saved(gradcore.compile(step), tmp_path)
    assert [(group["lr"], len(group["params"])) for group in loaded.param_groups] == [(0.5, 1), (0.25, 1), (0.125, 1)]
    # After two steps each gradient is 1 still, and the first optimizer updates twice in a step.
    first, second = loaded()
    assert first.item() == 2 - 3 * 2 * (0.5 + 0.25) and second.item() == 1 - 3 * 0.125
    loaded.param_groups[1]["lr"] = 0.0
    assert loaded()[0].item() == first.item() - 2 * 0.5


def test_a_gradient_that_was_there_before_comes_back_as_a_result(tmp_path: Path) -> None:
    w = nn.Parameter(gradcore.ones(2))

    @gradcore.compile
    def f(x: Any) -> Any:
        (x * w).sum().backward()
        return w.grad

    w.grad = gradcore.zeros(2)
    loaded = saved(f, tmp_path, gradcore.ones(2))
    (kept,) = loaded.state.values()
    kept.grad = gradcore.tensor([10.0, 20.0])
    assert loaded(gradcore.tensor([1.0, 2.0])).tolist() == [11.0, 22.0]


def test_a_gradient_for_an_argument_is_saved_if_the_function_takes_it(tmp_path: Path) -> None:
    @gradcore.compile
    def f(x: Any) -> Any:
        leaf = x.detach().requires_grad_()
        (leaf * leaf).sum().backward()
        return leaf.grad

    for _ in range(2):
        assert f(gradcore.ones(2)).tolist() == [2.0, 2.0]
    f.save(tmp_path / "f")
    assert gradcore.load_program(tmp_path / "f")(gradcore.tensor([3.0, 4.0])).tolist() == [6.0, 8.0]

    @gradcore.compile
    def left_to_the_caller(x: Any) -> Any:
        leaf = x.detach().requires_grad_()
        return leaf * leaf

    for _ in range(2):
        assert left_to_the_caller(gradcore.ones(2)).tolist() == [1.0, 1.0]
    with raises(TraceError, "float32[2], is an argument of the traced function"):
        left_to_the_caller.save(tmp_path / "left")
    with pytest.raises(FileNotFoundError):
        gradcore.load_program(tmp_path / "left")
