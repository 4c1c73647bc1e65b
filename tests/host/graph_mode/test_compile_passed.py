"""What a compiled function reads from objects that it is given, wherever among its arguments they are, and in rarer ways."""

from __future__ import annotations

import gc
import importlib
import operator
import sys
import warnings
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn, optim
from tests.conftest import collector

#: A function, its arguments but for the tensor, named ones among them, and a change of the factor that it reads from 2 to 7.
Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Callable[[], Any]]
CASES: dict[str, Callable[[], Case]] = {}
case = collector(CASES)


def config() -> Any:
    return SimpleNamespace(value=2.0)


def to_seven(owner: Any) -> Callable[[], None]:
    return lambda: setattr(owner, "value", 7.0)


@case
def in_a_list() -> Case:
    c = config()
    return lambda x, given: x * given[0].value, ([c],), {}, to_seven(c)


@case
def in_a_dict_in_a_tuple() -> Case:
    c = config()
    return lambda x, given: x * given[0]["c"].value, (({"c": c},),), {}, to_seven(c)


@case
def in_a_loop_over_a_list() -> Case:
    c = config()

    def f(x: Any, given: Any) -> Any:
        for one in given:
            x = x * one.value
        return x

    return f, ([c],), {}, to_seven(c)


@case
def by_name_only() -> Case:
    c = config()

    def f(x: Any, *, given: Any = None) -> Any:
        return x * given.value

    return f, (), {"given": c}, to_seven(c)


@case
def among_further_arguments() -> Case:
    c = config()
    return lambda x, *given: x * given[0].value, (c,), {}, to_seven(c)


@case
def among_further_names() -> Case:
    c = config()
    return lambda x, **given: x * given["c"].value, (), {"c": c}, to_seven(c)


@case
def of_a_module_that_is_not_called() -> Case:
    m = nn.Linear(1, 1)
    m.value = 2.0
    return lambda x, m: x * m.value, (m,), {}, to_seven(m)


@case
def of_a_module_in_a_list() -> Case:
    m = nn.Linear(1, 1)
    m.value = 2.0
    return lambda x, ms: x * ms[0].value, ([m],), {}, to_seven(m)


@case
def of_a_modules_parameter() -> Case:
    m = nn.Module()
    m.value = nn.Parameter(gradcore.ones(1) * 2)
    return lambda x, m: x * m.value.detach(), (m,), {}, lambda: setattr(m, "value", nn.Parameter(gradcore.ones(1) * 7))


@case
def the_learning_rate_of_an_optimizer() -> Case:
    o = optim.SGD([nn.Parameter(gradcore.ones(1))], lr=2.0)
    return lambda x, o: x * o.param_groups[0]["lr"], (o,), {}, lambda: o.param_groups[0].update(lr=7.0)


@case
def an_attribute_of_a_scheduler() -> Case:
    s = optim.lr_scheduler.StepLR(optim.SGD([nn.Parameter(gradcore.ones(1))], lr=0.1), 9)
    s.last_epoch = 2
    return lambda x, s: x * s.last_epoch, (s,), {}, lambda: setattr(s, "last_epoch", 7)


@case
def in_a_deque() -> Case:
    d = deque([2.0])
    return lambda x, d: x * d[0], (d,), {}, lambda: d.__setitem__(0, 7.0)


@case
def in_an_array() -> Case:
    a = array("d", [2.0])
    return lambda x, a: x * a[0], (a,), {}, lambda: a.__setitem__(0, 7.0)


@case
def in_a_bytearray_that_is_referred_to() -> Case:
    a = bytearray([2])
    return lambda x: x * a[0], (), {}, lambda: a.__setitem__(0, 7)


@case
def behind_names_with_a_dot() -> Case:
    c = SimpleNamespace(inner=config())
    return lambda x: x * operator.attrgetter("inner.value")(c), (), {}, to_seven(c.inner)


class Config:
    __match_args__ = ("value",)

    def __init__(self) -> None:
        self.value = 2.0


@case
def behind_a_weak_reference() -> Case:
    c = Config()
    found = weakref.ref(c)
    return lambda x: x * found().value, (), {}, to_seven(c)


@case
def by_a_pattern_with_a_name() -> Case:
    c = Config()

    def f(x: Any) -> Any:
        match c:
            case Config(value=v):
                return x * v

    return f, (), {}, to_seven(c)


@case
def by_a_pattern_without_a_name() -> Case:
    c = Config()

    def f(x: Any) -> Any:
        match c:
            case Config(v):
                return x * v

    return f, (), {}, to_seven(c)


def imported() -> Any:
    sys.modules["of_a_user"], sys.modules["of_a_user.inner"] = outer, inner = ModuleType("of_a_user"), ModuleType("inner")
    outer.__path__, outer.inner, inner.value = [], inner, 2.0  # type: ignore[attr-defined]
    return inner


@case
def from_a_module_that_it_imports() -> Case:
    m = imported()

    def f(x: Any) -> Any:
        from of_a_user.inner import value  # type: ignore[import-not-found]
        return x * value

    return f, (), {}, to_seven(m)


@case
def from_a_module_that_it_imports_by_a_name_in_a_string() -> Case:
    m = imported()
    return lambda x: x * importlib.import_module("of_a_user.inner").value, (), {}, to_seven(m)


@case
def from_a_module_that_it_imports_under_another_name() -> Case:
    m = imported()

    def f(x: Any) -> Any:
        import of_a_user.inner as found  # type: ignore[import-not-found]
        return x * found.value

    return f, (), {}, to_seven(m)


@case
def from_a_package_that_it_imports() -> Case:
    m = imported()

    def f(x: Any) -> Any:
        # A number before an import must not be taken for the level of a relative one.
        times = 1
        import of_a_user.inner  # type: ignore[import-not-found]
        return x * of_a_user.inner.value * times

    return f, (), {}, to_seven(m)


@case
def from_a_module_beside_its_own() -> Case:
    m = imported()
    code = "def f(x):\n    from .inner import value\n    return x * value\n"
    variables: dict[str, Any] = {"__name__": "of_a_user.other", "__package__": "of_a_user"}
    exec(compile(code, "other.py", "exec"), variables)
    return variables["f"], (), {}, to_seven(m)


@pytest.mark.parametrize("name", CASES)
def test_it_is_traced_again(name: str) -> None:
    f, args, kwargs, change = CASES[name]()
    compiled = gradcore.compile(f)
    x = gradcore.ones(1)
    found = [compiled(x, *args, **kwargs).item() for _ in range(3)]
    change()
    found += [compiled(x, *args, **kwargs).item() for _ in range(2)]
    assert found == [2.0, 2.0, 2.0, 7.0, 7.0]
    assert len(compiled.traces) == 2 and len(compiled.programs) == 2, compiled.explain()
    del f, args, kwargs, change, compiled
    sys.modules.pop("of_a_user", None)
    sys.modules.pop("of_a_user.inner", None)
    gc.collect()


def test_tensors_in_a_deque_are_arguments() -> None:
    f = gradcore.compile(lambda d: d[0] * d[-1])
    d = deque([gradcore.ones(1) * k for k in range(3)], maxlen=3)
    found = []
    for k in range(4):
        d.append(gradcore.ones(1) * (k + 2))
        found.append(f(d).item())
    assert found == [2.0, 6.0, 8.0, 15.0] and len(f.programs) == 1 == len(f.traces)


def test_a_parameter_is_told_from_a_tensor() -> None:
    f = gradcore.compile(lambda x: x * (2 if isinstance(x, nn.Parameter) else 3))
    x, p = gradcore.ones(1), nn.Parameter(gradcore.ones(1), requires_grad=False)
    assert [f(a).item() for a in (x, p, x, p)] == [3.0, 2.0, 3.0, 2.0] and len(f.traces) == 2


@pytest.mark.parametrize("what, asks", [
    ("a tensor's _base", lambda x: x * (2 if x._base is None else 3)),
    ("a tensor's _version", lambda x: x * x._version),
    ("retains_grad", lambda x: x * (2 if x.retains_grad else 3)),
    ("the address of a tensor", lambda x: x * (x.data_ptr() % 7)),
    ("the gradient of a tensor that is no leaf", lambda x: x * (2 if x.grad is None else 3)),
    ("a generator's seed", lambda x: x * gradcore.initial_seed())])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_what_neither_a_key_nor_a_guard_tells_is_not_replayed(what: str, asks: Callable[[Any], Any]) -> None:
    f = gradcore.compile(asks)
    plain, with_gradient = gradcore.ones(2), gradcore.ones(2)
    with_gradient.grad = gradcore.ones(2)
    retained = gradcore.ones(2, requires_grad=True) * 1
    retained.retain_grad()
    inner = gradcore.ones(2, requires_grad=True) * 1
    for x in (plain, gradcore.ones(4)[:2], with_gradient, retained, inner):
        gradcore.manual_seed(len(f.traces) % 5)
        assert f(x).tolist() == asks(x).tolist()
    assert not f.programs and all(f"asks for {what}" in reason for reason in f.traces), f.traces


def test_backward_hooks_of_a_module_run_once_for_each_backward() -> None:
    m, seen = nn.Linear(2, 1), []
    m.register_full_backward_hook(lambda module, gi, go: seen.append(len(seen)))
    f = gradcore.compile(m)
    for k in range(3):
        result = f(gradcore.ones(1, 2)).sum()
        assert len(seen) == k
        result.backward()
        assert len(seen) == k + 1
    assert "its result has hooks in its graph" in f.traces[0]
    del m, f
    gc.collect()


def test_a_function_changes_an_option_of_an_optimizer_that_is_not_its_first_argument() -> None:
    def update(p: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        p.square().sum().backward()
        optimizer.step()

    def decay(p: Any, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["weight_decay"] += 0.1

    found = []
    for wrap in (lambda f: f, gradcore.compile):
        p = nn.Parameter(gradcore.ones(2))
        optimizer = optim.SGD([p], lr=0.1)

        def both(p: Any = p, optimizer: Any = optimizer) -> None:
            update(p, optimizer)
            decay(p, optimizer)

        run: Any = wrap(both)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(5):
                run()
        found.append((p.tolist(), optimizer.param_groups[0]["weight_decay"]))
    assert found[0] == found[1] and not run.programs


def test_a_guard_of_state_that_the_function_clears_makes_no_entries_there() -> None:
    p = nn.Parameter(gradcore.ones(2))
    optimizer = optim.SGD([p], lr=0.1, momentum=0.9)
    p.sum().backward()
    optimizer.step()
    assert optimizer.state

    @gradcore.compile
    def f(x: Any) -> Any:
        optimizer.state.clear()
        return x * 2

    for _ in range(3):
        f(gradcore.ones(2))
        assert not optimizer.state
