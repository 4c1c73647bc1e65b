"""Functions that one factory has made share their code, but each has variables and defaults of its own."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.program.watching import newness

Settings = dict[str, float]


def by_closure(settings: Settings) -> Any:
    return lambda module, inputs, out: out * settings["scale"]


def by_default(settings: Settings) -> Any:
    return lambda module, inputs, out, of=settings: out * of["scale"]


def by_keyword(settings: Settings) -> Any:
    def hook(module: Any, inputs: Any, out: Any, *, of: Settings = settings) -> Any:
        return out * of["scale"]
    return hook


def scaled(settings: Settings, module: Any, inputs: Any, out: Any) -> Any:
    return out * settings["scale"]


def decorated(settings: Settings) -> Any:
    def once_more(f: Any) -> Any:
        @wraps(f)
        def called(*args: Any) -> Any:
            return f(*args) * settings["scale"]
        return called
    return once_more(once_more(lambda module, inputs, out: out))


def by_partial(settings: Settings) -> Any:
    return partial(scaled, settings)


@pytest.mark.parametrize("made", [by_closure, by_default, by_keyword, decorated, by_partial])
def test_each_function_of_a_factory_has_guards(made: Callable[[Settings], Any]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    settings: list[Settings] = [{"scale": 1.0}, {"scale": 2.0}, {"scale": 3.0}]
    for layer, own in zip(model, settings, strict=True):
        layer.register_forward_hook(made(own))
    compiled, x = gradcore.compile(model), gradcore.ones(1, 2)
    with gradcore.no_grad():
        for k in range(6):
            assert compiled(x).tolist() == compiled(x).tolist() == model(x).tolist()
            settings[k % 3]["scale"] += 0.5
    assert len(compiled.traces) == 6


def test_a_hook_on_a_parameter_that_is_a_partial() -> None:
    w, settings = nn.Parameter(gradcore.ones(2)), {"scale": 1.0}
    module = nn.Module()
    module.w = w
    w.register_hook(partial(lambda own, g: g * own["scale"], settings))

    @gradcore.compile
    def step(x: Any) -> None:
        w.grad = None
        (module.w * x).sum().backward()

    for scale in (1.0, 1.0, 1.0, 4.0):
        settings["scale"] = scale
        step(gradcore.ones(2))
        assert w.grad.tolist() == [scale, scale]


def cells(value: Any) -> tuple[Any, Any]:
    w = value

    def f(x: Any) -> Any:
        return x * w

    def put(new: Any) -> None:
        nonlocal w
        w = new

    return f, put


@pytest.mark.parametrize("same", [True, False])
def test_a_variable_that_is_bound_again(same: bool) -> None:
    one, two = gradcore.ones(2), gradcore.ones(2)
    (a, put_a), (b, put_b) = cells(one), cells(one if same else two)
    compiled, x = gradcore.compile(lambda x: a(x) + b(x)), gradcore.ones(2)
    assert compiled(x).tolist() == compiled(x).tolist() == [2.0, 2.0]
    put_b(gradcore.full((2,), 7.0))
    assert compiled(x).tolist() == compiled(x).tolist() == [8.0, 8.0]
    put_a(gradcore.full((2,), 3.0))
    assert compiled(x).tolist() == compiled(x).tolist() == [10.0, 10.0]
    assert len(compiled.traces) == 3


def test_functions_of_one_code_that_the_run_makes_need_no_guards() -> None:
    weights = [0.5, 0.25]

    def run(x: Any) -> Any:
        parts = [lambda y, w=w, k=k: y * w + k for k, w in enumerate(weights)]
        for part in parts:
            x = part(x)
        return x

    compiled = gradcore.compile(run)
    for _ in range(20):
        assert compiled(gradcore.ones(1)).item() == run(gradcore.ones(1)).item() == 1.125
    assert len(compiled.traces) == 1 and not any("defaults" in str(g.name) for e in compiled._cached() for g in e.guards)
    weights[1] = 3.0
    assert compiled(gradcore.ones(1)).item() == run(gradcore.ones(1)).item() == 2.5


def test_functions_that_are_not_called_need_no_guards() -> None:
    settings: list[Settings] = [{"scale": float(k)} for k in range(1, 9)]
    made = [f(own) for f in (by_closure, by_default) for own in settings]
    compiled, x = gradcore.compile(lambda x: made[0](None, None, x) + made[8](None, None, x)), gradcore.ones(1)
    assert compiled(x).item() == 2.0
    for own in settings[1:]:
        own["scale"] = 0.0
        # `made` reaches the functions, but only those that ran have variables to be guarded.
        assert compiled(x).item() == 2.0
    assert len(compiled.traces) == 1
    settings[0]["scale"] = 5.0
    assert compiled(x).item() == 10.0


def test_what_any_function_of_a_code_changes_is_no_replay() -> None:
    def logged(log: list[Any]) -> Any:
        return lambda x: log.append(None) or x * 2

    logs: list[list[Any]] = [[], []]
    first, second = map(logged, logs)
    for called in (first, second):
        compiled = gradcore.compile(lambda x, called=called: called(x))
        for _ in range(3):
            compiled(gradcore.ones(1))
        assert not compiled.programs
    assert [*map(len, logs)] == [3, 3]


def test_a_variable_that_is_not_there_yet() -> None:
    def cell() -> tuple[Any, Any]:
        def f(x: Any) -> Any:
            try:
                return x * late
            except NameError:
                return x

        def put(value: float) -> None:
            nonlocal late
            late = value

        if not cells:
            late = 0.0
        return f, put

    f, put = cell()
    for function in (f, lambda x: f(x)):
        compiled = gradcore.compile(function)
        assert compiled(gradcore.full((1,), 2.0)).item() == (2.0 if function is f else 6.0)
        put(3.0)
        assert compiled(gradcore.full((1,), 2.0)).item() == 6.0


def test_a_guard_keeps_no_function_that_was_not_called() -> None:
    def holder(tensor: Any) -> Any:
        return lambda x, w=tensor: x * w

    used, other = holder(gradcore.ones(2)), holder(gradcore.ones(1000))
    compiled = gradcore.compile(lambda x: used(x))
    before = gradcore.memory_requested()
    compiled(gradcore.ones(2))
    del other
    gc.collect()
    assert gradcore.memory_requested() <= before - 4000 + 1024


def test_functions_without_variables_are_one() -> None:
    acts = [lambda x: x * 2 for _ in range(1000)]
    compiled = gradcore.compile(lambda x: acts[3](acts[5](x)))
    for _ in range(3):
        assert compiled(gradcore.ones(1)).item() == 4.0
    names = [guard.name for entry in compiled._cached() for guard in entry.guards]
    assert len(compiled.traces) == 1 and sum(name.startswith("the code of") for name in names) == 2
    acts[5] = lambda x: x * 5
    assert compiled(gradcore.ones(1)).item() == 10.0


def test_functions_that_the_collector_hides_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newness, "frozen", gc.get_freeze_count())
    settings, scale = {"scale": 2.0}, 1.0

    @gradcore.compile
    def f(x: Any, of: Settings = settings) -> Any:
        return x * scale * of["scale"]

    x = gradcore.ones(1)
    gc.freeze()
    assert [f(x).item(), f(x).item(), len(f.programs)] == [2.0, 2.0, 1]
    scale = 3.0
    settings["scale"] = 5.0
    assert f(x).item() == 15.0
