"""``gradcore.compile``: what may be compiled, when it is traced again, and that a replay equals the eager run bit for bit."""

from __future__ import annotations

import collections
import copy
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from tests.conftest import raises

F = nn.functional


def net() -> Any:
    gradcore.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def data(seed: int, batch: int = 5) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    return (gradcore.tensor(generator.standard_normal((batch, 6)).astype(np.float32)),
            gradcore.tensor(generator.integers(0, 3, batch)))


def step_of(model: Any, optimizer: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def pair(kind: str = "Adam", **settings: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
    """An eager and a compiled step on two equal networks: (step, model, optimizer) of each."""
    made: list[Any] = []
    for wrap in (lambda f: f, gradcore.compile):
        model = net()
        optimizer = getattr(gradcore.optim, kind)(model.parameters(), lr=0.05, **settings)
        made += [wrap(step_of(model, optimizer)), model, optimizer]
    return tuple(made)  # type: ignore[return-value]


def same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a.detach().numpy(), b.detach().numpy(), equal_nan=True))


def same_state(model: Any, other: Any) -> bool:
    return all(same(p, q) and ((p.grad is None) == (q.grad is None)) and (p.grad is None or same(p.grad, q.grad))
               for p, q in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("kind, settings", [
    ("SGD", {}), ("SGD", {"momentum": 0.9}), ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}), ("Adam", {}),
    ("AdamW", {"weight_decay": 0.1}), ("RMSprop", {"centered": True}), ("Adagrad", {"lr_decay": 0.1}), ("Adadelta", {}),
    ("NAdam", {}), ("RAdam", {}), ("Lion", {}), ("Adamax", {}), ("Rprop", {}), ("ASGD", {"t0": 2}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1})])
def test_a_training_step_is_replayed_bit_for_bit(kind: str, settings: Any) -> None:
    eager, model, optimizer, compiled, other, second = pair(kind, **settings)
    schedules = [gradcore.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (optimizer, second)]
    for k in range(8):
        losses = []
        for run, schedule in zip((eager, compiled), schedules, strict=True):
            gradcore.manual_seed(k)
            losses.append(run(*data(k)))
            schedule.step()
        assert same(*losses) and same_state(model, other)
    assert len(compiled.programs) == len(compiled.plans) <= 2 and len(compiled.traces) == 2
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        for name, value in optimizer.state[p].items():
            found = second.state[q][name]
            assert same(value, found) if hasattr(value, "storage") else value == found, name


def test_the_states_of_random_numbers_move_on_as_in_an_eager_run() -> None:
    eager, _, _, compiled, _, _ = pair()
    gradcore.manual_seed(0)
    first = [eager(*data(k)).item() for k in range(5)]
    gradcore.manual_seed(0)
    assert [compiled(*data(k)).item() for k in range(5)] == first


def test_another_shape_dtype_or_structure_is_another_program() -> None:
    @gradcore.compile
    def f(x: Any, scale: Any = 1.0, **others: Any) -> Any:
        return {"sum": (x * scale).sum(), "rest": [v + x for v in others.values()]}

    a, b, c = gradcore.ones(3), gradcore.ones(2, 2), gradcore.ones(3, dtype=np.float64)
    for _ in range(3):
        for x in (a, b, c):
            found = f(x, 2.0, z=x)
            assert found["sum"].item() == 2 * x.numel() and found["rest"][0].tolist() == (x + x).tolist()
    assert len(f.programs) == len(f.traces) == 3
    assert f(a, 3.0)["sum"].item() == 9 and f(a, 3)["sum"].item() == 9
    assert len(f.traces) == 5


def test_results_come_back_in_the_structure_that_they_had() -> None:
    Point = collections.namedtuple("Point", "x y")

    @gradcore.compile
    def f(x: Any) -> Any:
        return Point(x + 1, [x * 2, (None, "text", 3)]), {"same": x}

    x = gradcore.ones(2)
    for _ in range(3):
        point, others = f(x)
        assert point.x.tolist() == [2, 2] and point.y[0].tolist() == [2, 2] and point.y[1] == (None, "text", 3)
        assert isinstance(point, Point) and others["same"] is x
    assert len(f.traces) == 1


def test_arguments_that_share_bytes_are_another_case() -> None:
    @gradcore.compile
    def f(x: Any, y: Any) -> Any:
        x.add_(y)
        return x * y

    for _ in range(2):
        a, b = gradcore.ones(2), gradcore.full((2,), 3.0)
        assert f(a, b).tolist() == [12, 12] and a.tolist() == [4, 4]
        assert f(a, a).tolist() == [64, 64] and a.tolist() == [8, 8]
    assert len(f.programs) == 2


def test_the_mode_of_gradients_and_of_layers_is_part_of_the_case() -> None:
    model = net()
    f = gradcore.compile(model)
    x, _ = data(0)
    for _ in range(2):
        model.train()
        assert f(x).requires_grad
        with gradcore.no_grad():
            assert not f(x).requires_grad
        model.eval()
        with gradcore.no_grad():
            assert same(f(x), model(x))
    assert any("training of" in reason for reason in f.traces)


def test_a_module_is_compiled_and_differentiated_by_its_caller() -> None:
    model, other = net(), net()
    compiled = gradcore.compile(other)
    assert list(compiled.parameters()) == list(other.parameters())
    optimizers = [gradcore.optim.Adam(m.parameters(), lr=0.05) for m in (model, other)]
    for k in range(6):
        results = []
        for run, m, optimizer in ((model, model, optimizers[0]), (compiled, other, optimizers[1])):
            gradcore.manual_seed(k)
            x, y = data(k)
            x.requires_grad = True
            h = x * 2
            optimizer.zero_grad()
            loss = F.cross_entropy(run(h), y)
            loss.backward()
            optimizer.step()
            results.append((loss, x.grad, [p.grad.clone() for p in m.parameters()]))
        (loss, gx, grads), (loss2, gx2, grads2) = results
        assert same(loss, loss2) and same(gx, gx2) and all(map(same, grads, grads2))
    assert same_state(model, other) and len(compiled.programs) == 1


def test_two_calls_may_wait_for_their_gradients_at_once() -> None:
    w = gradcore.tensor([1.0, 2.0], requires_grad=True)
    f = gradcore.compile(lambda x: (w * x).tanh())
    g = lambda x: (w * x).tanh()
    for _ in range(2):
        xs = [gradcore.tensor([0.1 * k, 0.2]) for k in range(3)]
        found = []
        for run in (f, g):
            w.grad = None
            ys = [run(x) for x in xs]
            (ys[0].sum() * 1 + ys[1].sum() * 2 + ys[2].sum() * 3).backward()
            found.append(w.grad.tolist())
        assert found[0] == found[1]
    unused = f(xs[0])
    del unused


def test_the_gradient_of_a_compiled_function_runs_once() -> None:
    w = gradcore.ones(3, requires_grad=True)
    f = gradcore.compile(lambda x: (w * x).exp())
    x = gradcore.ones(3)
    f(x)
    y = f(x).sum()
    with raises(RuntimeError, "no second derivative"):
        y.backward(create_graph=True)
    y = f(x).sum()
    y.backward(retain_graph=True)
    with raises(RuntimeError, "Trying to backward through the graph a second time"):
        y.backward()
    y = f(x)
    x.add_(1)
    with raises(RuntimeError, "modified by an inplace operation"):
        y.sum().backward()


def test_two_compiled_functions_share_parameters() -> None:
    model, other = net(), net()
    optimizer, second = (gradcore.optim.SGD(m.parameters(), lr=0.1) for m in (model, other))
    steps = step_of(model, optimizer), step_of(model, optimizer)
    compiled = gradcore.compile(step_of(other, second)), gradcore.compile(step_of(other, second))
    for k in range(6):
        gradcore.manual_seed(k)
        loss = steps[k % 2](*data(k))
        gradcore.manual_seed(k)
        assert same(loss, compiled[k % 2](*data(k))) and same_state(model, other)
    assert all(len(c.traces) <= 2 for c in compiled)


def test_gradients_add_up_over_steps_that_do_not_drop_them() -> None:
    model, other = net(), net()
    optimizers = [gradcore.optim.SGD(m.parameters(), lr=0.1, momentum=0.5) for m in (model, other)]

    def part_of(model: Any) -> Any:
        def part(x: Any, y: Any) -> Any:
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            return loss

        return part

    parts = part_of(model), gradcore.compile(part_of(other))
    for k in range(8):
        for part, optimizer in zip(parts, optimizers, strict=True):
            gradcore.manual_seed(k)
            part(*data(k))
            if k % 2:
                optimizer.step()
                optimizer.zero_grad()
        assert same_state(model, other)
    assert len(parts[1].programs) == 2


def test_a_program_is_printed_a_line_an_instruction() -> None:
    _, _, _, compiled, _, _ = pair()
    assert compiled.explain() == "no call has been traced"
    for k in range(2):
        compiled(*data(k))
    program = compiled.programs[0]
    lines = str(program).splitlines()
    assert len(lines) == len(program.instructions) + 3 and repr(program) == f"<{lines[0]}>"
    assert "linear(in0:float32[5, 6]" in lines[2] and "test_compile.py:" in lines[2] and "# 0 forward" in lines[2]
    assert any("adam_(" in line and "update0[0], update0[1], update0[2]" in line for line in lines)
    assert "lower bound" in compiled.explain() and "trace 1: the first call" in compiled.explain()


def test_a_step_on_meta_is_replayed_too() -> None:
    layer = nn.Linear(4, 2, device="meta")
    f = gradcore.compile(lambda x: layer(x).sum())
    for _ in range(3):
        assert f(gradcore.zeros(3, 4, device="meta")).shape == ()
    assert len(f.programs) == 1


def test_pytorchs_options_are_taken() -> None:
    def twice(x: Any) -> Any:
        return x * 2

    assert gradcore.compile(twice, disable=True) is twice and gradcore.compile(disable=True)(twice) is twice
    compiled = gradcore.compile(mode="reduce-overhead", fullgraph=True, dynamic=False, backend="inductor", options={})(twice)
    assert [compiled(gradcore.ones(n)).tolist() for n in (1, 2, 1)] == [[2], [2, 2], [2]] and len(compiled.programs) == 2


def test_options_are_those_of_a_decorator_and_go_with_a_copy() -> None:
    f = gradcore.compile(check_every=3, max_programs=1, capture=False)(nn.Linear(2, 2))
    assert [(x._check_every, x._most, x._capture) for x in (f, copy.deepcopy(f))] == [(3, 1, False)] * 2


@pytest.mark.parametrize(("name", "args"), [("eval", ()), ("to", (gradcore.float64,)), ("requires_grad_", (False,)),
                                            ("apply", (lambda module: None,))])
def test_a_method_that_returns_its_module_returns_the_compiled_one(name: str, args: tuple[Any, ...]) -> None:
    module = nn.Linear(2, 2)
    compiled = gradcore.compile(module)
    assert getattr(compiled, name)(*args) is compiled and compiled.get_parameter("weight") is module.weight
    compiled.note = name
    assert module.note == name
    del compiled.note
    assert not hasattr(module, "note")


def test_what_cannot_be_compiled_says_so() -> None:
    with raises(TypeError, "expected a function or a module", "int"):
        gradcore.compile(3)


@pytest.mark.parametrize(("name", "value"), [("max_programs", 0), ("max_programs", "a"), ("check_every", -1)])
def test_options_that_are_no_counts_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be an int of at least \d, but got {value!r}"):
        gradcore.compile(abs, **{name: value})
