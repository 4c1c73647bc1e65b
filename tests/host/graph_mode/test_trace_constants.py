"""Tables that the library computes from shapes only, and tensors of Python numbers, are the same in every run, so a trace
treats them as constants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import TraceError
from tests.conftest import raises
from tests.rows import parts

F = nn.functional


def image(seed: int, *shape: int) -> Any:
    return gradcore.tensor(np.random.default_rng(seed).standard_normal(shape or (2, 3, 6, 5)).astype(np.float32))


def written(x: Any) -> Any:
    y = x * 2
    y[[1, 0], 2] = 0
    y[0, [0, -1]] = [[[1.5]], [[2.5]]]
    y[..., 1:3, 0] = [1, 2]
    y[0, 0, 0, [True, False, False, True, True]] = -1.0
    return y


def added_up(x: Any) -> Any:
    total = gradcore.tensor(0.5)
    for k in range(3):
        total += (x[:, k] * k).sum()
    return total


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "bilinear": lambda x: F.interpolate(x, size=(9, 7), mode="bilinear"),
    "corners": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
    "nearest": lambda x: F.interpolate(x, size=(7, 8)),
    "reflect": lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 2, 1, 0), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 2, 0, 3), mode="circular"),
    "adaptive": lambda x: F.adaptive_max_pool2d(x, (4, 3)),
    "positions": lambda x: x[:, [2, 0], 1:] * x[[[1], [0]], [0, 1], 2:3],
    "a list of bools": lambda x: x[[True, False], :, [1, 4]],
    "written": lambda x: written(x),
    "of a number": lambda x: x * gradcore.tensor(1.5) + x.new_tensor([[2]]) - gradcore.as_tensor((1.0, 0.0, 3.0, -1.0, 2.0)),
    "at a tensor of numbers": lambda x: x[:, gradcore.tensor([2, 0])],
    "added up": lambda x: added_up(x),
    "adaptive with indices": lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True)[1] * 1.5,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_replay_is_the_eager_run_forward_and_backward(name: str) -> None:
    f = FUNCTIONS[name]
    weight = image(9, 3, 1, 1).requires_grad_()

    def step(x: Any) -> Any:
        weight.grad = None
        y = f(x * weight)
        loss = (y * y).sum() if y.requires_grad else y.sum() + weight.sum()
        loss.backward()
        return loss

    compiled = gradcore.compile(step)
    for k in range(4):
        x = image(k)
        found = compiled(x).item(), weight.grad.tolist()
        assert found == (step(x).item(), weight.grad.tolist())
    assert len(compiled.programs) == 2, compiled.explain()


def test_what_a_trace_holds_goes_with_it() -> None:
    device = gradcore.device("cpu")
    before = device.ledger.allocated
    compiled = gradcore.compile(FUNCTIONS["reflect"])
    for k in range(3):
        compiled(image(k))
    # Two tables of positions.
    assert device.ledger.allocated == before + 2 * 512
    del compiled
    assert device.ledger.allocated == before


def test_a_saved_program_has_its_tables(tmp_path: Path) -> None:
    compiled = gradcore.compile(FUNCTIONS["reflect"])
    for k in range(2):
        compiled(image(k))
    compiled.save(tmp_path / "program")
    found = gradcore.load_program(tmp_path / "program")(image(5))
    assert parts(found)[0].tolist() == FUNCTIONS["reflect"](image(5)).tolist()


def test_a_recorded_graph_runs_again_with_its_tables() -> None:
    a = image(0)
    with gradcore.record():
        y = FUNCTIONS["bilinear"](a)
    a.copy_(image(1))
    y.forward()
    assert y.tolist() == FUNCTIONS["bilinear"](image(1)).tolist()


def test_a_chain_of_graphs_keeps_the_tables_of_its_parts() -> None:
    first = gradcore.trace(FUNCTIONS["reflect"], image(0))
    second = gradcore.trace(lambda y: (FUNCTIONS["bilinear"](y) * 2).sum(), first.outputs)
    for k in range(3):
        first.execute(image(k))
        found = second.execute()
        assert found.item() == (FUNCTIONS["bilinear"](FUNCTIONS["reflect"](image(k))) * 2).sum().item()


def test_a_convolution_with_reflected_borders_trains_compiled() -> None:
    gradcore.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Upsample(scale_factor=1.5))
    optimizer = gradcore.optim.Adam(model.parameters())

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled = gradcore.compile(step)
    losses = [compiled(image(k)).item() for k in range(6)]
    gradcore.manual_seed(0)
    assert len(compiled.programs) == 1 and len(set(losses)) == 6


def test_another_list_is_another_program() -> None:
    x, here = gradcore.arange(4), [0, 1]
    compiled = gradcore.compile(lambda x, given: (x[given], x[here]))
    for change in (lambda: None, lambda: here.__setitem__(0, 3), lambda: here.append(2)):
        change()
        for given in ([3], [2, 0], [3]):
            assert [y.tolist() for y in compiled(x, given)] == [given, here]


@pytest.mark.parametrize("index", [np.array([1, 0]), [np.int64(1), 0], np.array([True, False])], ids=repr)
def test_positions_out_of_an_array_are_still_refused(index: Any) -> None:
    with raises(TraceError, "makes a tensor from host data"):
        gradcore.compile(lambda x: x[index])(image(0))


def test_a_tensor_of_numbers_is_another_in_each_call() -> None:
    numbers = [1.0, 2.0]

    def f(x: Any) -> Any:
        w = gradcore.tensor(numbers, requires_grad=True)
        return gradcore.tensor([3, 4]), gradcore.autograd.grad((x * w * w).sum(), w)[0]

    compiled, held = gradcore.compile(f), []
    for k in range(6):
        numbers[0] = float(k // 3)
        made, gradient = compiled(gradcore.ones(2))
        held.append(made)
        assert made.tolist() == [3, 4] and gradient.tolist() == [2.0 * (k // 3), 4.0]
        made.zero_()
    assert len({t.data_ptr() for t in held}) == 6 and len(compiled.programs) == 2
    assert "numbers" in compiled.traces[1] and "[1.0, 2.0] and was [0.0, 2.0]" in compiled.traces[1]


@pytest.mark.parametrize("data", [np.float32(2), [np.float32(2)], np.ones(2), [[[[[1.0]]]]], [0.0] * 10_001],
                         ids=["scalar", "scalars", "array", "deep", "long"])
def test_what_no_guard_compares_is_refused(data: Any) -> None:
    with raises(TraceError, "makes a tensor from host data"):
        gradcore.compile(lambda x: x.sum() + gradcore.tensor(data))(image(0))


LONG: dict[str, Callable[[], Any]] = {
    "list": lambda: list(range(10_001)), "dict": lambda: {k: k for k in range(10_001)}, "array": lambda: np.arange(10_001),
    "lists": lambda: [[k] for k in range(10_001)], "objects": lambda: [SimpleNamespace(q=[k]) for k in range(1_001)]}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("given", [False, True], ids=["global", "argument"])
def test_numbers_out_of_what_is_too_long_for_guards_are_those_of_each_call(kind: str, given: bool) -> None:
    data = LONG[kind]()

    def first(rows: Any) -> float:
        found = rows[0]
        return found.q[0] if kind == "objects" else found[0] if kind == "lists" else int(found)

    def f(x: Any, rows: Any) -> Any:
        return gradcore.tensor([first(rows)]) * x

    def g(x: Any) -> Any:
        return gradcore.tensor([first(data)]) * x

    compiled = gradcore.compile(f if given else g)
    for k in range(3):
        if kind in ("objects", "lists"):
            (data[0].q if kind == "objects" else data[0])[0] = k
        else:
            data[0] = k
        assert compiled(gradcore.ones(1), *([data] if given else [])).tolist() == [k]
    # Lists and dicts that are arguments are compared item by item.
    refused = "has too many items to be compared" in compiled.explain()
    assert refused == (not given or kind in ("array", "objects")), compiled.explain()


def test_a_long_list_is_no_obstacle_to_other_functions() -> None:
    data = LONG["list"]()
    compiled = gradcore.compile(lambda x: x * len(data))
    for _ in range(2):
        compiled(gradcore.ones(1))
    assert len(compiled.programs) == 1
