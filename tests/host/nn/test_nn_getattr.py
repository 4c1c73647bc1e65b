"""Modules that define ``__getattr__``, or call that of the base class, find what PyTorch's find."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest

import gradcore
from gradcore import nn


def wrappers(t: Any) -> Any:
    class Wrapper(t.nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("module"), name)

        def forward(self, x: Any) -> Any:
            return self.module(x) * self.in_features

    wrapped = Wrapper(Wrapper(t.nn.Linear(2, 3)))
    t.nn.init.ones_(wrapped.weight)
    t.nn.init.ones_(wrapped.bias)
    again = copy.deepcopy(wrapped)
    found = again(t.ones(1, 2)).tolist()
    return wrapped.in_features, again.out_features, hasattr(wrapped, "other"), list(again.state_dict()), found


def calls_by_name(t: Any) -> Any:
    class Named(t.nn.BatchNorm1d):
        def all(self) -> Any:
            return [getattr(self.__getattr__(name), "shape", None) for name in ("weight", "running_mean", "inner")]

    class Derived(Named):
        pass

    layer = Derived(2)
    layer.inner = t.nn.ReLU()
    found = [None if shape is None else tuple(shape) for shape in layer.all()]
    layer.register_parameter("none", None)
    return found, layer.__getattr__("none"), hasattr(layer, "other")


def mixins(t: Any) -> Any:
    class Defaults:
        def __getattr__(self, name: str) -> Any:
            return 5 if name == "five" else super().__getattr__(name)  # type: ignore[misc]

    class Layer(Defaults, t.nn.Linear):
        pass

    layer = Layer(2, 3)
    return layer.five, tuple(layer.weight.shape), hasattr(layer, "six")


def decorated(t: Any) -> Any:
    def passed(function: Any) -> Any:
        @functools.wraps(function)
        def called(*args: Any) -> Any:
            return function(*args)

        return called

    class Read(t.nn.Module):
        @property
        def one(self) -> Any:
            return super().__getattr__("inner")

    class Cached(t.nn.Module):
        @functools.cached_property
        def one(self) -> Any:
            return super().__getattr__("inner")

    class Wrapped(t.nn.Module):
        @passed
        def get(self) -> Any:
            return super().__getattr__("inner")

        one = property(get)

    class OfClass(t.nn.Module):
        @classmethod
        def get(cls, self: Any) -> Any:
            return super(cls, self).__getattr__("inner")

        one = property(lambda self: self.get(self))

    found = []
    for kind in (Read, Cached, Wrapped, OfClass):
        layer = kind()
        layer.inner = t.nn.ReLU()
        found.append(layer.one is layer.inner)
    return found


def beside_others(t: Any) -> Any:
    T = TypeVar("T")

    class Five:
        def __getattr__(self, name: str) -> Any:
            return 5

    class Hidden(t.nn.Module, Five):
        pass

    class Own(t.nn.Module):
        def __getattr__(self, name: str) -> Any:
            return super().__getattr__(name)

    class Typed(t.nn.Module, Generic[T]):
        def __getattr__(self, name: str) -> Any:
            return super().__getattr__(name)

    class OwnTyped(Own, Generic[T]):
        pass

    class Both(OwnTyped, Typed):  # type: ignore[type-arg]
        pass

    return hasattr(Hidden(), "five"), hasattr(Both(), "five"), Typed[int]().training


def errors(t: Any) -> Any:
    class Early(t.nn.Module):
        def __init__(self) -> None:
            self.other = self.missing
            super().__init__()

        def __getattr__(self, name: str) -> Any:
            return super().__getattr__(name)

    with pytest.raises(AttributeError) as raised:
        Early()
    return str(raised.value)


@pytest.mark.oracle
@pytest.mark.parametrize("case", [wrappers, calls_by_name, mixins, decorated, beside_others, errors],
                         ids=lambda case: case.__name__)
def test_getattr(case: Callable[[Any], Any], torch: Any) -> None:
    assert case(gradcore) == case(torch)


def test_other_classes_look_for_attributes_as_before() -> None:
    class Plain(nn.Linear):
        pass

    assert not hasattr(nn.Linear, "__getattr__") and not hasattr(Plain, "__getattr__")


def test_a_compiled_wrapper() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)  # type: ignore[misc]
            except AttributeError:
                return getattr(super().__getattr__("module"), name)  # type: ignore[misc]

        def forward(self, x: gradcore.Tensor) -> gradcore.Tensor:
            return self.module(x) * self.in_features

    wrapped, x = Wrapper(nn.Linear(2, 3)), gradcore.ones(4, 2)
    compiled = gradcore.compile(wrapped)
    for _ in range(3):
        assert compiled(x).tolist() == wrapped(x).tolist()


def test_a_member_that_a_property_hides_can_be_deleted() -> None:
    """As a manifold of geoopt's does with the curvature that it computes of another parameter."""
    class Ball(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("c", gradcore.ones(1))
            self._parameters["k"] = nn.Parameter(gradcore.ones(1) * 3)

        @property
        def k(self) -> Any:
            return -self.c

    ball = Ball()
    assert ball.k.item() == -1 and [*ball.state_dict()] == ["k", "c"]
    assert ball._parameters.pop("k").item() == 3 and ball.k.item() == -1 and [*ball.state_dict()] == ["c"]
    del ball.c
    with pytest.raises(AttributeError):
        del ball.c
