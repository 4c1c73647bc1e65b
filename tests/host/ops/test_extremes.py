"""The maximum of an array and a number, computed in rows: NumPy's bits, called directly and in a replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.devices.calls import Changing, KernelCall
from gradcore.devices.host.extremes import extreme
from gradcore.devices.host.tape import noted

SIZES = (1, 127, 128, 8191, 8192, 8193, 30_000, 65_536)


def sample(size: int, dtype: Any) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(size).standard_normal(size).astype(dtype)
    x[::7], x[1::11], x[2::13], x[3::17] = -0.0, np.nan, np.inf, -np.inf
    return x


def same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


def run(calls: list[KernelCall]) -> None:
    for function, args in calls:
        function(*args)


@pytest.mark.parametrize("ufunc", [np.maximum, np.minimum])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("size", SIZES)
def test_bits_are_those_of_an_array_and_a_number(ufunc: Any, dtype: Any, size: int) -> None:
    x = sample(size, dtype)
    for number in (0, -0.0, 1.5):
        expected, found, replayed = ufunc(x, dtype(number)), np.empty_like(x), np.empty_like(x)
        extreme(ufunc, x, number, found)
        same(found, expected)
        calls = noted(lambda x, out, number=number: extreme(ufunc, x, number, out), [x, replayed])
        assert calls is not None
        run(calls)
        same(replayed, expected)


@pytest.mark.parametrize("show", [lambda x: x[::2], lambda x: x.reshape(200, 100).T, lambda x: x[:0],
                                  lambda x: x.astype(np.int64)])
def test_other_arrays_stay_as_they_are(show: Any) -> None:
    x = show(np.arange(-10_000, 10_000, dtype=np.float32))
    out = np.empty(x.shape, x.dtype)
    extreme(np.maximum, x, 0, out)
    np.testing.assert_array_equal(out, np.maximum(x, 0))


def test_a_number_that_changes_is_no_row() -> None:
    x, out = sample(1000, np.float32), np.empty(1000, np.float32)
    number = Changing(0.5)
    calls = noted(lambda x, number, out: extreme(np.maximum, x, number, out), [x, number, out])
    assert calls is not None
    cell, = number.cells
    cell[...] = 2.0
    run(calls)
    same(out, np.maximum(x, np.float32(2)))


def test_what_is_written_out_is_a_call_a_part() -> None:
    x, out = sample(20_000, np.float32), np.empty(20_000, np.float32)
    calls = noted(lambda x, out: extreme(np.maximum, x, 0, out), [x, out])
    assert calls is not None and [args[0].shape for _, args in calls] == [(2, 8192), (3616,)]


def test_relu_is_pytorchs(torch: Any) -> None:
    x = sample(30_000, np.float32)
    np.testing.assert_array_equal(gradcore.relu(gradcore.tensor(x)).numpy(), torch.relu(torch.from_numpy(x)).numpy())
