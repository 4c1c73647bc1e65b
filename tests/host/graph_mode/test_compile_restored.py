"""Attributes and globals that have their former values when a function returns are no changes that a replay lacks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn

depth: Any = None


class Options:
    def __init__(self, value: Any = None) -> None:
        self.value, self.factor = value, 2.0

    def scaled(self, x: Any) -> Any:
        return x * (self.value or 1.0)

    @contextmanager
    def set(self, value: Any) -> Any:
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value, self.kept = 0, None

    def forward(self, x: Any) -> Any:
        self.value += 1
        self.kept = x * self.value
        y = self.kept * 2
        self.value -= 1
        self.kept = None
        return y


def a_context(one: Any, x: Any) -> Any:
    with one.set(one.factor):
        y = one.scaled(x)
    return y + one.scaled(x)


def a_global(one: Any, x: Any) -> Any:
    global depth
    before, depth = depth, one.factor
    y = x * depth
    depth = before
    return y * (depth or 1.0)


def another_value(one: Any, x: Any) -> Any:
    one.value = (one.value or 0) + 1
    return x * one.value


def one_of_two(one: Any, x: Any) -> Any:
    other = Options()
    (one or other).value = (one.value or 0) + 1
    one.factor += 1.0
    one.factor -= 1.0
    return x * one.value


def each_of_several(one: Any, x: Any) -> Any:
    for _ in range(3):
        one.value = (one.value or 0) + 1
    y = x * one.value
    one.value = one.value - 3 or None
    return y


@pytest.mark.parametrize("function", [a_context, a_global, another_value, one_of_two, each_of_several])
def test_each_call_leaves_what_an_eager_one_does(function: Callable[[Any, Any], Any]) -> None:
    def run(wrap: Any) -> list[Any]:
        global depth
        depth, one, found = None, Options(), []
        f = wrap(lambda x: function(one, x))
        for value in (None, 5, None):
            depth, one.value = value, value
            for _ in range(2):
                found += [f(gradcore.ones(1)).item(), one.value, depth]
        if function not in (another_value, one_of_two) and wrap is gradcore.compile:
            assert len(f.traces) == 2, f.explain()
        return found

    assert run(gradcore.compile) == run(lambda f: f)


def test_a_module_that_counts_how_deep_it_is_in_itself_is_replayed() -> None:
    layer = Counting()
    f = gradcore.compile(layer)
    assert [f(gradcore.ones(1)).item() for _ in range(3)] == [2.0] * 3 and len(f.traces) == 1
    layer.value = 2
    assert f(gradcore.ones(1)).item() == 6.0 and layer.value == 2 and layer.kept is None


def test_what_an_object_holds_of_which_nothing_else_is_known_is_a_reason() -> None:
    table = SimpleNamespace(one=Options(0), layer=nn.Linear(1, 1))

    def f(x: Any) -> Any:
        one = next(iter(vars(table).values()))
        one.value = 7
        return one.scaled(x)

    compiled = gradcore.compile(f)
    for _ in range(3):
        table.one.value = 0
        assert compiled(gradcore.ones(1)).item() == 7.0 and table.one.value == 7


class Cache:
    """Keys of former tokens, as packages for language models keep them: made in each call."""

    def __init__(self) -> None:
        self.keys, self.count = None, 0

    def add(self, key: Any) -> Any:
        if self.keys is None:
            self.begin(key)
        self.keys, self.count = gradcore.cat([self.keys, key]), self.count + 1
        return self.keys

    def begin(self, key: Any) -> None:
        self.keys = key * 0.0


def test_an_object_that_is_gone_when_the_function_returns_is_no_reason() -> None:
    def f(x: Any) -> Any:
        cache = Cache()
        return [cache.add(x) for _ in range(3)][-1].sum() * cache.count

    compiled = gradcore.compile(f)
    assert [compiled(gradcore.ones(2)).item() for _ in range(3)] == [18.0] * 3 and len(compiled.traces) == 1


def test_an_object_that_a_cache_keeps_is_a_reason() -> None:
    cached = lru_cache(Cache)

    @gradcore.compile
    def f(x: Any) -> Any:
        cached().count += 1
        return x * cached().count

    assert [f(gradcore.ones(1)).item() for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]
