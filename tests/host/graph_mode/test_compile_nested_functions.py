"""Comprehensions and nested functions that read what the function made: each run makes it anew, so no guard holds it."""

from __future__ import annotations

import gc
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn

Pair = namedtuple("Pair", "value count")
WEIGHTS = {"a": 0.5, "b": 0.25}


@dataclass
class Data:
    value: Any
    count: int = 3


def a_dict(x: Any) -> Any:
    losses = {"a": x * 2, "b": x * 3}
    return sum(WEIGHTS[k] * losses[k] for k in losses)


def an_empty_dict(x: Any) -> Any:
    found: dict[str, Any] = {}

    def keep(name: str, value: Any) -> None:
        found.update({name: value})

    keep("a", x * 2)
    keep("b", x * 3)
    return found["a"] + found["b"]


def a_counter(x: Any) -> Any:
    calls = {"n": 0}

    def scaled(x: Any) -> Any:
        calls["n"] += 1
        return x * calls["n"]

    return scaled(x) + scaled(x)


def a_list(x: Any) -> Any:
    parts = [x * 2, {"k": 3}]
    return sum(parts[0] * parts[1]["k"] for _ in range(2))


def a_tuple(x: Any) -> Any:
    parts = (x * 2, 3, "k")
    return sum(parts[0] * parts[1] for _ in range(2))


def an_ordered_dict(x: Any) -> Any:
    parts = OrderedDict(a=x * 2)
    return parts[max(parts, key=lambda k: len(parts[k]))]


def a_namespace(x: Any) -> Any:
    h = SimpleNamespace(value=x * 2, count=3)
    return sum(h.value * h.count for _ in range(2))


def an_object(x: Any) -> Any:
    h = Data(x * 2)
    return sum(h.value * h.count for _ in range(2))


def a_named_tuple(x: Any) -> Any:
    h = Pair(x * 2, 3)
    return sum(h.value * h.count for _ in range(2))


def what_is_popped(x: Any) -> Any:
    h = {"a": x * 2}
    first, = [h.pop(k) for k in list(h)]
    return first


def a_lambda(x: Any) -> Any:
    h = {"a": x * 2, "b": x * 3}
    get = lambda k: h[k]
    return get("a") + get("b")


def a_function_that_calls_itself(x: Any) -> Any:
    h = {"a": x * 2}

    def down(n: int) -> Any:
        return h["a"] if n == 0 else down(n - 1) + 1

    return down(3)


def a_counter_that_a_cycle_keeps(x: Any) -> Any:
    calls = {"n": 0}

    def down(n: int) -> Any:
        calls["n"] += 1
        return x * calls["n"] if n == 0 else down(n - 1) + 1

    return down(3)


@pytest.mark.parametrize("function", [
    a_dict, an_empty_dict, a_counter, a_list, a_tuple, an_ordered_dict, a_namespace, an_object, a_named_tuple, what_is_popped,
    a_lambda, a_function_that_calls_itself, a_counter_that_a_cycle_keeps])
@pytest.mark.parametrize("collects", [False, True])
def test_it_is_replayed(function: Any, collects: bool) -> None:
    def run(x: Any) -> Any:
        if collects:
            gc.collect()
        return function(x)

    compiled = gradcore.compile(run)
    for k in range(4):
        x = gradcore.full((3,), float(k))
        assert compiled(x).tolist() == function(x).tolist()
    assert len(compiled.programs) == len(compiled.traces) == 1
    gc.collect()


def test_a_step_with_several_losses_is_replayed_after_two_traces() -> None:
    model, weights = nn.Linear(4, 3), {"ce": 1.0, "l2": 0.1}
    optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)

    @gradcore.compile
    def step(x: Any, y: Any) -> Any:
        out = model(x)
        losses = {"ce": nn.functional.cross_entropy(out, y), "l2": out.square().mean()}
        loss = sum(weights[k] * losses[k] for k in losses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, y = gradcore.ones(2, 4), gradcore.zeros(2, dtype=gradcore.int64)
    for _ in range(4):
        step(x, y)
    assert len(step.traces) == 2
    weights["l2"] = 0.2
    step(x, y)
    assert len(step.traces) == 3 and "weights" in step.traces[-1]


class Holder:
    def __init__(self) -> None:
        self.counts = {"n": 1}


@pytest.mark.parametrize("holds", ["an object", "a list", "an argument"])
def test_what_was_there_before_is_still_compared(holds: str) -> None:
    """A local name for it, that a nested function changes through, makes it no new object."""
    holder = Holder()
    boxes = [holder.counts]

    def run(x: Any, given: Any) -> Any:
        counts = {"an object": holder.counts, "a list": boxes[0], "an argument": given}[holds]

        def count() -> None:
            counts.update(n=counts["n"] + 1)

        count()
        return x * counts["n"]

    compiled = gradcore.compile(run)
    for k in range(3):
        assert compiled(gradcore.ones(1), holder.counts).item() == k + 2
    assert not compiled.programs
