"""A compiled function is traced again when what it reads from a class, a metaclass or a slot has changed, or what belongs to a
value beside that: an attribute of a number, the object of a method that is written in C."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable
from functools import partial
from types import CellType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, ones
from tests.conftest import collector
from tests.host.graph_mode.test_compile_reach import Case, check_traced_again

CASES: dict[str, Callable[[], Case]] = {}
case = collector(CASES)


@case
def an_attribute_that_a_derived_class_hides() -> Case:
    class Base:
        value = 2.0

    class Derived(Base):
        value = 5.0

        def run(self, x: Any) -> Any:
            return x * super().value

    return Derived().run, lambda: setattr(Base, "value", 7.0)


@case
def a_method_that_a_derived_class_extends() -> Case:
    class Base(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 1

    class Derived(Base):
        def forward(self, x: Any) -> Any:
            return super().forward(x) + 1

    model = Derived()
    return lambda x: model(x), lambda: setattr(Base, "forward", lambda self, x: x * 6)


@case
def an_object_that_becomes_one_of_another_class() -> Case:
    one, other = (type("Scale", (), {"__call__": lambda self, x, by=by: x * by}) for by in (2.0, 7.0))
    scale = one()
    return lambda x: scale(x), lambda: setattr(scale, "__class__", other)


@case
def a_property_that_a_derived_class_extends() -> Case:
    class Base:
        value = property(lambda self: 1.0)

    class Derived(Base):
        @property
        def value(self) -> float:
            return super().value + 1

    one = Derived()
    return lambda x: x * one.value, lambda: setattr(Base, "value", property(lambda self: 6.0))


@case
def an_attribute_of_the_class_of_a_dict() -> Case:
    class Settings(dict[str, float]):
        value = 2.0

    one = Settings()
    return lambda x: x * one.value, lambda: setattr(Settings, "value", 7.0)


@case
def an_attribute_of_the_class_of_numbers_in_a_list() -> Case:
    class Number(float):
        value = 2.0

    numbers = [[Number(1)]]
    return lambda x: x * numbers[0][0].value, lambda: setattr(Number, "value", 7.0)


@case
def an_attribute_that_a_tuple_has_from_its_class_and_is_given() -> Case:
    class Pair(tuple[float, float]):
        value = 2.0

    one = Pair((1.0, 2.0))
    return lambda x: x * one.value, lambda: setattr(one, "value", 7.0)


@case
def an_attribute_that_a_dict_in_a_list_is_given() -> Case:
    class Settings(dict[str, float]):
        value = 2.0

    held = [Settings()]
    return lambda x: x * held[0].value, lambda: setattr(held[0], "value", 7.0)


@case
def an_attribute_of_a_class_that_its_object_hides() -> Case:
    class Settings:
        value = 2.0

    one = Settings()
    one.value = 1.0
    return lambda x: x * one.value * type(one).value, lambda: setattr(Settings, "value", 7.0)


@case
def an_attribute_of_a_metaclass() -> Case:
    class Meta(type):
        value = 2.0

    class Settings(metaclass=Meta):
        pass

    return lambda x: x * Settings.value, lambda: setattr(Meta, "value", 7.0)


@case
def an_attribute_of_a_method() -> Case:
    class Scaler:
        def run(self, x: Any) -> Any:
            return x * self.run.value  # type: ignore[attr-defined]

    Scaler.run.value = 2.0  # type: ignore[attr-defined]
    return Scaler().run, lambda: setattr(Scaler.run, "value", 7.0)


class Slots:
    __slots__ = ("value", "__weakref__")


@case
def a_slot_that_is_empty() -> Case:
    one = Slots()
    return lambda x: x * getattr(one, "value", 2.0), lambda: setattr(one, "value", 7.0)


@dataclasses.dataclass(slots=True)
class Inner:
    value: float = 2.0


@dataclasses.dataclass(slots=True)
class Outer:
    inner: Inner = dataclasses.field(default_factory=Inner)


@case
def slots_that_are_read_all_at_once() -> Case:
    one = Outer()
    return lambda x: x * dataclasses.asdict(one)["inner"]["value"], lambda: setattr(one.inner, "value", 7.0)


class Number(int):
    value: float


class Numbers(list[float]):
    __slots__ = ("value",)


class Array(np.ndarray[Any, Any]):
    value: float


def valued(x: Any, value: float) -> Any:
    x.value = value
    return x


MAKES: dict[str, Callable[[], Any]] = {
    "a_number": lambda: Number(1), "a_list_with_a_slot": Numbers, "an_array": lambda: np.zeros(1).view(Array),
    "a_text": type("Text", (str,), {}), "a_set": type("Set", (set,), {}), "a_float": type("Float", (float,), {}),
    "a_parameter": lambda: nn.Parameter(ones(1))}


@pytest.mark.parametrize("name", MAKES)
def test_the_attribute_of_a_value_is_guarded_wherever_it_is(name: str) -> None:
    one = SimpleNamespace(held=valued(MAKES[name](), 2.0))
    check_traced_again(lambda: (lambda x: x * one.held.value, lambda: setattr(one.held, "value", 7.0)))
    one.held.value = 2.0
    first, other = one.held, valued(MAKES[name](), 7.0)
    # They may be equal, and in a list.
    check_traced_again(lambda: (lambda x: x * one.held.value, lambda: setattr(one, "held", other)))
    one.held = [first]
    check_traced_again(lambda: (lambda x: x * one.held[0].value, lambda: setattr(one, "held", [other])))
    assert first.value == 2.0


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"some": [x]}])
@pytest.mark.parametrize("name", MAKES)
def test_the_attribute_of_an_argument_is_compared(name: str, wrap: Any) -> None:
    f = gradcore.compile(lambda x, held: x * (held["some"][0] if isinstance(held, dict) else held).value)
    given = [valued(MAKES[name](), value) for value in (2.0, 2.0, 7.0, 7.0)]
    assert [f(ones(1), wrap(held)).item() for held in given] == [2.0, 2.0, 7.0, 7.0]
    assert len(f.programs) == (4 if name == "a_parameter" else 2)


@case
def the_dict_of_a_method_of_its() -> Case:
    factors = {"a": 2.0}
    get = factors.get
    return lambda x: x * (get("a") or 0.0), lambda: factors.update(a=7.0)


class Total(list[float]):
    def total(self) -> float:
        return sum(self)


@case
def the_list_of_a_method_of_its_class() -> Case:
    numbers = Total([2.0])
    total = numbers.total
    return lambda x: x * total(), lambda: numbers.append(5.0)


@case
def the_arguments_of_a_partial_that_is_a_static_method() -> Case:
    table = {"value": 2.0}

    class Scaling:
        run = staticmethod(partial(lambda of, x: x * of["value"], table))

    return lambda x: Scaling.run(x), lambda: table.update(value=7.0)


@case
def an_attribute_of_what_a_method_is_bound_to() -> Case:
    class Scaling:
        value = 2.0

        def run(self) -> None:
            raise NotImplementedError

    one = Scaling()
    method = one.run
    return lambda x: x * method.__self__.value, lambda: setattr(one, "value", 7.0)


@pytest.mark.parametrize("name", CASES)
def test_it_is_traced_again(name: str) -> None:
    check_traced_again(CASES[name])


def test_what_a_method_written_in_c_changes_is_changed_by_each_call() -> None:
    seen: list[int] = []
    keep = seen.append

    def counted(x: Any) -> Any:
        keep(1)
        return x * 2

    f = gradcore.compile(counted)
    for _ in range(3):
        f(ones(1))
    assert seen == [1, 1, 1] and not f.programs


def test_a_shuffle_that_is_bound_to_a_generator_shuffles_in_each_call() -> None:
    def shuffled(generator: random.Random, wrap: Any) -> list[float]:
        shuffle = generator.shuffle

        def f(x: Any) -> Any:
            shuffle(numbers := [1.0, 2.0, 3.0, 4.0, 5.0])
            return x * numbers[0]

        f = wrap(f)
        return [f(ones(1)).item() for _ in range(6)]

    assert shuffled(random.Random(0), gradcore.compile) == shuffled(random.Random(0), lambda f: f)


@pytest.mark.parametrize("hides", [lambda one: one.get, lambda one: np.array([one, None], dtype=object)])
def test_an_argument_that_hides_an_object_is_not_replayed(hides: Any) -> None:
    one = {"a": 2.0}
    hidden = hides(one)
    f = gradcore.compile(lambda x, h: x * (h("a") if callable(h) else h[0]["a"]))
    found = [f(ones(1), hidden).item() for _ in range(3)]
    one["a"] = 7.0
    assert [*found, f(ones(1), hidden).item()] == [2.0, 2.0, 2.0, 7.0]
    assert "whose state no guard can see" in f.traces[0]


@pytest.mark.parametrize("make", [lambda: np.array([[2.0], None], dtype=object), lambda: CellType([2.0])])
def test_what_hides_objects_is_not_replayed(make: Any) -> None:
    hidden = make()
    held = hidden[0] if isinstance(hidden, np.ndarray) else hidden.cell_contents
    f = gradcore.compile(lambda x: x * (hidden[0] if isinstance(hidden, np.ndarray) else hidden.cell_contents)[0])
    found = [f(ones(1)).item() for _ in range(3)]
    held[0] = 7.0
    assert [*found, f(ones(1)).item()] == [2.0, 2.0, 2.0, 7.0]
    assert "whose state no guard can see" in f.traces[0]


def test_the_sign_of_a_complex_zero_is_compared() -> None:
    f = gradcore.compile(lambda x, z: x * (2.0 if str(z) == "0j" else 7.0))
    assert [f(ones(1), z).item() for z in (0j, 0j, -0j, -0j)] == [2.0, 2.0, 7.0, 7.0]


def test_blocks_in_which_parametrized_parameters_are_kept_run_eagerly() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.utils.parametrize.register_parametrization(layer, "weight", type("Double", (nn.Module,), {
        "forward": lambda self, w: w * 2})())
    original = layer.parametrizations.weight.original  # type: ignore[union-attr]
    f, found = gradcore.compile(lambda x: layer(x).detach()), []
    with gradcore.no_grad():
        original.fill_(1.0)
        found += [f(ones(1)).item(), f(ones(1)).item()]
        for value in (2.0, 3.0):
            with nn.utils.parametrize.cached():
                for more in range(3):
                    original.fill_(value + more)
                    found.append(f(ones(1)).item())
        found.append(f(ones(1)).item())
    assert found == [2.0, 2.0, 4.0, 4.0, 4.0, 6.0, 6.0, 6.0, 10.0]
    assert any("which parametrize.cached() keeps" in trace for trace in f.traces)


def test_a_tensor_by_which_a_number_is_looked_up_may_be_an_argument() -> None:
    known, other = ones(1), ones(1)
    factors = {known: 7.0}
    f = gradcore.compile(lambda x: x * factors.get(x, 2.0))
    assert [f(x).item() for x in (other, other, known, known, other)] == [2.0, 2.0, 7.0, 7.0, 2.0]
    assert len(f.programs) == 1


def test_a_function_that_asks_for_its_thread_is_not_replayed() -> None:
    f = gradcore.compile(lambda x: x * (2.0 if threading.current_thread() is threading.main_thread() else 7.0))
    found = [f(ones(1)).item() for _ in range(2)]
    thread = threading.Thread(target=lambda: found.append(f(ones(1)).item()))
    thread.start()
    thread.join()
    assert found == [2.0, 2.0, 7.0] and "asks for the thread" in f.traces[0]
