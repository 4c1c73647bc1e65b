"""A compiled function is traced again if and only if something that it can read has changed, however it reads it."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
from collections import OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn
from tests.conftest import collector

FACTOR = 2.0

#: A function of a tensor, and a change of its factor from 2 to 7.
Case = tuple[Callable[[Any], Any], Callable[[], Any]]
CASES: dict[str, Callable[[], Case]] = {}
case = collector(CASES)


def two() -> Any:
    return gradcore.tensor([2.0])


def seven() -> Any:
    return gradcore.tensor([7.0])


@case
def an_attribute_four_deep() -> Case:
    deepest = SimpleNamespace(value=2.0)
    top = SimpleNamespace(a=SimpleNamespace(b=SimpleNamespace(c=deepest)))
    return lambda x: x * top.a.b.c.value, lambda: setattr(deepest, "value", 7.0)


@case
def a_tensor_of_a_class() -> Case:
    class Shared:
        weight = two()

    return lambda x: x * Shared.weight, lambda: setattr(Shared, "weight", seven())


@case
def a_tensor_that_an_object_has_from_its_class() -> Case:
    class Shared:
        weight = two()

    one = Shared()
    return lambda x: x * one.weight, lambda: setattr(Shared, "weight", seven())


@case
def a_tensor_in_a_slot() -> Case:
    class Slotted:
        __slots__ = ("weight",)

    one = Slotted()
    one.weight = two()
    return lambda x: x * one.weight, lambda: setattr(one, "weight", seven())


@case
def a_list_that_is_a_default() -> Case:
    given = [2.0]

    def f(x: Any, by: list[float] = given) -> Any:
        return x * by[0]

    return f, lambda: given.__setitem__(0, 7.0)


@case
def the_defaults_of_a_function() -> Case:
    def inner(x: Any, *, by: float = 2.0) -> Any:
        return x * by

    return lambda x: inner(x), lambda: setattr(inner, "__kwdefaults__", {"by": 7.0})


@case
def getattr_with_a_constant() -> Case:
    one = SimpleNamespace(value=2.0)
    return lambda x: x * getattr(one, "value"), lambda: setattr(one, "value", 7.0)  # noqa: B009


@case
def vars_of_an_object() -> Case:
    one = SimpleNamespace(value=2.0)
    return lambda x: x * vars(one)["value"], lambda: setattr(one, "value", 7.0)


@case
def an_item_of_globals() -> Case:
    globals()["FACTOR"] = 2.0
    return lambda x: x * globals()["FACTOR"], lambda: globals().__setitem__("FACTOR", 7.0)


@case
def a_tensor_in_a_deque() -> Case:
    line = deque([two()])
    return lambda x: x * line[0], lambda: line.appendleft(seven())


@case
def a_container_with_attributes_that_is_passed_on() -> Case:
    pair = namedtuple("pair", "scales bias")(OrderedDict(first=[2.0, two()]), two())
    inner = lambda scales: scales["first"][0]
    return lambda x: x * (lambda pair: inner(pair.scales))(pair), lambda: pair.scales["first"].__setitem__(0, 7.0)


@case
def an_item_of_a_UserDict() -> Case:
    options = UserDict(factor=2.0)
    return lambda x: x * options["factor"], lambda: options.__setitem__("factor", 7.0)


@case
def what_a_partial_was_given() -> Case:
    given = [2.0]
    return functools.partial(lambda by, x: x * by[0], given), lambda: given.__setitem__(0, 7.0)


@case
def a_partial_that_is_called() -> Case:
    given = [2.0]
    inner = functools.partial(lambda by, x: x * by[0], given)
    return lambda x: inner(x), lambda: given.__setitem__(0, 7.0)


def scaled_by(seen: Any) -> Any:
    """A function whose backward reads ``seen``."""
    class Scaled(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * seen.value

    return Scaled.apply


@case
def the_backward_of_a_function() -> Case:
    seen = SimpleNamespace(value=2.0)
    scaled = scaled_by(seen)

    def f(x: Any) -> Any:
        y = x.clone().requires_grad_()
        scaled(y).sum().backward()
        return y.grad

    return f, lambda: setattr(seen, "value", 7.0)


def check_traced_again(case: Callable[[], Case]) -> None:
    """The function of a case doubles 1 until the change, and is traced again after it."""
    f, change = case()
    compiled = gradcore.compile(f)
    found = [compiled(gradcore.ones(1)).item() for _ in range(3)]
    change()
    found += [compiled(gradcore.ones(1)).item() for _ in range(2)]
    assert found == [2.0, 2.0, 2.0, 7.0, 7.0]
    assert len(compiled.traces) == 2 and len(compiled.programs) == 2, compiled.explain()
    # A class and its attributes are freed by the garbage collector.
    del f, change, compiled
    gc.collect()


@pytest.mark.parametrize("name", CASES)
def test_it_is_traced_again(name: str) -> None:
    check_traced_again(CASES[name])


def test_the_backward_that_the_caller_runs_is_looked_at() -> None:
    seen, p = SimpleNamespace(value=2.0), nn.Parameter(gradcore.ones(1))
    scaled = scaled_by(seen)
    f, found = gradcore.compile(lambda x: scaled(x * p).sum()), []
    for k in range(4):
        seen.value = 2.0 if k < 2 else 7.0
        p.grad = None
        f(gradcore.ones(1)).backward()
        found.append(p.grad.item())
    assert found == [2.0, 2.0, 7.0, 7.0] and len(f.traces) == 2


@pytest.mark.parametrize("before, after", [([1], [1.0]), ((1, True), (1.0, True)), ({"a": 1}, {"a": 1.0})])
def test_numbers_of_another_type_are_others_in_containers_too(before: Any, after: Any) -> None:
    one = SimpleNamespace(factors=before)
    f = gradcore.compile(lambda x: x * (one.factors["a"] if isinstance(one.factors, dict) else one.factors[0]))
    x = gradcore.tensor([1])
    assert [f(x).dtype, f(x).dtype] == [gradcore.int64] * 2
    one.factors = after
    assert f(x).dtype == gradcore.float32


def test_a_counter_beside_a_method_of_its_name_is_not_looked_at() -> None:
    p = nn.Parameter(gradcore.ones(2))
    trainer = SimpleNamespace(optimizer=gradcore.optim.SGD([p], lr=0.1), step=0)

    @gradcore.compile
    def run() -> None:
        trainer.optimizer.zero_grad()
        (p * p).sum().backward()
        trainer.optimizer.step()

    for _ in range(6):
        run()
        trainer.step += 1
    assert len(run.traces) <= 2, run.traces


def test_an_iterator_that_is_drawn_from_is_not_replayed() -> None:
    numbers = itertools.count(1)

    @gradcore.compile
    def f(x: Any) -> Any:
        for k in numbers:
            return x * k

    assert [f(gradcore.ones(1)).item() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert "draws from the variable numbers" in f.traces[0]

    @gradcore.compile
    def g(x: Any, given: Any) -> Any:
        for k in given:
            return x * k

    given = iter([4.0, 5.0, 6.0])
    assert [g(gradcore.ones(1), given).item() for _ in range(3)] == [4.0, 5.0, 6.0]
    assert "an argument is a list_iterator" in g.traces[0]


def test_what_is_set_on_a_compiled_module_is_set_on_the_module() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 1.0

        def forward(self, x: Any) -> Any:
            return x * self.scale

    module = Scaled()
    compiled = gradcore.compile(module)
    assert compiled(gradcore.ones(1)).item() == compiled(gradcore.ones(1)).item() == 1.0
    compiled.scale = 5.0
    compiled.weight = nn.Parameter(gradcore.ones(2))
    assert module.scale == 5.0 and compiled(gradcore.ones(1)).item() == 5.0 and len(list(module.parameters())) == 1


@pytest.mark.parametrize("kind", [gradcore.optim.SGD, gradcore.optim.Adam])
def test_what_an_optimizer_keeps_may_be_put_in_the_place_of_another(kind: Any) -> None:
    def run(made: Any) -> list[Any]:
        p = nn.Parameter(gradcore.ones(2))
        optimizer = kind([p], lr=0.1, **({"momentum": 0.9} if kind is gradcore.optim.SGD else {}))
        options = optimizer.param_groups[0]
        if kind is gradcore.optim.Adam:
            options["betas"] = [0.9, 0.99]

        def step(x: Any) -> Any:
            p.grad = None
            (x * p).sum().backward()
            optimizer.step()
            return p.detach().sum()

        f, found = made(step), []
        for k in range(7):
            if k == 3:
                name = next(n for n, x in optimizer.state[p].items() if isinstance(x, gradcore.Tensor) and x.dim())
                optimizer.state[p][name] = gradcore.full((2,), 10.0)
            if k == 5 and "betas" in options:
                options["betas"][0] = 0.1
            found.append(f(gradcore.tensor([1.0, k])).item())
        if made is gradcore.compile:
            assert len(f.traces) < 6, f.traces
        return found

    assert run(gradcore.compile) == run(lambda f: f)


@pytest.mark.skipif(sys.gettrace() is not None, reason="who traces already, as a debugger does, hides which lines ran")
def test_an_assignment_that_did_not_run_is_no_reason() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = None

        def forward(self, x: Any) -> Any:
            if self.table is None:
                self.table = x * 2
            return x + self.table

    f = gradcore.compile(Cached())
    assert [f(gradcore.ones(1)).item() for _ in range(3)] == [3.0] * 3
    assert "assigns to table" in f.traces[0] and len(f.traces) == 2 and len(f.programs) == 1
    f.table = gradcore.ones(1)
    assert f(gradcore.ones(1)).item() == 2.0


def test_a_default_that_counts_is_not_replayed() -> None:
    @gradcore.compile
    def f(x: Any, calls: list[int] = [0]) -> Any:  # noqa: B006
        calls[0] += 1
        return x * calls[0]

    assert [f(gradcore.ones(1)).item() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert "the defaults of f is ([1],) and was ([0],)" in f.traces[0]


def test_reasons_are_few_however_many_there_are() -> None:
    one = SimpleNamespace()
    names: dict[str, Any] = {"one": one}
    lines = "\n".join(f"    one.a{k} = {k}" for k in range(20))
    exec(f"def f(x):\n{lines}\n    return x * 2", names)
    f = gradcore.compile(names["f"])
    f(gradcore.ones(1))
    assert f.traces[0].count("assigns to") == 4 and f.traces[0].endswith("and 16 more such reasons")


def test_a_function_without_an_op_says_so(tmp_path: Path) -> None:
    f = gradcore.compile(lambda x: x)
    assert f(gradcore.ones(1)).item() == 1.0
    with pytest.raises(gradcore.errors.TraceError, match=r"cannot save program 0: the cache has 0 .* trace: .* runs no op"):
        f.save(tmp_path / "none")
