"""Python's operators between a tensor and objects of other classes."""

from __future__ import annotations

import operator
from typing import Any

import pytest

import gradcore

#: The operator of the right operand's class, by the name of the function in ``operator``; otherwise with an r in front.
TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
NAMES = ("add sub mul truediv pow floordiv mod matmul and or xor lshift rshift lt le gt ge").split()


def _turned(name: str) -> str:
    return f"__{TURNED.get(name, f'r{name}')}__"


def _says(name: str) -> Any:
    return lambda self, other: (name, type(other).__name__)


#: As a quantity with a unit would be.
Quantity: Any = type("Quantity", (), {_turned(name): _says(_turned(name)) for name in NAMES})


def _function(name: str) -> Any:
    return getattr(operator, f"{name}_" if name in ("and", "or") else name)


@pytest.mark.parametrize("name", NAMES)
def test_another_class_may_define_an_operator_with_a_tensor_on_the_left(name: str) -> None:
    found = _turned(name), "Tensor"
    assert _function(name)(gradcore.ones(2), Quantity()) == found
    if in_place := getattr(operator, f"i{name}", None):
        assert in_place(gradcore.ones(2), Quantity()) == found


@pytest.mark.parametrize("other", ["text", [1.0], object(), None])
@pytest.mark.parametrize("name", NAMES)
def test_other_operands_raise_errors_that_name_them(name: str, other: Any) -> None:
    with pytest.raises(TypeError, match=f"{type(other).__name__}|None|expects tensors"):
        _function(name)(gradcore.ones(2), other)
