"""Compiled containers have the length and the items of the module, and other compiled modules have neither."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sized
from typing import Any

import pytest

import gradcore
from gradcore import nn


@pytest.mark.parametrize("kind", [lambda a, b: nn.Sequential(a, b), lambda a, b: nn.ModuleList([a, b])])
def test_a_list_of_modules(kind: Callable[..., Any]) -> None:
    a, b = nn.Linear(4, 4), nn.ReLU()
    compiled = gradcore.compile(kind(a, b))
    assert len(compiled) == 2 and compiled
    assert compiled[0] is a and compiled[-1] is b
    assert [*compiled] == [*reversed([*reversed(compiled)])] == [a, b]
    assert b in compiled and nn.ReLU() not in compiled
    assert isinstance(compiled, Sized) and isinstance(compiled, Iterable)
    assert [*compiled[1:]] == [b]
    with pytest.raises(IndexError, match="index 2 is out of range of 2 modules"):
        compiled[2]
    assert len(copy.deepcopy(compiled)) == 2 and isinstance(compiled, gradcore.program.Compiled)
    assert not gradcore.compile(nn.Sequential())


def test_a_dict_of_modules() -> None:
    a, b = nn.Linear(4, 4), nn.ReLU()
    compiled = gradcore.compile(nn.ModuleDict({"a": a, "b": b}))
    assert len(compiled) == 2 and [*compiled] == ["a", "b"] and compiled["b"] is b
    assert "a" in compiled and "c" not in compiled
    compiled["c"] = b
    del compiled["a"]
    assert [*compiled] == ["b", "c"]


def test_a_layer_that_takes_the_place_of_another_is_replayed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled, x = gradcore.compile(model), gradcore.ones(2, 4)
    for _ in range(2):
        with gradcore.no_grad():
            assert [compiled(x).tolist() for _ in range(3)] == [model(x).tolist()] * 3
        compiled[0] = nn.Linear(4, 4)
    assert len(compiled.traces) == 2


def test_a_module_without_items_has_none_when_it_is_compiled() -> None:
    compiled: Any = gradcore.compile(nn.Linear(4, 4))
    assert compiled and not isinstance(compiled, (Sized, Iterable))
    for use, text in ((lambda: len(compiled), "has no len"), (lambda: compiled[0], "not subscriptable"),
                      (lambda: [*compiled], "iterable"), (lambda: 1 in compiled, "iterable")):
        with pytest.raises(TypeError, match=f"CompiledModule.*{text}|must be an iterable, not CompiledModule"):
            use()
