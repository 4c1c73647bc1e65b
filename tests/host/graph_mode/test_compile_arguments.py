"""Arguments of a compiled function are compared by value if they have one, and its results belong to the caller."""

from __future__ import annotations

import gc
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore


@pytest.mark.parametrize("made", [lambda n: {*range(n)}, lambda n: np.array([float(n)]), np.float32, lambda n: slice(0, n),
                                  complex], ids=["set", "array", "scalar", "slice", "complex"])
def test_arguments_count_by_value(made: Any) -> None:
    def f(x: Any, by: Any) -> Any:
        return x * (len(by) if isinstance(by, set) else by.stop if isinstance(by, slice) else float(np.real(np.ravel(by)[0])))

    compiled, given = gradcore.compile(f), [made(2), made(2), made(3)]
    assert [compiled(gradcore.ones(1), by).item() for by in given] == [2.0, 2.0, 3.0]
    assert len(compiled.traces) == 2


def test_a_zero_with_a_sign_is_another_argument() -> None:
    f = gradcore.compile(lambda x, by: x * by)
    assert [str(f(gradcore.ones(1), by).item()) for by in (0.0, -0.0, 0.0)] == ["0.0", "-0.0", "0.0"]


@pytest.mark.parametrize("made", [float, lambda nan: {float(nan)}, lambda nan: {float(nan): 1}, complex])
def test_every_nan_is_the_same_argument(made: Callable[[str], Any]) -> None:
    f = gradcore.compile(lambda x, some: x * len(str(some)))
    for _ in range(3):
        assert f(gradcore.ones(1), made("nan")).item() == len(str(made("nan")))
    assert len(f.traces) == 1


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize("kind", [list, tuple, Pair._make, lambda pair: dict(enumerate(pair)),
                                  lambda pair: OrderedDict(enumerate(pair))])
def test_tensors_with_a_graph_in_an_argument_of_any_kind(kind: Any) -> None:
    w = gradcore.ones(2, requires_grad=True)

    def f(pair: Any) -> Any:
        x, y = pair.values() if isinstance(pair, dict) else pair
        return type(pair), x * 2 + y

    compiled = gradcore.compile(f)
    for k in range(1, 4):
        w.grad = None
        given = kind([w * k, gradcore.ones(2)])
        found, result = compiled(given)
        result.sum().backward()
        assert found is type(given) and result.tolist() == [2 * k + 1] * 2 and w.grad.tolist() == [2 * k] * 2
    assert len(compiled.traces) == 1


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


def test_a_dict_of_a_kind_of_its_own_is_returned_with_each_calls_tensors() -> None:
    f = gradcore.compile(lambda x: (OrderedDict(twice=x * 2), defaultdict(list, sum=x.sum())))
    for k in range(3):
        ordered, default = f(gradcore.full((2,), float(k)))
        assert type(ordered) is OrderedDict and ordered["twice"].tolist() == [2 * k] * 2
        assert default["sum"].item() == 2 * k and default["other"] == []


class Stats:
    def __init__(self) -> None:
        self.calls = 0


@pytest.mark.parametrize("make, add", [
    (Stats, lambda r: setattr(r, "calls", r.calls + 1) or r.calls), (deque, lambda r: r.append(1) or len(r)),
    (lambda: bytearray(b""), lambda r: r.append(1) or len(r)), (lambda: iter([1, 2]), next)])
def test_an_object_that_a_function_makes_and_returns_is_another_in_each_call(make: Any, add: Any) -> None:
    f = gradcore.compile(lambda x: (x * 2, make()))
    assert [add(f(gradcore.ones(1))[1]) for _ in range(3)] == [1, 1, 1]
    assert "which each call makes anew" in f.traces[0]


def test_a_method_that_returns_nothing_is_replayed() -> None:
    """None, too, hashes like an object up to Python 3.11."""
    class Trainer:
        def __init__(self) -> None:
            self.sum = gradcore.zeros(2)

        def add(self, x: Any) -> None:
            self.sum += x

    trainer = Trainer()
    f = gradcore.compile(trainer.add)
    for _ in range(3):
        assert f(gradcore.ones(2)) is None
    assert trainer.sum.tolist() == [3, 3] and len(f.traces) == len(f.programs) == 1


def test_objects_of_before_are_returned_as_they_are() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.stats, self.by_name, self.lines = Stats(), {"a": Stats()}, deque([1])

        def run(self, x: Any, given: Any) -> Any:
            return x * 2, self, self.stats, self.by_name["a"], self.lines, given, len, Stats, x.device, slice(1, 2)

    trainer, given = Trainer(), Stats()
    f = gradcore.compile(trainer.run)
    for _ in range(3):
        _, *found = f(gradcore.ones(1), given)
        assert found[:-2] == [trainer, trainer.stats, trainer.by_name["a"], trainer.lines, given, len, Stats]
    assert len(f.traces) == 1, f.explain()
    del trainer, f
    gc.collect()


class Sized(list[Any]):
    def __init__(self, items: list[Any], size: int) -> None:
        super().__init__(items)
        self.size = size


class Pair(tuple[Any, Any]):
    def __new__(cls, first: Any, second: Any) -> Pair:
        return super().__new__(cls, (first, second))


def test_lists_and_tuples_of_kinds_of_their_own_are_returned_with_their_attributes() -> None:
    def f(x: Any) -> Any:
        return Sized([x * 2], x.shape[0]), Pair(x, x + 1)

    compiled = gradcore.compile(f)
    for k in range(3):
        items, pair = compiled(gradcore.full((2,), float(k)))
        assert type(items) is Sized and items.size == 2 and items[0].tolist() == [2.0 * k] * 2
        assert type(pair) is Pair and pair[1].tolist() == [k + 1.0] * 2
    assert len(compiled.traces) == 1, compiled.explain()


@pytest.mark.parametrize("asks", [lambda node: len(node.name()), lambda node: len(str(node)),
                                  lambda node: len(node.next_functions)], ids=["name", "text", "next"])
def test_what_asks_a_node_of_an_arguments_graph_is_not_replayed(asks: Callable[[Any], int]) -> None:
    f, x = gradcore.compile(lambda x: x.detach() * asks(x.grad_fn)), gradcore.ones(1, requires_grad=True)
    for y in (x * x, x.exp(), x.expand(1)):
        assert f(y).item() == (y.detach() * asks(y.grad_fn)).item()
    assert "asks for a node of a graph" in f.traces[0]
