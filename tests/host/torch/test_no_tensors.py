"""What is given in a tensor's place and is none: every public function says so by a TypeError, as PyTorch's do."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.functional import mathematics
from gradcore.missing import torch_names
from gradcore.nn import functional as F
from tests.forms import all_forms

NO_TENSORS: tuple[Any, ...] = (3, 2.5, True, None, "a", [1, 2], np.ones(2))
PARTS = {"": gradcore, "nn.functional": F, "nn.init": gradcore.nn.init, "linalg": gradcore.linalg,
         "special": gradcore.special, "Tensor": gradcore.Tensor}


def functions() -> Iterator[tuple[str, str, Any]]:
    """The path, the name and the function of all that PyTorch has too, methods included."""
    for path, part in PARTS.items():
        for name in torch_names()[path]:
            function = inspect.getattr_static(part, name, None)
            # Settings are for a whole process; a file and a stream are no tensors.
            if inspect.isfunction(function) and not name.startswith(("set_", "use_")) and name not in (
                    "load", "save", "record_stream"):
                yield path, name, function


def raised_in(trace: TracebackType | None) -> str:
    """The name of the module that raised what has this traceback."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals["__name__"])


def is_blurred(call: Callable[[], Any]) -> bool:
    """Does the call raise an AttributeError of the library's own code? Other errors may well come first."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except AttributeError as error:
        return raised_in(error.__traceback__).startswith("gradcore.")
    except Exception:
        return False
    return False


def test_every_function_refuses_it() -> None:
    blurred, calls = [], 0
    for path, name, function in functions():
        code, defaults = inspect.unwrap(function).__code__, inspect.unwrap(function).__defaults__ or ()
        count = max(code.co_argcount - len(defaults), 1)
        for k in range(path == "Tensor", count):
            for other in NO_TENSORS:
                # Anew, since a function may write to them.
                args = [gradcore.ones(2, 2) for _ in range(count)]
                calls += 1
                if is_blurred(lambda f=function, a=(*args[:k], other, *args[k + 1:]): f(*a)):  # type: ignore[misc]
                    blurred.append((path, name, k, other))
    assert not blurred
    assert calls > 3000


def test_every_sample_call_refuses_it() -> None:
    for form in all_forms():
        tensors = [operand.show(gradcore.tensor(value)) for operand, value in
                   zip(form.operands, form.values(np.float32), strict=True)]
        for k in range(len(tensors)):
            for other in NO_TENSORS:
                assert not is_blurred(lambda f=form.call, a=(*tensors[:k], other, *tensors[k + 1:]): f(gradcore, *a)), (
                    str(form), k, other)


def x() -> Any:
    return gradcore.ones(2, 2)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "sum": (lambda: gradcore.sum(3), "sum(): argument 'input' (position 1) must be Tensor, not int"),
    "mean": (lambda: gradcore.mean(None), "mean(): argument 'input' (position 1) must be Tensor, not NoneType"),
    "matmul": (lambda: gradcore.matmul(3, x()), "matmul(): argument 'input' (position 1) must be Tensor, not int"),
    "a method": (lambda: x().dot(True), "dot(): argument 'tensor' (position 1) must be Tensor, not bool"),
    "by keyword": (lambda: x().dot(tensor="a"), "dot(): argument 'tensor' (position 1) must be Tensor, not str"),
    "the second": (lambda: F.linear(x(), True), "linear(): argument 'weight' (position 2) must be Tensor, not bool"),
    "a list": (lambda: F.softmax([1, 2], 0), "argument 'input' (position 1) must be Tensor, not list: convert [1, 2] with"),
    "in a list": (lambda: gradcore.cat([x(), 3]), "cat() expects tensors, but got 3 of type int: convert it with"),
    "in a row": (lambda: gradcore.meshgrid(3), "meshgrid() expects tensors, but got 3 of type int"),
    "a tensor for a list": (lambda: gradcore.cat(x()), "cat(): argument 'tensors' (position 1) must be tuple of Tensors, not"),
    "a number for a list": (lambda: gradcore.stack(3), "stack(): argument 'tensors' (position 1) must be tuple of Tensors"),
    "in place": (lambda: gradcore.xlogy_(3, x()), "xlogy_(): argument 'input' (position 1) must be Tensor, not int"),
    "known by its name alone": (lambda: gradcore.unique(3), "unique(): argument 'input' (position 1) must be Tensor"),
    "equation": (lambda: gradcore.einsum(3, x()), "einsum(): argument 'equation' (position 1) must be str, not int")}


@pytest.mark.parametrize("case", CASES)
def test_the_error_names_the_argument(case: str) -> None:
    call, text = CASES[case]
    with pytest.raises(TypeError, match=re.escape(text)):
        call()


@pytest.mark.parametrize("call, text", [
    (lambda x: gradcore.sum([x, x]), "must be Tensor, not list: convert [Tensor float32[2, 2], Tensor float32[2, 2]]"),
    (lambda x: gradcore.nn.Flatten()([x]), "Flatten() expects tensors, but got [Tensor float32[2, 2]] of type list"),
    (lambda x: gradcore.nn.Flatten()({"x": (x,)}), "but got {'x': (Tensor float32[2, 2],)} of type dict"),
    (lambda x: x.dot([x]), "dot(): argument 'tensor' (position 1) must be Tensor, not list: convert [Tensor float32[2, 2]]"),
    (lambda x: gradcore.sum(x.max(0)), "must be Tensor, not Ranked: (Tensor float32[2], Tensor int64[2])"),
    (lambda x: x.view([x]), "a size must be an int, but got Tensor float32[2, 2] of type Tensor in [Tensor float32[2, 2]]")])
def test_no_values_are_read_for_the_error(call: Callable[[Any], Any], text: str) -> None:
    """In a trace that would be an error of its own."""
    for function in (call, gradcore.compile(call)):
        with pytest.raises(TypeError, match=re.escape(text)):
            function(x())


@pytest.mark.parametrize("call", [lambda: gradcore.sum(x()), lambda: F.softmax(x(), 0), lambda: x().softmax(dim=0),
                                  lambda: gradcore.nn.Softmax(0)(x()), lambda: gradcore.softmax(x(), 0, out=x())])
def test_an_error_of_the_library_itself_blames_no_argument(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    inside = inspect.unwrap(gradcore.is_floating_point)
    broken = SimpleNamespace(sum=lambda *args, **attrs: inside(None), softmax=lambda *args, **attrs: inside(None))
    for module, ops in ((mathematics, "reduce"), (mathematics, "normalizers"), (F, "normalizers")):
        monkeypatch.setattr(module, ops, broken)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'spec'"):
        call()
