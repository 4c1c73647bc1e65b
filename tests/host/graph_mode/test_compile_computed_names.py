"""A compiled function is traced again when an attribute has changed that it looks up by a name that it computes."""

from __future__ import annotations

import builtins
import inspect
import math
from collections.abc import Callable
from functools import reduce
from operator import attrgetter, methodcaller
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn
from tests.conftest import collector
from tests.host.graph_mode.test_compile_reach import Case, check_traced_again

FACTOR_2 = 2.0

CASES: dict[str, Callable[[], Case]] = {}
case = collector(CASES)


def option(of: Any, name: str, default: Any = None) -> Any:
    return getattr(of, name, default)


@case
def an_attribute_by_a_name_that_is_given() -> Case:
    options = SimpleNamespace(value=2.0)
    return lambda x: x * option(options, "value"), lambda: setattr(options, "value", 7.0)


@case
def an_attribute_that_is_not_there_by_a_name_that_is_given() -> Case:
    options = SimpleNamespace()
    return lambda x: x * option(options, "value", 2.0), lambda: setattr(options, "value", 7.0)


@case
def attributes_by_names_in_a_list() -> Case:
    options, names = SimpleNamespace(one=1.0, value=2.0), ["one", "value"]
    return lambda x: x * math.prod([getattr(options, n) for n in names]), lambda: setattr(options, "value", 7.0)


@case
def an_attribute_by_a_name_in_an_attribute() -> Case:
    options = SimpleNamespace(which="value", value=2.0)
    return lambda x: x * getattr(options, options.which), lambda: setattr(options, "value", 7.0)


@case
def a_part_of_an_object_that_refers_to_itself_by_a_computed_name() -> Case:
    options = SimpleNamespace(value=2.0)
    options.inner = SimpleNamespace(parent=options)
    return lambda x: x * options.__getattribute__("VALUE".lower()), lambda: setattr(options, "value", 7.0)


@case
def what_an_object_has_from_its_class_by_a_computed_name() -> Case:
    class Options:
        value = 2.0

        def method(self) -> None:
            pass

    options = Options()
    return lambda x: x * attrgetter("VALUE".lower())(options), lambda: setattr(Options, "value", 7.0)


@case
def what_a_class_has_by_a_computed_name() -> Case:
    class Options:
        value = 2.0

        def method(self) -> None:
            pass

    return lambda x: x * attrgetter("VALUE".lower())(Options), lambda: setattr(Options, "value", 7.0)


@case
def an_attribute_by_a_name_that_a_method_of_all_objects_is_given() -> Case:
    options = SimpleNamespace(value=2.0)
    return lambda x: x * options.__getattribute__("VALUE".lower()), lambda: setattr(options, "value", 7.0)


class Slots:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


@case
def an_attribute_by_a_name_in_a_slot() -> Case:
    options, fields = SimpleNamespace(value=2.0, other=nn.Linear(1, 1)), [Slots("value")]
    return lambda x: x * math.prod([getattr(options, f.name) for f in fields]), lambda: setattr(options, "value", 7.0)


class Scaling(nn.Module):
    """Numbers by names that are put together, beside one that changes in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.value_0, self.value_1, self.steps = 2.0, 1.0, 0

    def forward(self, x: Any) -> Any:
        for k in range(2):
            x = x * getattr(self, f"value_{k}")
        return x


@case
def an_attribute_by_a_name_that_is_put_together() -> Case:
    layer = Scaling()
    return layer, lambda: setattr(layer, "value_0", 7.0)


class Visitor:
    def visit(self, one: Any, x: Any) -> Any:
        return getattr(self, f"visit_{type(one).__name__}", self.other)(x)

    def other(self, x: Any) -> Any:
        return x * 2.0


@case
def a_method_that_is_not_there_by_a_name_that_is_put_together() -> Case:
    visitor, one = Visitor(), nn.ReLU()
    return lambda x: visitor.visit(one, x), lambda: setattr(visitor, "visit_ReLU", lambda x: x * 7.0)


@case
def whether_there_is_an_attribute_by_a_name_that_is_put_together() -> Case:
    options, k = SimpleNamespace(), 1
    return lambda x: x * (7.0 if hasattr(options, f"value_{k}") else 2.0), lambda: setattr(options, "value_1", 1)


def along(of: Any, path: str) -> Any:
    return reduce(getattr, path.split("."), of)


@case
def an_attribute_by_a_path() -> Case:
    options = SimpleNamespace(inner=SimpleNamespace(value=2.0))
    return lambda x: x * along(options, "inner.value"), lambda: setattr(options.inner, "value", 7.0)


@case
def an_attribute_by_a_name_that_is_computed() -> Case:
    options = SimpleNamespace(value=2.0)
    return lambda x: x * getattr(options, "VALUE".lower()), lambda: setattr(options, "value", 7.0)


class Table:
    """Attributes by keys, as in packages for settings; beside them a layer, whose tensors change in each step."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options, layer=nn.Linear(1, 1))

    def __getitem__(self, key: str) -> Any:
        return self.__dict__[key]


@case
def an_attribute_by_a_key() -> Case:
    table = Table(value=2.0)
    return lambda x: x * table["value"], lambda: setattr(table, "value", 7.0)


@case
def attributes_by_a_path_in_a_variable() -> Case:
    options, path = SimpleNamespace(inner=SimpleNamespace(value=2.0)), "inner.value"
    return lambda x: x * reduce(getattr, path.split("."), options), lambda: setattr(options.inner, "value", 7.0)


@case
def attributes_by_names_that_are_put_together_in_a_map() -> Case:
    options = SimpleNamespace(value_0=1.0, value_1=2.0)
    return (lambda x: x * math.prod(map(getattr, [options] * 2, [f"value_{k}" for k in range(2)])),
            lambda: setattr(options, "value_1", 7.0))


@case
def an_attrgetter_of_a_name_that_is_computed() -> Case:
    options = SimpleNamespace(value=2.0)
    return lambda x: x * attrgetter("VALUE".lower())(options), lambda: setattr(options, "value", 7.0)


@case
def all_attributes_by_inspect() -> Case:
    options = SimpleNamespace(value=2.0)
    return (lambda x: x * math.prod(v for name, v in inspect.getmembers(options) if not name.startswith("_")),
            lambda: setattr(options, "value", 7.0))


class Doubling:
    def twice(self, x: Any) -> Any:
        return x * 2.0

    def __matmul__(self, x: Any) -> Any:
        return x * 2.0

    def __getitem__(self, k: int) -> float:
        return 2.0


@case
def a_method_by_a_name_that_is_computed() -> Case:
    kind = type("Kind", (Doubling,), {"__module__": "users"})
    one = kind()
    return lambda x: methodcaller("TWICE".lower(), x)(one), lambda: setattr(kind, "twice", lambda self, x: x * 7.0)


@case
def a_special_method() -> Case:
    kind = type("Kind", (), {**vars(Doubling), "__module__": "users"})
    one = kind()
    return lambda x: one @ x, lambda: setattr(kind, "__matmul__", lambda self, x: x * 7.0)


@case
def a_decorated_special_method() -> Case:
    doubled = Doubling.__matmul__
    kind = type("Kind", (), {"__module__": "users", "__matmul__": lambda *given: doubled(*given)})
    one = kind()
    return lambda x: one @ x, lambda: setattr(kind, "__matmul__", lambda self, x: x * 7.0)


@case
def a_special_method_that_another_comes_to_hide() -> Case:
    kind = type("Kind", (Doubling,), {"__module__": "users"})
    one = kind()
    return lambda x: x * one[0], lambda: setattr(kind, "__getitem__", lambda self, k: 7.0)


@pytest.mark.parametrize("name", CASES)
def test_it_is_traced_again(name: str) -> None:
    check_traced_again(CASES[name])


def test_what_changes_beside_a_name_that_is_put_together_costs_no_trace() -> None:
    f = gradcore.compile(layer := Scaling())
    for layer.steps in range(4):
        assert f(gradcore.ones(1)).item() == 2.0
    assert len(f.traces) == 1, f.explain()


def test_a_computed_name_of_an_unnamed_object_is_refused() -> None:
    table = [SimpleNamespace(value_0=2.0)]
    f = gradcore.compile(lambda x: x * getattr(table[0], f"value_{0 * len(table)}"))
    assert f(gradcore.ones(1)).item() == 2.0
    assert "computed_names.py" in f.traces[0] and "computes the name of an attribute: give the name a variable" in f.traces[0]


def assigns(x: Any) -> Any:
    globals()["ASSIGNED"] = 3.0
    return x * 2


def test_a_global_by_a_computed_name_is_refused() -> None:
    functions: list[Any] = [
        lambda x: x * globals()["FACTOR_" + str(2)], lambda x: x * globals().get("factor_2".upper(), 1.0),
        lambda x: x * globals().get("FACTOR_" + str(2)), lambda x: x * globals().get("FACTOR_" + str(2), x),
        lambda x: x * (2.0 if "factor_2".upper() in globals() else 1.0), lambda x: x * dict(globals())["FACTOR_2"],
        lambda x: x * builtins.globals()["FACTOR_" + str(2)],
        (lambda globals: lambda x: x * globals()["FACTOR_" + str(2)])(globals),
        assigns]
    for function in functions:
        f = gradcore.compile(function)
        assert f(gradcore.ones(1)).item() == 2.0 and "asks for globals(), to write or by a computed name" in f.traces[0]
    variables = globals
    f = gradcore.compile(lambda x: x * variables()["factor_2".upper()])
    assert f(gradcore.ones(1)).item() == 2.0 and "call globals by that name" in f.traces[0]
    functions = [
        lambda x: x * (globals().get("FACTOR_2", 1.0) if "FACTOR_2" in globals() else globals()["FACTOR_1"]),
        lambda x: x * globals().get("FACTOR_2"), lambda x: x * globals().get("FACTOR_2", x)]
    for function in functions:
        f = gradcore.compile(function)
        assert f(gradcore.ones(1)).item() == 2.0 and f.programs, f.explain()


def test_an_argument_that_another_name_of_locals_or_eval_reads_is_compared() -> None:
    functions = [(lambda reads: lambda x, k: x * reads()["k"])(locals), (lambda reads: lambda x, k: x * reads("k"))(eval),
                 (lambda eval: lambda x, k: x * eval("k"))(eval)]
    for function in functions:
        f = gradcore.compile(function)
        assert [f(gradcore.ones(1), k).item() for k in (2, 3)] == [2.0, 3.0]
        assert f.programs or "by which it may read anything: call" in f.traces[0]


def test_what_the_method_that_reads_all_attributes_hands_on_costs_no_trace() -> None:
    class Watched(SimpleNamespace):
        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__(name)

    options = Watched(value=2.0, steps=0)
    f = gradcore.compile(lambda x: x * options.value)
    for options.steps in range(3):
        assert f(gradcore.ones(1)).item() == 2.0
    assert len(f.traces) == 1, f.explain()


def test_what_else_stands_in_the_call_is_no_reason() -> None:
    options, more = SimpleNamespace(value=2.0), (1.0,)

    def f(x: Any, names: str = "value") -> Any:
        for name in names.split("."):
            x = x * getattr(options, name, *more)
        return x * getattr(options, "other", 1.0 if more else 2.0) * getattr(options, "another", float("1"))

    compiled = gradcore.compile(f)
    assert [compiled(gradcore.ones(1)).item() for _ in range(3)] == [2.0] * 3 and len(compiled.traces) == 1
    options.value = 7.0
    assert compiled(gradcore.ones(1)).item() == 7.0


def test_a_name_beside_what_may_be_one_of_two_is_computed() -> None:
    options, k, one = SimpleNamespace(value_1=2.0, value_2=3.0), 1, (1.0,)
    functions: list[Any] = [
        lambda x, other="x": x * getattr(options, "_".join(["value", str(k)]), 1.0 if k > 1 else 2.0),
        lambda x, other="x": x * getattr(options, other.replace("x", "value_") + str(k), float(1.0 if k > 1 else 2.0)),
        lambda x, other="x": x * getattr(options, "value_%d" % k, 0 < k < 5),  # noqa: UP031
        lambda x, other="x": x * getattr(options, "value_%d" % k, getattr(options, "value_2") if k else 1.0),  # noqa: B009,UP031
        lambda x, other="x": x * getattr(options if k else None, f"value_{k}"),
        lambda x, other="x": x * getattr(options, "value_%d" % k, *one)]  # noqa: UP031
    for function in functions:
        f = gradcore.compile(function)
        options.value_1 = 2.0
        assert [f(gradcore.ones(1)).item() for _ in range(3)] == [2.0] * 3
        options.value_1 = 7.0
        assert f(gradcore.ones(1)).item() == 7.0, f.explain()


def test_an_attribute_of_a_new_object_is_set_to_a_list_made_in_the_call() -> None:
    def f(x: Any, name: str = "a") -> Any:
        made = SimpleNamespace()
        setattr(made, name, [2.0 * v for v in (1.0, 2.0)])
        return x * made.a[1]

    compiled = gradcore.compile(f)
    assert compiled(gradcore.ones(1)).item() == 4.0 and compiled.programs, compiled.explain()
