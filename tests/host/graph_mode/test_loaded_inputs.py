"""What a loaded program is given: inputs in one memory, in other layouts, and gradients that are too small; pack hooks."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import SpecError, TraceError
from gradcore.utils.checkpoint import checkpoint
from tests.conftest import raises


def saved(function: Any, path: Path, *inputs: Any) -> Path:
    compiled = gradcore.compile(function)
    for _ in range(2):
        compiled(*inputs)
    compiled.save(path / "f")
    return path / "f"


def test_inputs_in_one_memory_are_given_in_one_memory(tmp_path: Path) -> None:
    base = gradcore.ones(4)
    loaded = gradcore.load_program(saved(lambda x, y: x * 2 + y, tmp_path, base[:2], base[2:]))
    other = gradcore.tensor([1.0, 2.0, 3.0, 4.0])
    assert loaded(other[:2], other[2:]).tolist() == [5.0, 8.0]
    for second in (gradcore.ones(4)[2:], gradcore.ones(2).numpy()):
        with raises(SpecError, "input 1 must share the memory of an earlier input"):
            loaded(other[:2], second)


def test_inputs_in_one_memory_lie_as_far_from_each_other_as_in_the_traced_run(tmp_path: Path) -> None:
    base = gradcore.arange(8.0)
    loaded = gradcore.load_program(saved(lambda x, y: x * 2 + y, tmp_path, base[:4], base[2:6]))
    # Elsewhere in their memory, both.
    assert loaded(base[1:5], base[3:7]).tolist() == [5.0, 8.0, 11.0, 14.0]
    for first, second in ((base[:4], base[1:5]), (base[4:], base[2:6]), (base[:4], base[:4]), (base[::2], base[2:6])):
        with raises(SpecError, "input 1 must share the memory of an earlier input, as in the traced run: lie as far from it"):
            loaded(first, second)


def test_an_input_that_is_written_to_shares_no_memory_if_it_did_not(tmp_path: Path) -> None:
    loaded = gradcore.load_program(saved(lambda x, y: x.add_(1) * y, tmp_path, gradcore.ones(4), gradcore.ones(4)))
    base = gradcore.arange(8.0)
    assert loaded(base[:4], base[4:].clone()).tolist() == [4.0, 10.0, 18.0, 28.0]
    for second in (base[2:6], base[:4]):
        with raises(SpecError, "the program writes to input 0, which must not share the memory of another input"):
            loaded(base[:4], second)
    assert base.tolist() == [1, 2, 3, 4, 4, 5, 6, 7]


def test_one_tensor_given_twice_may_have_another_layout(tmp_path: Path) -> None:
    x = gradcore.ones(2, 2)
    loaded = gradcore.load_program(saved(lambda x, y: (x * 2 + y).clone(), tmp_path, x, x))
    other = gradcore.arange(4.0).reshape(2, 2).t()
    assert loaded(other, other).tolist() == [[0.0, 6.0], [3.0, 9.0]]


def test_an_input_of_another_layout_is_copied_on_the_programs_device(tmp_path: Path) -> None:
    path = saved(lambda x: x + 1, tmp_path, gradcore.ones(2, 3))
    loaded = gradcore.load_program(path, "meta")
    found = loaded(gradcore.ones(3, 2, device="meta").T)
    assert found.device.name == "meta" and found.shape == (2, 3)


def test_a_gradient_with_fewer_bytes_than_the_program_writes_is_refused(tmp_path: Path) -> None:
    w = nn.Parameter(gradcore.ones(4))

    def f(x: Any) -> Any:
        loss = (x * w).sum()
        loss.backward()
        return loss.detach()

    w.grad = gradcore.zeros(4)
    loaded = gradcore.load_program(saved(f, tmp_path, gradcore.ones(4)))
    (leaf,) = loaded.state.values()
    leaf.grad = gradcore.zeros(1).expand(4)
    with raises(TraceError, "has 4 bytes of memory, fewer than in the traced run"):
        loaded(gradcore.ones(4))


def test_a_gradient_of_another_layout_than_the_program_reads_is_refused(tmp_path: Path) -> None:
    w = nn.Parameter(gradcore.ones(2, 2))

    def f(x: Any) -> None:
        (x * w).sum().backward()

    w.grad = gradcore.zeros(2, 2)
    x = gradcore.arange(4.0).reshape(2, 2)
    loaded = gradcore.load_program(saved(f, tmp_path, x))
    (leaf,) = loaded.state.values()
    numbers = gradcore.arange(8.0).reshape(2, 2, 2)
    for gradient in (numbers[1], numbers[0].t(), numbers[0, :1].expand(2, 2)):
        leaf.grad = gradient
        with raises(TraceError, "in the traced run: give it a clone with that layout"):
            loaded(x)
    leaf.grad = numbers[0]
    loaded(x)
    assert leaf.grad.tolist() == [[0.0, 2.0], [4.0, 6.0]]


def training(path: Path, kind: str = "SGD", **options: Any) -> Any:
    """The loaded step of a model, which takes a tensor of 3 by 2."""
    model = nn.Linear(2, 1)
    optimizer = getattr(gradcore.optim, kind)(model.parameters(), lr=0.1, **options)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    return gradcore.load_program(saved(step, path, gradcore.ones(3, 2)))


@pytest.mark.parametrize("rate", [float("nan"), -1])
def test_a_learning_rate_is_no_negative_number(rate: float, tmp_path: Path) -> None:
    loaded = training(tmp_path)
    with pytest.raises(ValueError, match=f"Invalid learning rate: {rate}"):
        loaded.learning_rate = rate
    assert loaded.learning_rate == 0.1


@pytest.mark.parametrize(("kind", "given", "name", "value"), [
    ("SGD", {"momentum": 0.9}, "weight_decay", 0.1), ("SGD", {"momentum": 0.9}, "momentum", 0.0), ("SGD", {}, "momentum", 0.9),
    ("AdamW", {}, "eps", 1e-3), ("AdamW", {}, "betas", (0.9, 0.9)), ("RMSprop", {}, "alpha", 0.5)])
def test_an_option_that_is_part_of_the_program_cannot_be_changed(
        kind: str, given: dict[str, Any], name: str, value: Any, tmp_path: Path) -> None:
    loaded = training(tmp_path, kind, **given)
    group, x = loaded.param_groups[0], gradcore.ones(3, 2)
    before, weights = group[name], {k: v.tolist() for k, v in loaded.state.items()}
    # What a schedule adds is nobody's option.
    group["initial_lr"] = group["lr"] = 0.2
    group[name] = value
    with raises(TraceError, f"'{name}' of param_groups[0] is {value!r}, but {before!r} is part of the program"):
        loaded(x)
    assert {k: v.tolist() for k, v in loaded.state.items()} == weights
    group[name] = before
    loaded(x)
    assert {k: v.tolist() for k, v in loaded.state.items()} != weights


def test_a_program_without_an_optimizer_has_no_learning_rate(tmp_path: Path) -> None:
    loaded = gradcore.load_program(saved(lambda x: x + 1, tmp_path, gradcore.ones(2)))
    with pytest.raises(AttributeError, match="updates no parameters"):
        loaded.learning_rate  # noqa: B018
    with pytest.raises(AttributeError, match="updates no parameters"):
        loaded.learning_rate = 0.5


def test_the_rate_of_adafactor_is_part_of_the_program(tmp_path: Path) -> None:
    w = nn.Parameter(gradcore.ones(3))
    optimizer = gradcore.optim.Adafactor([w], lr=0.5)

    def step(x: Any) -> None:
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()

    loaded = gradcore.load_program(saved(step, tmp_path, gradcore.ones(3)))
    with raises(AttributeError, "or by ops with the rate of the trace, as Adafactor does"):
        loaded.learning_rate = 0.1


def test_a_tensor_of_the_state_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    w = nn.Parameter(gradcore.ones(2, 2))
    x = gradcore.ones(2)
    loaded = gradcore.load_program(saved(lambda x: w @ x, tmp_path, x))
    with gradcore.no_grad():
        loaded.state["w"].copy_(gradcore.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert loaded(x).tolist() == [3, 7]
    own = loaded.state["w"]
    was = own.data
    for other in gradcore.zeros(2, 2), was.t():
        own.data = other
        with raises(TraceError, "state['w'] was replaced or given other memory, which the program does not read"):
            loaded(x)
    own.data = was
    loaded.state["w"] = gradcore.zeros(2, 2)
    with raises(TraceError, "state['w'] was replaced or given other memory", "write to it in place"):
        loaded(x)
    loaded.state["w"] = own
    assert loaded(x).tolist() == [3, 7]
    assert copy.deepcopy(loaded.state)["w"].tolist() == own.tolist()


@pytest.mark.parametrize("packing", ["checkpoint", "save_on_cpu"])
def test_a_step_with_pack_hooks_is_loaded(packing: str, tmp_path: Path) -> None:
    gradcore.manual_seed(0)
    first, middle, last = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU()), nn.Linear(8, 2)
    parameters = [*first.parameters(), *middle.parameters(), *last.parameters()]
    optimizer = gradcore.optim.SGD(parameters, lr=0.1)

    @gradcore.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        with gradcore.autograd.graph.save_on_cpu() if packing == "save_on_cpu" else contextlib.nullcontext():
            h = first(x)
            loss = last(checkpoint(middle, h) if packing == "checkpoint" else middle(h)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x = gradcore.ones(3, 4)
    for _ in range(3):
        step(x)
    step.save(tmp_path / "step")
    loaded = gradcore.load_program(tmp_path / "step")
    assert [loaded(x).item() for _ in range(3)] == [step(x).item() for _ in range(3)]


@pytest.mark.parametrize("drops", [False, True])
def test_a_forward_part_reads_the_gradients_that_parameters_have(drops: bool, tmp_path: Path) -> None:
    weight, other = gradcore.ones(2, requires_grad=True), gradcore.full((2,), 2.0)

    def function(x: Any) -> Any:
        y = (x * other * weight * weight.grad).sum()
        if drops:
            weight.grad = None
        return y

    compiled = gradcore.compile(function)
    for _ in range(2):
        weight.grad = gradcore.ones(2)
        compiled(gradcore.ones(2))
    assert compiled.programs[0].split is not None
    compiled.save(tmp_path / "f")
    loaded = gradcore.load_program(tmp_path / "f")
    (leaf,) = (t for t in loaded.state.values() if t.requires_grad)
    leaf.grad = gradcore.tensor([3.0, 5.0])
    assert loaded(gradcore.ones(2)).item() == 16 and (leaf.grad is None) is drops


def test_a_gradient_that_would_have_been_added_to_is_refused(tmp_path: Path) -> None:
    w = nn.Parameter(gradcore.ones(3))

    @gradcore.compile
    def step(x: Any) -> Any:
        loss = (w * x).square().sum()
        loss.backward()
        w.data -= 0.1 * w.grad
        w.grad = None
        return loss.detach()

    x, path = gradcore.ones(3), tmp_path / "step.safetensors"
    for _ in range(2):
        step(x)
    step.save(path)
    loaded = gradcore.load_program(path)
    assert loaded(x).item() == step(x).item()
    loaded.state["w"].grad = gradcore.ones(3)
    with pytest.raises(TraceError, match="the gradient of w must be None when the program begins"):
        loaded(x)


def test_it_is_not_run_in_a_traced_function(tmp_path: Path) -> None:
    """Its log would be taken for the function's; so would those of a graph and of a step."""
    x = gradcore.ones(3)
    loaded = gradcore.load_program(saved(lambda x: x * 2, tmp_path, x))
    graph = gradcore.trace(lambda x: x * 2, (x,))

    def stepped(x: Any) -> Any:
        with gradcore.step():
            return x * 2

    for run in (loaded, graph.execute, stepped):
        with raises(TraceError, "or another recording, or ran a graph or a loaded program: do that around the call"):
            gradcore.compile(lambda x, run=run: run(x) + 1)(x)  # type: ignore[misc]
        assert run(x).tolist() == [2] * 3


def test_an_input_that_was_expanded_is_expanded(tmp_path: Path) -> None:
    loaded = gradcore.load_program(saved(lambda x: x * 2, tmp_path, gradcore.ones(2, 1).expand(2, 3)))
    for column in (gradcore.tensor([[1.0], [2.0]]), gradcore.arange(3.0)[1:, None], gradcore.arange(4.0)[1:4:1][:2, None]):
        assert loaded(column.expand(2, 3)).tolist() == [[2.0] * 3, [4.0] * 3]
    with raises(SpecError, "input 0 must have one place for several elements", "but is float32[2, 3]: expand it"):
        loaded(gradcore.ones(2, 3))


def test_an_input_on_another_device_is_refused(tmp_path: Path) -> None:
    loaded = gradcore.load_program(saved(lambda x: x * 2, tmp_path, gradcore.ones(2)))
    assert repr(loaded) == "<program of 1 instruction on cpu>"
    with raises(SpecError, "input 0 is on meta, and the program on cpu"):
        loaded(gradcore.ones(2, device="meta"))


@pytest.mark.parametrize("lent", [True, False])
def test_a_copy_of_an_input_has_the_bytes_that_the_program_uses(lent: bool, tmp_path: Path) -> None:
    values = np.ones((1000, 100), np.float32)
    batch = (gradcore.from_numpy(values) if lent else gradcore.tensor(values))[500:502]
    loaded = gradcore.load_program(saved(lambda x: (x[1:] * 2, x.t()[1:]), tmp_path, batch))
    given = gradcore.arange(200.0).view(2, 100)
    with gradcore.step(device="cpu") as step:
        before = gradcore.memory_allocated("cpu")
        doubled, turned = loaded(given)
    assert step.report.peak.allocated < before + 4096
    assert doubled.tolist() == (given[1:] * 2).tolist() and turned.tolist() == given.t()[1:].tolist()


def test_an_input_that_nothing_uses_is_copied_into_the_memory_that_it_shares_with_another(tmp_path: Path) -> None:
    base = gradcore.ones(1000)
    loaded = gradcore.load_program(saved(lambda x, y: y * 2, tmp_path, base[900:904], base[100:104]))
    given = gradcore.ones(804)
    others = [gradcore.zeros(128) for _ in range(32)]
    del others[8]
    assert loaded(given[800:], given[:4]).tolist() == [2.0] * 4
    assert not any(x.any() for x in others)
