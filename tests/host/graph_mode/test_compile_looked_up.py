"""A compiled function is traced again when what it looks up by an object, by names in strings, or all at once, has changed."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import math
import threading
import typing
from abc import ABCMeta
from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

import gradcore
from gradcore import nn
from tests.conftest import collector
from tests.host.graph_mode.test_compile_reach import Case, check_traced_again

CASES: dict[str, Callable[[], Case]] = {}
case = collector(CASES)


def filled(value: float) -> Any:
    return gradcore.tensor([value])


@case
def a_number_by_a_parameter() -> Case:
    p = nn.Parameter(filled(2.0))
    factors = {p: 2.0}
    return lambda x: x * factors[p], lambda: factors.__setitem__(p, 7.0)


class Made(dict[str, Any]):
    """What it gives is made of what it has, each time."""

    def __getitem__(self, key: str) -> Any:
        kind, options = super().__getitem__(key)
        return kind(**options)


@case
def a_layer_made_of_what_a_dict_has() -> Case:
    layers = Made(plain=(nn.LeakyReLU, {"negative_slope": 2.0}), other=(nn.ReLU, {}))
    return lambda x: -layers["plain"](-x), lambda: layers.__setitem__("plain", (nn.LeakyReLU, {"negative_slope": 7.0}))


@case
def an_attribute_that_a_text_names() -> Case:
    options, template = SimpleNamespace(value=2.0), "{0.value:g}"
    return lambda x: x * float(template.format(options)), lambda: setattr(options, "value", 7.0)


@case
def all_that_pickle_would_keep() -> Case:
    options = SimpleNamespace(value=2.0)
    return lambda x: x * options.__reduce_ex__(4)[2]["value"], lambda: setattr(options, "value", 7.0)


@case
def an_attribute_that_an_item_is_given() -> Case:
    class Number(float):
        pass

    numbers = [Number(2.0)]
    return lambda x: x * getattr(numbers[0], "value", numbers[0]), lambda: setattr(numbers[0], "value", 7.0)


@case
def an_attribute_by_a_function_that_is_imported_around() -> Case:
    from operator import attrgetter

    options = SimpleNamespace(value=2.0)
    return lambda x: x * attrgetter("value")(options), lambda: setattr(options, "value", 7.0)


@case
def whether_a_namespace_has_an_attribute() -> Case:
    options = Namespace(scale=2.0)
    return lambda x: x * (7.0 if "value" in options else 2.0), lambda: setattr(options, "value", 7.0)


@case
def whether_namespaces_are_equal() -> Case:
    options = Namespace(scale=2.0)
    return lambda x: x * (2.0 if options == Namespace(scale=2.0) else 7.0), lambda: setattr(options, "scale", 7.0)


@case
def a_namespace_as_a_text() -> Case:
    options = Namespace(scale=2.0)
    return lambda x: x * float(str(options)[-4:-1]), lambda: setattr(options, "scale", 7.0)


@case
def whether_an_object_has_what_a_protocol_asks_for() -> Case:
    class Options(SimpleNamespace):
        pass

    @typing.runtime_checkable
    class Scaled(typing.Protocol):
        scale: float

    options = Options()
    return lambda x: x * (7.0 if isinstance(options, Scaled) else 2.0), lambda: setattr(options, "scale", 1.0)


@case
def whether_a_class_is_registered_with_an_abstract_one() -> Case:
    kind, options = ABCMeta("Kind", (), {"__module__": "users"}), SimpleNamespace()
    return lambda x: x * (7.0 if isinstance(options, kind) else 2.0), lambda: kind.register(SimpleNamespace)


@case
def a_default_in_a_signature() -> Case:
    def scaled(x: Any, by: float = 2.0) -> Any:
        return x * by

    return (lambda x: x * inspect.signature(scaled).parameters["by"].default,
            lambda: setattr(scaled, "__defaults__", (7.0,)))


@case
def numbers_of_a_class() -> Case:
    class Options:
        scale, value = 1.0, 2.0

    return (lambda x: x * math.prod(v for n, v in vars(Options).items() if not n.startswith("_")),
            lambda: setattr(Options, "value", 7.0))


@case
def numbers_beside_a_layer() -> Case:
    options = SimpleNamespace(layer=nn.Linear(1, 1), value=2.0)
    return lambda x: x * vars(options)["val" + "ue".lower()], lambda: setattr(options, "value", 7.0)


@case
def settings_with_a_device_a_dtype_and_a_class() -> Case:
    options = SimpleNamespace(device=gradcore.device("cpu"), dtypes=[gradcore.float32], kind=nn.Linear, value=2.0)
    return lambda x: x * dict(**vars(options))["value"], lambda: setattr(options, "value", 7.0)


@case
def a_tensor_by_a_parameter_and_a_name() -> Case:
    p, one = nn.Parameter(filled(2.0)), SimpleNamespace()
    one.state = {(p, "factor"): filled(2.0)}
    return lambda x: x * one.state[p, "factor"], lambda: one.state.__setitem__((p, "factor"), filled(7.0))


@case
def whether_a_parameter_is_in_a_set() -> Case:
    p = nn.Parameter(filled(2.0))
    twice = {p}
    return lambda x: x * (2.0 if p in twice else 7.0), twice.clear


@case
def an_object_in_a_set() -> Case:
    all_of_them = frozenset((type("Settings", (), {"value": 2.0, "__module__": "users"}),))
    (one,) = all_of_them
    return lambda x: x * sum(each.value for each in all_of_them), lambda: setattr(one, "value", 7.0)


@case
def an_item_of_a_weak_dictionary() -> Case:
    layer = nn.Linear(1, 1)
    factors = WeakKeyDictionary({layer: 2.0})
    return lambda x: x * factors[layer], lambda: factors.__setitem__(layer, 7.0)


@case
def an_event() -> Case:
    late = threading.Event()
    return lambda x: x * (7.0 if late.is_set() else 2.0), late.set


@case
def getattr_in_a_loop_over_names() -> Case:
    one = SimpleNamespace(scale=1.0, value=2.0)
    return lambda x: x * math.prod(getattr(one, name) for name in ("scale", "value")), lambda: setattr(one, "value", 7.0)


@case
def hasattr_in_a_loop_over_names() -> Case:
    one = SimpleNamespace(scale=1.0)
    return (lambda x: x * (7.0 if all(hasattr(one, name) for name in ("scale", "value")) else 2.0),
            lambda: setattr(one, "value", 7.0))


@case
def all_attributes_of_an_object() -> Case:
    one = SimpleNamespace(scale=1.0, inner=SimpleNamespace(value=2.0))
    return lambda x: x * sum(vars(one.inner).values()) * one.scale, lambda: setattr(one.inner, "value", 7.0)


@case
def an_attribute_more() -> Case:
    one = SimpleNamespace(value=2.0)
    return lambda x: x * sum(one.__dict__.values()), lambda: setattr(one, "more", 5.0)


@case
def a_global_that_hides_a_builtin() -> Case:
    variables: dict[str, Any] = {}
    exec("def f(x): return x * max(1.0, 2.0)", variables)
    return variables["f"], lambda: variables.__setitem__("max", lambda *given: 7.0)


@case
def a_global_whose_absence_is_caught() -> Case:
    variables: dict[str, Any] = {}
    exec("def f(x):\n    try:\n        return x * factor\n    except NameError:\n        return x * 2.0", variables)
    return variables["f"], lambda: variables.__setitem__("factor", 7.0)


@case
def where_a_range_stops() -> Case:
    one = SimpleNamespace(steps=range(0, 2, 7))
    return lambda x: x * one.steps.stop, lambda: setattr(one, "steps", range(0, 7, 7))


@case
def an_attribute_with_the_name_of_a_keyword() -> Case:
    kind = type("Kind", (), {"class": 2.0, "method": lambda self: None, "__module__": "users"})
    one = kind()
    return lambda x: x * getattr(one, "class"), lambda: setattr(kind, "class", 7.0)


@dataclasses.dataclass
class Settings:
    value: float = 2.0
    inner: Any = None


@case
def a_dataclass_as_a_dict() -> Case:
    one = Settings(1.0, Settings())
    return lambda x: x * dataclasses.asdict(one)["inner"]["value"], lambda: setattr(one.inner, "value", 7.0)


@case
def two_dataclasses_that_are_compared() -> Case:
    one, other = Settings(), Settings()
    return lambda x: x * (2.0 if one == other else 7.0), lambda: setattr(other, "value", 7.0)


class Described(dict[str, float]):
    value = 1.0


@case
def an_attribute_of_a_dict() -> Case:
    one = SimpleNamespace(factors=Described(a=1.0))
    one.factors.value = 2.0
    return lambda x: x * one.factors["a"] * one.factors.value, lambda: setattr(one.factors, "value", 7.0)


@dataclasses.dataclass(slots=True)
class Base:
    value: float = 2.0


@dataclasses.dataclass(slots=True)
class Derived(Base):
    other: float = 1.0


@case
def all_slots_of_a_derived_class() -> Case:
    one = Derived()
    return lambda x: x * dataclasses.asdict(one)["value"], lambda: setattr(one, "value", 7.0)


class Keyed(dict[str, Any]):
    """A dict whose keys are attributes, which raises KeyError for all others."""

    __getattr__ = dict.__getitem__


@case
def a_key_of_a_dict_of_a_class() -> Case:
    class Network(nn.Module):
        options = Keyed(value=2.0)

        def __init__(self) -> None:
            super().__init__()
            self.own = Keyed(value=1.0)

        def forward(self, x: Any) -> Any:
            return x * self.options.value * self.own.value

    return Network(), lambda: Network.options.update(value=7.0)


class Refusing:
    """An object with a slot, which raises for all other attributes."""

    __slots__ = ("value", "empty")

    def __init__(self) -> None:
        self.value = 2.0

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def scale(self, x: Any) -> Any:
        return x * self.value


@case
def an_attribute_of_an_object_that_raises_for_others() -> Case:
    one = Refusing()
    return one.scale, lambda: setattr(one, "value", 7.0)


@pytest.mark.parametrize("name", CASES)
def test_it_is_traced_again(name: str) -> None:
    check_traced_again(CASES[name])


def test_what_changes_beside_settings_that_are_read_as_a_whole_costs_no_trace() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model, self.settings, self.count = nn.Linear(1, 1), SimpleNamespace(value=2.0), 0

        def run(self, x: Any) -> Any:
            return x * sum(vars(self.settings).values())

    trainer = Trainer()
    f = gradcore.compile(trainer.run)
    for _ in range(4):
        trainer.count += 1
        f(gradcore.ones(1))
    assert len(f.traces) == 1, f.explain()
    del trainer, f
    gc.collect()
