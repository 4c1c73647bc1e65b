"""A compiled function is traced again when an attribute comes to hide where it had its value from: a metaclass, a descriptor, a
``__getattr__``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.conftest import collector
from tests.host.graph_mode.test_compile_reach import Case, check_traced_again

CASES: dict[str, Callable[[], Case]] = {}
case = collector(CASES)


@case
def an_attribute_of_a_metaclass_that_its_class_comes_to_hide() -> Case:
    class Meta(type):
        value = 2.0

    class Settings(metaclass=Meta):
        pass

    return lambda x: x * Settings.value, lambda: setattr(Settings, "value", 7.0)


class Wrapper:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@case
def an_attribute_of_what_an_object_wraps() -> Case:
    inner = SimpleNamespace(value=2.0)
    one = Wrapper(inner)
    return lambda x: x * one.value, lambda: setattr(inner, "value", 7.0)


@case
def an_attribute_that_a_wrapper_comes_to_hide() -> Case:
    one = Wrapper(SimpleNamespace(value=2.0))
    return lambda x: x * one.value, lambda: setattr(one, "value", 7.0)


@case
def a_method_that_the_class_of_a_wrapper_comes_to_have() -> Case:
    class Other(Wrapper):
        pass

    one = Other(SimpleNamespace(value=lambda: 2.0))
    return lambda x: x * one.value(), lambda: setattr(Other, "value", lambda self: 7.0)


@case
def an_attribute_that_a_class_comes_to_hide_from_its_metaclass() -> Case:
    class Meta(type):
        def __getattr__(self, name: str) -> float:
            return 2.0

    class Settings(metaclass=Meta):
        pass

    return lambda x: x * Settings.value, lambda: setattr(Settings, "value", 7.0)


@case
def an_attribute_that_a_module_comes_to_have() -> Case:
    module: Any = ModuleType("lazy")
    module.__getattr__ = lambda name: 2.0
    return lambda x: x * module.value, lambda: setattr(module, "value", 7.0)


class Times:
    def by(self, factor: float, x: Any) -> Any:
        return x * factor


@case
def a_method_with_arguments_of_its_own() -> Case:
    class Twice(Times):
        run = partialmethod(Times.by, 2.0)

    one = Twice()
    return lambda x: one.run(x), lambda: setattr(Twice, "run", partialmethod(Times.by, 7.0))


@case
def a_method_with_arguments_of_its_own_that_a_class_comes_to_hide() -> Case:
    class Twice(Times):
        run = partialmethod(Times.by, 2.0)

    class Other(Twice):
        pass

    one = Other()
    return lambda x: one.run(x), lambda: setattr(Other, "run", partialmethod(Times.by, 7.0))


@pytest.mark.parametrize("name", CASES)
def test_it_is_traced_again(name: str) -> None:
    check_traced_again(CASES[name])
