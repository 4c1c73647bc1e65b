"""Large containers that a compiled function refers to: a change is detected at any position."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.engine.owners import MOST
from gradcore.errors import TraceError
from tests.conftest import raises

COUNT = 2000


def numbers() -> list[float]:
    return [float(k) for k in range(COUNT)]


def put(at: Any, value: Any) -> Callable[[Any], None]:
    return lambda x: x.__setitem__(at, value)


#: The object, what is read from it, the change, and the text of the reason.
CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], float], Callable[[Any], Any], str]] = {
    "list": (numbers, lambda x: x[1500], put(1500, 7.5), "x of f's closure[1500] is 7.5 and was 1500.0"),
    "another type": (numbers, lambda x: 1.0 if type(x[1500]) is int else 2.0, put(1500, 1500), "[1500] is 1500 and was 1500.0"),
    "sum": (numbers, sum, put(3, -1.0), "[3] is -1.0 and was 3.0"),
    "length": (numbers, len, lambda x: x.append(0.0), "and was [0.0, 1.0, "),
    "deque": (lambda: deque(numbers()), lambda x: x[1500], put(1500, 7.5), "[1500] is 7.5"),
    "dict": (lambda: {str(k): v for k, v in enumerate(numbers())}, lambda x: x["1500"], put("1500", 7.5), "['1500'] is 7.5"),
    "keys of a dict": (lambda: dict.fromkeys(range(COUNT)), len, lambda x: x.pop(1500), "closure is {0: None, "),
    "set": (lambda: set(range(COUNT)), len, lambda x: x.add(-1), "closure is {0, 1, "),
    "array": (lambda: np.arange(5000.0), lambda x: float(x[1500]), put(1500, 7.5), "x of f's closure has changed"),
    "rows": (lambda: [[v, v] for v in numbers()], lambda x: x[1500][1], lambda x: x[1500].__setitem__(1, 7.5),
             "[1500] is [1500.0, 7.5]"),
    "objects": (lambda: [SimpleNamespace(v=v) for v in numbers()], lambda x: x[1500].v, put(1500, SimpleNamespace(v=7.5)),
                "x of f's closure has changed"),
    "objects by name": (lambda: {k: SimpleNamespace(v=v) for k, v in enumerate(numbers())}, lambda x: x[1500].v,
                        put(1500, SimpleNamespace(v=7.5)), "x of f's closure has changed"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_behind_the_thousandth_item_is_seen(case: str) -> None:
    make, read, change, words = CASES[case]
    x, t = make(), gradcore.ones(1)

    def f(t: Any) -> Any:
        return t * read(x)

    compiled = gradcore.compile(f)
    for _ in range(3):
        assert compiled(t).item() == f(t).item()
    assert len(compiled.traces) == 1
    change(x)
    assert compiled(t).item() == f(t).item()
    assert len(compiled.traces) == 2 and words in compiled.traces[1] and len(compiled.traces[1]) < 500


def test_a_tensor_in_a_long_list_may_be_replaced() -> None:
    tensors = [gradcore.full((1,), float(k)) for k in range(1100)]
    compiled = gradcore.compile(lambda t: t * tensors[1050])
    assert [compiled(gradcore.ones(1)).item() for _ in range(2)] == [1050, 1050]
    tensors[1050] = gradcore.zeros(1)
    assert compiled(gradcore.ones(1)).item() == 0


def test_a_large_array_among_the_arguments_is_known_by_its_values() -> None:
    where = np.arange(5000) % 3
    compiled = gradcore.compile(lambda t, where: t[where.tolist()].sum())
    t = gradcore.tensor([1.0, 2.0, 4.0])
    first = compiled(t, where).item()
    where[:] = 2
    assert compiled(t, where).item() == 20000 != first


def test_what_is_larger_is_found_by_a_check() -> None:
    table = [1.0] * (MOST + 1)
    compiled = gradcore.compile(lambda t: t * table[-1], check_every=2)
    t = gradcore.ones(1)
    for _ in range(3):
        compiled(t)
    table[-1] = 2.0
    with raises(TraceError, "a replay differs from the eager run in result 0"):
        for _ in range(2):
            compiled(t)


@pytest.mark.parametrize("made", [
    lambda: [0] * (MOST + 1), lambda: dict.fromkeys(range(MOST + 1), 0), lambda: deque([0] * (MOST + 1)),
    lambda: np.zeros(MOST + 1), lambda: np.zeros((2, 2 * MOST))[:, ::2], lambda: np.zeros((MOST, 2)).T,
    lambda: bytearray(9 * MOST),
], ids=["list", "dict", "deque", "array", "strided", "transposed", "bytes"])
@pytest.mark.parametrize("as_argument", [False, True])
def test_a_function_that_writes_to_a_container_of_very_many_items_is_not_replayed(made: Any, as_argument: bool) -> None:
    owner = SimpleNamespace(items=made())

    def count(items: Any) -> None:
        items[1] += 1

    def f(x: Any, items: Any) -> Any:
        count(items if as_argument else owner.items)
        return x * 2

    compiled = gradcore.compile(f)
    for _ in range(4):
        compiled(gradcore.ones(1), owner.items if as_argument else None)
    assert np.max(owner.items[1]) == 4 and not compiled.programs
    assert ("modifies an argument" if as_argument else "changes what is in items of a SimpleNamespace") in compiled.traces[0]


def test_very_many_items_that_a_function_only_reads_are_no_reason() -> None:
    items = [[0] * (MOST + 1), np.zeros(MOST + 1), [gradcore.zeros(1)] * (MOST + 1)]
    compiled = gradcore.compile(lambda x: x * len(items[0]) * items[1].size * len(items[2]))
    for _ in range(2):
        compiled(gradcore.ones(1))
    assert len(compiled.traces) == 1
