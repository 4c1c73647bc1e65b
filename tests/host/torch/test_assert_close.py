"""``testing.assert_close``: what it accepts and refuses, and its texts, are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises

NAN, INF = float("nan"), float("inf")

#: By name: (actual, expected, options) of a library.
CASES: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "same": lambda t: (t.arange(3.0), t.arange(3.0)),
    "near": lambda t: (t.tensor([1.0, 2.0]), t.tensor([1.000001, 2.000002])),
    "apart": lambda t: (t.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 7.5]]), t.tensor([[1.0, 2.5, 3.0], [4.0, 5.0, 6.0]])),
    "double": lambda t: (t.tensor([1.0], dtype=t.float64), t.tensor([1.000001], dtype=t.float64)),
    "half": lambda t: (t.tensor([1.0, 2.0], dtype=t.float16), t.tensor([1.0005, 2.1], dtype=t.float16)),
    "bfloat16": lambda t: (t.tensor([1.0, 2.0]).bfloat16(), t.tensor([1.01, 2.2]).bfloat16()),
    "integers": lambda t: (t.tensor([1, 2, 5]), t.tensor([1, 3, 3])),
    "integers near": lambda t: (t.tensor([1, 2, 5]), t.tensor([1, 3, 5]), {"rtol": 0.0, "atol": 1.0}),
    "uint8": lambda t: (t.tensor([1, 0], dtype=t.uint8), t.tensor([1, 255], dtype=t.uint8)),
    "bools": lambda t: (t.tensor([True, False]), t.tensor([True, True])),
    "scalar": lambda t: (t.tensor(1.0), t.tensor(1.5)), "scalar of 0": lambda t: (t.tensor(1), t.tensor(0)),
    "nan": lambda t: (t.tensor([NAN, 1.0]), t.tensor([NAN, 1.0])),
    "nan equal": lambda t: (t.tensor([NAN, 1.0]), t.tensor([NAN, 1.0]), {"equal_nan": True}),
    "nan once": lambda t: (t.tensor([2.0, NAN]), t.tensor([1.0, 1.0]), {"equal_nan": True}),
    "infinite": lambda t: (t.tensor([INF, -INF]), t.tensor([INF, INF])),
    "zeros": lambda t: (t.tensor([0.0, 1.0]), t.tensor([0.5, 0.0])),
    "exactly": lambda t: (t.tensor([1.0, 2.0]), t.tensor([1.0, 2.000001]), {"rtol": 0, "atol": 0}),
    "one tolerance": lambda t: (t.ones(2), t.ones(2), {"rtol": 0.1}),
    "other tolerance": lambda t: (t.ones(2), t.ones(2), {"atol": 0.1}),
    "strides": lambda t: (t.ones(2, 3), t.ones(3, 2).t(), {"check_stride": True}),
    "strides unseen": lambda t: (t.ones(2, 3), t.ones(3, 2).t()),
    "dtypes unseen": lambda t: (t.ones(2), t.ones(2, dtype=t.float64), {"check_dtype": False}),
    "int and float": lambda t: (t.tensor([1, 2]), t.tensor([1.0, 2.5]), {"check_dtype": False}),
    "empty": lambda t: (t.ones(0, 3), t.zeros(0, 3)),
    "meta": lambda t: (t.ones(2, device="meta"), t.zeros(2, device="meta")),
    "lists": lambda t: ([t.ones(2), t.zeros(2)], [t.ones(2), t.ones(2)]), "lengths": lambda t: ([t.ones(2)], []),
    "nested": lambda t: ({"a": (t.ones(2), {"b": t.ones(1)})}, {"a": [t.ones(2), {"b": t.zeros(1)}]}),
    "keys": lambda t: ({"a": 1, "c": 2}, {"a": 1, "b": 2}), "numbers": lambda t: (1.0, 1.1), "none": lambda t: (None, 1),
    "numbers near": lambda t: (1.0, 1.00000001), "ints": lambda t: (1, 2), "int or float": lambda t: (1, 1.0),
    "bool": lambda t: (True, False), "numpy": lambda t: (np.float32(1.0), 1.5), "arrays": lambda t: (
        np.array([1.0, 2.0]), np.array([1.0, 3.0])), "nans": lambda t: (NAN, NAN), "nans equal": lambda t: (
            NAN, NAN, {"equal_nan": True}), "complex": lambda t: (1j, 1j), "strings": lambda t: ("a", "a"),
    "a parameter": lambda t: (t.nn.Parameter(t.ones(2)), t.ones(2)),
    "a parameter alone": lambda t: (t.nn.Parameter(t.ones(2)), t.ones(2), {"allow_subclasses": False}),
    "own words": lambda t: (t.ones(2), t.zeros(2), {"msg": "not so"}),
    "more words": lambda t: ([t.ones(2)], [t.zeros(2)], {"msg": lambda text: f"so: {text}."}),
    "own words for lengths": lambda t: ([1], [1, 2], {"msg": "not so"}),
    "own words for keys": lambda t: ({"a": 1}, {"b": 1}, {"msg": lambda text: f"so: {text}."}),
    "own words for types": lambda t: ([1], ["a"], {"msg": "not so"}),
    "own words for tolerances": lambda t: (1.0, 2.0, {"msg": "not so", "rtol": 0.5}),
}


def told(t: Any, case: Callable[[Any], tuple[Any, ...]]) -> str:
    actual, expected, *options = case(t)
    try:
        t.testing.assert_close(actual, expected, **dict(*options))
    except (AssertionError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}".replace("torch.", "gradcore.").replace("nn.parameter.", "")
    return "close"


@pytest.mark.oracle
@pytest.mark.parametrize("name", CASES)
def test_the_outcome_is_torchs(name: str, torch: Any) -> None:
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 is of the package ml_dtypes")
    theirs, ours = told(torch, CASES[name]), told(gradcore, CASES[name])
    # Where a class is defined is each library's own.
    for path in ("_tensor.", "gradcore.nn.parameter.", "gradcore.nn."):
        ours, theirs = ours.replace(path, ""), theirs.replace(path, "")
    assert ours == theirs


def test_attributes_that_differ_are_named() -> None:
    for actual, expected, text in (
            (gradcore.ones(2), gradcore.ones(3), "The values for attribute 'shape' do not match:"),
            (gradcore.ones(2), gradcore.ones(2, dtype=gradcore.float64),
             "The values for attribute 'dtype' do not match: float32 != float64."),
            (gradcore.ones(2), gradcore.ones(2, device="meta"),
             "The values for attribute 'device' do not match: cpu != meta.")):
        with raises(AssertionError, text):
            gradcore.testing.assert_close(actual, expected)


def test_it_allocates_no_device_memory() -> None:
    x, y = gradcore.ones(50, requires_grad=True), gradcore.zeros(50)
    gradcore.reset_peak_memory_stats()
    before = gradcore.memory_allocated()
    with raises(AssertionError, "Mismatched elements: 50 / 50 (100.0%)"):
        gradcore.testing.assert_close(x, y)
    assert gradcore.max_memory_allocated() == before
