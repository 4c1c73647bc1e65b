"""Numbers that a compiled function counts: a replay counts them as well, if nothing else reads them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gradcore
from gradcore import nn

#: Globals of the tests' that functions count.
calls, left = 0, 100.0


@pytest.fixture(autouse=True)
def from_the_start() -> Iterator[None]:
    global calls, left
    yield
    calls, left = 0, 100.0


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.steps = 0
        self.seen = 0.5

    def forward(self, x: Any) -> Any:
        self.steps += 1
        for _ in range(3):
            self.seen = self.seen + 0.25
        return self.linear(x)


@pytest.mark.parametrize("options", [{}, {"check_every": 2}], ids=["replayed", "checked"])
def test_attributes_of_a_module(options: dict[str, int]) -> None:
    model = Counting()
    f = gradcore.compile(model, **options)
    for k in range(1, 8):
        assert f(gradcore.full((1, 2), float(k))).tolist() == model.linear(gradcore.full((1, 2), float(k))).tolist()
        assert (model.steps, model.seen) == (k, 0.5 + 0.75 * k)
    model.steps = 0
    for k in range(1, 4):
        f(gradcore.ones(1, 2))
        assert model.steps == k
    assert len(f.traces) == 1 and len(f.programs) == 1, f.explain()


def test_globals_and_objects_of_which_some_are_counted_twice() -> None:
    class Meter:
        def __init__(self) -> None:
            self.count = 0

    meters = [Meter(), Meter()]

    @gradcore.compile
    def step(x: Any) -> Any:
        global calls, left
        calls += 1
        left -= 0.5
        for meter in (meters[0], meters[1], meters[0]):
            meter.count += 2
        return x * 2

    for k in range(1, 6):
        assert step(gradcore.full((2,), float(k))).tolist() == [2.0 * k] * 2
        assert (calls, left, meters[0].count, meters[1].count) == (k, 100 - 0.5 * k, 4 * k, 2 * k)
    assert step.programs, step.explain()


def test_a_count_of_another_type_is_traced_again() -> None:
    model = Counting()
    f = gradcore.compile(model)
    for _ in range(3):
        f(gradcore.ones(1, 2))
    model.steps = 7.5  # type: ignore[assignment]
    f(gradcore.ones(1, 2))
    assert model.steps == 8.5 and f.traces[-1].startswith("the type of steps of Counting")
    model.steps = "many"  # type: ignore[assignment]
    with pytest.raises(TypeError):
        f(gradcore.ones(1, 2))


def test_two_objects_of_a_class_with_a_compiled_method() -> None:
    class Owner:
        def __init__(self) -> None:
            self.count = 0

        @gradcore.compile
        def double(self, x: Any) -> Any:
            self.count += 1
            return x * 2

    first, second = Owner(), Owner()
    for k in range(1, 5):
        assert first.double(gradcore.ones(2)).tolist() == second.double(gradcore.ones(2)).tolist() == [2, 2]
        assert (first.count, second.count) == (k, k)
    assert len(Owner.double.traces) == 2
    del first
    gc.collect()
    second.double(gradcore.ones(2))
    assert second.count == 5


def reads_it(o: Any, x: Any) -> Any:
    o.count += 1
    return x * o.count


def reads_it_by_a_string(o: Any, x: Any) -> Any:
    o.count += 1
    return x * getattr(o, "count")  # noqa: B009


def reads_all(o: Any, x: Any) -> Any:
    o.count += 1
    return x * sum(v for v in vars(o).values() if type(v) is int)


def reads_elsewhere(o: Any, x: Any) -> Any:
    def scale() -> Any:
        return o.count
    o.count += 1
    return x * scale()


def sets_it_too(o: Any, x: Any) -> Any:
    o.count += 1
    if x.shape[0] == 2:
        o.count = len(x.shape) * o.limit
    return x * 2


def adds_what_varies(o: Any, x: Any) -> Any:
    o.count += x.shape[0] + o.limit
    return x * 2


def counts_one_of_two(o: Any, x: Any) -> Any:
    # The number that the addition finds is no count if the condition holds.
    o.count = (0 if o.limit > 3 else o.count) + 1
    return x * 2


def a_property(o: Any, x: Any) -> Any:
    o.shown += 1
    return x * 2


def nonlocal_count() -> tuple[Callable[[Any], Any], Callable[[], Any]]:
    count = 0

    def f(x: Any) -> Any:
        nonlocal count
        count += 1
        return x * 2

    return f, lambda: count


@pytest.mark.parametrize("use", [reads_it, reads_it_by_a_string, reads_all, reads_elsewhere, sets_it_too, adds_what_varies,
                                 counts_one_of_two, a_property])
def test_what_is_no_count_does_what_the_function_does(use: Callable[[Any, Any], Any]) -> None:
    class Owner:
        def __init__(self) -> None:
            self.count, self.limit = 0, 4

        @property
        def shown(self) -> Any:
            return self.count

        @shown.setter
        def shown(self, value: Any) -> None:
            self.count = value * 10

    eager, ours = Owner(), Owner()
    f = gradcore.compile(lambda x: use(ours, x), max_programs=99)
    for k in range(6):
        x = gradcore.full((2,), float(k))
        assert f(x).tolist() == use(eager, x).tolist()
        assert (ours.count, ours.limit) == (eager.count, eager.limit)
    assert not f.programs or use is counts_one_of_two, f.explain()


def test_a_variable_of_an_enclosing_function_is_not_counted() -> None:
    f, count = nonlocal_count()
    g = gradcore.compile(f, max_programs=99)
    for k in range(1, 5):
        assert g(gradcore.ones(2)).tolist() == [2, 2] and count() == k
    assert not g.programs and "assigns to count" in g.explain()


def test_a_count_beside_state() -> None:
    class Owner:
        def __init__(self) -> None:
            self.count = 0
            self.total = gradcore.zeros(2)

    o = Owner()

    @gradcore.compile
    def add(x: Any) -> Any:
        o.count += 1
        o.total = o.total + x
        return o.total.sum()

    for k in range(1, 7):
        assert add(gradcore.ones(2)).item() == 2 * k and o.count == k
    assert add.programs and len(add.traces) == 3
