"""Arguments of a compiled function are compared by value if they have one, and its results belong to the caller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore


@pytest.mark.parametrize("given", [{1, 2}, np.array([2.0]), np.float32(2.0), slice(0, 2), 2 + 0j])
def test_arguments_count_by_value(given: Any) -> None:
    def f(x: Any, by: Any) -> Any:
        return x * (len(by) if isinstance(by, set) else by.stop if isinstance(by, slice) else float(np.real(np.ravel(by)[0])))

    compiled = gradcore.compile(f)
    others = {set: {1, 2, 3}, np.ndarray: np.array([3.0]), np.float32: np.float32(3.0), slice: slice(0, 3), complex: 3 + 0j}
    again = type(given)(given) if isinstance(given, (set, np.float32)) else given
    assert [compiled(gradcore.ones(1), by).item() for by in (given, again, others[type(given)])] == [2.0, 2.0, 3.0]
    assert len(compiled.traces) == 2


def test_an_array_that_is_written_to_is_another_argument() -> None:
    f, by = gradcore.compile(lambda x, by: x * float(by[0])), np.array([2.0])
    assert f(gradcore.ones(1), by).item() == f(gradcore.ones(1), by).item() == 2.0
    by[0] = 5.0
    assert f(gradcore.ones(1), by).item() == 5.0


def test_one_tensor_twice_is_not_two_of_the_same_bytes() -> None:
    f, x = gradcore.compile(lambda a, b: a * (2 if a is b else 3)), gradcore.ones(1)
    assert [f(x, x).item(), f(x, x[:]).item(), f(x, gradcore.ones(1)).item(), f(x, x).item()] == [2.0, 3.0, 3.0, 2.0]


def test_a_function_that_changes_an_argument_is_not_replayed() -> None:
    @gradcore.compile
    def f(x: Any, counts: list[int]) -> Any:
        counts[0] += 1
        return x * counts[0]

    for _ in range(3):
        counts = [0]
        assert f(gradcore.ones(1), counts).item() == 1.0 and counts == [1]
    assert "the function modifies an argument" in f.traces[0]


def test_a_function_that_exchanges_the_tensors_of_a_list_is_not_replayed() -> None:
    @gradcore.compile
    def f(pair: list[Any]) -> Any:
        pair[0], pair[1] = pair[1], pair[0]
        return pair[0] - pair[1]

    x, y = gradcore.ones(1), gradcore.zeros(1)
    for _ in range(3):
        pair = [x, y]
        assert f(pair).item() == -1.0 and pair[0] is y and pair[1] is x
    assert "the function modifies an argument" in f.traces[0]


def test_what_is_returned_beside_tensors_is_the_callers() -> None:
    f = gradcore.compile(lambda x: (x * 2, {1, 2}, np.zeros(2), [1]))
    for k in range(3):
        _, numbers, array, items = f(gradcore.ones(1))
        assert numbers == {1, 2} and array.tolist() == [0.0, 0.0] and items == [1], k
        numbers.add(k + 10)
        array += 1
        items.append(k)
