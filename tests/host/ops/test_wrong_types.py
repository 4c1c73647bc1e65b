"""An argument of the wrong type: one TypeError that names the argument, its position, what it must be and what was given."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import numpy as np
import pytest

import gradcore
from gradcore import distributions as dist
from gradcore import optim
from gradcore.blame import _unforeseen
from gradcore.nn import functional as F
from tests.forms import Form, all_forms


def x() -> Any:
    return gradcore.ones(2, 3)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "none": (lambda: gradcore.topk(x(), None), "topk(): argument 'k' (position 2) must be int, not NoneType"),
    "a method": (lambda: x().topk(None), "topk(): argument 'k' (position 1) must be int, not NoneType"),
    "by keyword": (lambda: F.elu(x(), alpha="a"), "elu(): argument 'alpha' (position 2) must be float, not str: 'a'"),
    "keyword only": (lambda: gradcore.var(x(), dim=0, correction="a"), "'correction' must be float or None, not str: 'a'"),
    "a flag": (lambda: gradcore.eye(2, requires_grad=None), "eye(): argument 'requires_grad' must be bool, not NoneType"),
    "a float": (lambda: gradcore.eye(0.5), "eye(): argument 'n' (position 1) must be int, not float: 0.5"),
    "nan": (lambda: gradcore.histc(x(), float("nan")), "histc(): argument 'bins' (position 2) must be int, not float: nan"),
    "sum": (lambda: x().sum(1, [0]), "sum(): argument 'keepdim' (position 3) must be bool, not list: [0]"),
    "in a kernel": (lambda: x().amax(1, None), "amax(): argument 'keepdim' (position 2) must be bool, not NoneType"),
    "a sequence": (lambda: gradcore.rot90(x(), 1, None), "'dims' (position 3) must be sequence of int, not NoneType"),
    "of tensors": (lambda: gradcore.hstack(None), "hstack(): argument 'tensors' (position 1) must be sequence of Tensor, not"),
    "several lists": (lambda: gradcore.meshgrid([x()], [x()]), "meshgrid() expects tensors, but got [Tensor float32[2, 3]] of"),
    "one or more": (lambda: x().norm((1,)), "norm(): argument 'p' (position 1) must be float, str or None, not tuple: (1,)"),
    "a number for a tensor": (lambda: gradcore.float_power("a", x()), "(position 1) must be Tensor or float, not str: 'a'"),
    "items of a generator": (lambda: gradcore.hstack(k for k in range(3)), "hstack() expects tensors, but got 0 of type int"),
    "a bound": (lambda: gradcore.linspace("a", 1, 3), "linspace(): argument 'start' (position 1) must be Tensor or float"),
    "a long list": (lambda: gradcore.topk(x(), [0.5] * 1000), "must be int, not list: [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, ...]"),
    "a class": (lambda: gradcore.eye(int), "eye(): argument 'n' (position 1) must be int, not type: <class 'int'>"),
    "the class of tensors": (lambda: gradcore.float_power(gradcore.Tensor, 2), "must be Tensor or float, not type: <class"),
    "a long one": (lambda: gradcore.eye("a" * 1000), f"must be int, not str: '{'a' * 59}")}


@pytest.mark.parametrize("case", CASES)
def test_the_error_names_the_argument(case: str) -> None:
    call, text = CASES[case]
    live = len(gradcore.device("cpu").ledger.live)
    with pytest.raises(TypeError, match=re.escape(text)):
        call()
    assert len(gradcore.device("cpu").ledger.live) == live


@pytest.mark.parametrize("number", [np.int32, np.float32, np.bool, gradcore.tensor, bool])
def test_what_stands_for_a_number_is_not_blamed(number: Callable[[int], Any]) -> None:
    # The error is about the other argument.
    with pytest.raises(TypeError, match=re.escape("histc(): argument 'max' (position 4) must be float, not str: 'a'")):
        gradcore.histc(x(), 3, number(1), "a")


class Own:
    """What has no text of its own."""

    def __repr__(self) -> str:
        raise AssertionError("shown")


def test_no_error_of_an_argument_replaces_the_librarys() -> None:
    with pytest.raises(TypeError, match=re.escape("topk(): argument 'k' (position 2) must be int, not Own: <Own instance")):
        gradcore.topk(x(), Own())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="len\\(\\) of unsized object"):
        gradcore.rot90(x(), 1, np.array(1))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
def test_an_error_of_the_users_own_is_not_replaced() -> None:
    with pytest.raises(UserWarning, match="overload of addcmul_ is deprecated"):
        x().addcmul_(0.5, x(), x())
    y = x().requires_grad_()
    y.register_hook(lambda gradient: np.linalg.inv(np.zeros((2, 2))))
    with pytest.raises(np.linalg.LinAlgError):
        y.sum().backward(None, "a")  # type: ignore[arg-type]


class Replacing:
    """A library whose functions get ``value`` in the place of the plain argument with this number, of all that are given."""

    def __init__(self, library: Any, seen: list[str], number: int, value: Any) -> None:
        self.library, self.seen, self.number, self.value = library, seen, number, value

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.library, name)
        if isinstance(found, types.ModuleType):
            return Replacing(found, self.seen, self.number, self.value)
        return self.replacing(found) if inspect.isfunction(found) and name not in ("tensor", "manual_seed") else found

    def replacing(self, function: Any) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            row = list(args)
            for given, key in [(row, k) for k in range(len(row))] + [(named, k) for k in named]:
                if not hasattr(given[key], "requires_grad"):
                    self.seen.append(f"{function.__name__}, {key}")
                    if len(self.seen) == self.number:
                        given[key] = self.value
            return function(*row, **named)

        return call


def unforeseen(form: Form) -> Iterator[str]:
    """The calls of a form with one argument replaced that raise an error of Python's or NumPy's own."""
    values = form.values(np.float32)
    for value in (None, object()):
        number, seen = 1, [""]
        while number <= len(seen):
            seen = []
            try:
                form.call(Replacing(gradcore, seen, number, value), *(
                    o.show(gradcore.tensor(v)) for o, v in zip(form.operands, values, strict=True)))
            except Exception as error:
                # What NumPy says of a dtype is clear.
                if len(seen) >= number and _unforeseen(error.__traceback__) and "as a data type" not in str(error):
                    yield f"{seen[number - 1]} = {value}: {error!r}"
            number += 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", all_forms(), ids=str)
def test_no_error_comes_from_deep_inside(form: Form) -> None:
    assert not list(unforeseen(form))


def test_annotations_can_be_read() -> None:
    spaces = (gradcore, F, gradcore.linalg, gradcore.special, gradcore.nn.init, gradcore.Tensor)
    functions = {f for space in spaces for f in vars(space).values() if inspect.isfunction(f) and inspect.unwrap(f) is not f}
    assert len(functions) > 500
    for function in functions:
        get_type_hints(inspect.unwrap(function))


MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "an optimizer": (lambda: optim.Adam([x()], lr=None), "a learning rate must be a number, but got None of type NoneType"),
    "an array": (lambda: dist.Normal(np.ones(2), 1), "tensors or numbers, but got array([1., 1.]) of type ndarray"),
    "a distribution": (lambda: dist.Normal(None, 1), "must be tensors or numbers, but got None of type NoneType")}


@pytest.mark.parametrize("case", MADE)
def test_a_constructors_error_names_what_was_given(case: str) -> None:
    call, text = MADE[case]
    with pytest.raises(TypeError, match=re.escape(text)):
        call()
