"""Writes to items: only those of containers that outlive the call stand against a replay."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn

SHARED: dict[str, float] = {"scale": 2.0}
NAMES: list[str] = ["scale", "bias"]


def into_a_new_dict(x: Any) -> Any:
    own: dict[str, Any] = {}
    own["scale"] = SHARED["scale"]
    for name in NAMES[:1]:
        own[name] += SHARED[name]
    return x * own["scale"]


def a_slice_of_a_new_list(x: Any) -> Any:
    own = [0.0, 0.0]
    own[0:1] = [SHARED["scale"]]
    del own[1:2]
    return x * own[0]


@pytest.mark.parametrize("function", [into_a_new_dict, a_slice_of_a_new_list])
def test_items_of_what_the_call_makes_may_come_from_shared_containers(function: Callable[[Any], Any]) -> None:
    f = gradcore.compile(function)
    assert [f(gradcore.ones(2)).tolist() for _ in range(3)] == [function(gradcore.ones(2)).tolist()] * 3
    assert len(f.traces) == 1, f.explain()


def test_a_slice_of_a_shared_list_is_written_at_each_call() -> None:
    log = ["", ""]

    def f(x: Any) -> Any:
        log[0:1] = ["ran"]
        return x * 2

    compiled = gradcore.compile(f)
    for _ in range(3):
        log[0] = ""
        compiled(gradcore.ones(2))
        assert log[0] == "ran"
    assert "assigns to an item of log" in compiled.explain()


def test_an_item_of_a_shared_container_is_written_at_each_call_whatever_the_value_is_read_from() -> None:
    layer, seen = nn.Linear(2, 2), {"calls": "none"}

    def f(x: Any) -> Any:
        seen["calls"] = NAMES[0]
        return layer(x)

    compiled = gradcore.compile(f)
    for _ in range(3):
        seen["calls"] = "none"
        compiled(gradcore.ones(2))
        assert seen["calls"] == "scale"
    assert "assigns to an item of seen" in compiled.explain()


def swapped(of: Any) -> Any:
    of["held"][0], of["held"][1] = of["held"][1], of["held"][0]
    return of["held"][0]


def rotated(of: Any) -> Any:
    of["line"].rotate(1)
    return of["line"][0]


def moved_to_the_end(of: Any) -> Any:
    of["held"].append(of["held"].pop(0))
    return of["held"][0]


def exchanged_by_key(of: Any) -> Any:
    of["named"].update(a=of["named"]["b"], b=of["named"]["a"])
    return of["named"]["a"]


@pytest.mark.parametrize("take", [swapped, rotated, moved_to_the_end, exchanged_by_key])
def test_tensors_that_change_places_do_so_at_each_call(take: Callable[[Any], Any]) -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        one, two = gradcore.ones(2), gradcore.full((2,), 2.0)
        of: Any = {"held": [one, two], "line": deque([one, two]), "named": {"a": one, "b": two}}

        class Trainer:
            pass

        trainer: Any = Trainer()
        trainer.of = of
        f = wrap(lambda x, trainer=trainer: x * take(trainer.of))
        found.append([f(gradcore.ones(2)).tolist() for _ in range(5)])
    assert found[0] == found[1]
    assert "has other items, or has them in another order" in f.explain()


class Averaging:
    """An optimizer of a user's, which keeps its state by parameter."""

    def __init__(self) -> None:
        self.state: defaultdict[Any, dict[str, Any]] = defaultdict(lambda: {"mean": gradcore.zeros(2), "count": 0})

    def step(self, p: Any) -> None:
        with gradcore.no_grad():
            state = self.state[p]
            state["count"] += 1
            state["mean"].mul_(0.9).add_(p.grad)
            p.sub_(state["mean"] / state["count"])


def test_counts_that_are_kept_by_parameter_go_on_in_each_call() -> None:
    def trained(wrap: Callable[[Any], Any]) -> Any:
        p, optimizer = nn.Parameter(gradcore.ones(2)), Averaging()

        def step(x: Any) -> None:
            p.grad = None
            (p * x).sum().backward()
            optimizer.step(p)

        run, found = wrap(step), []
        for k in range(5):
            run(gradcore.full((2,), k + 1.0))
            found.append((p.tolist(), optimizer.state[p]["count"]))
        return found

    assert trained(gradcore.compile) == trained(lambda f: f)


def test_children_that_change_places_do_so_at_each_call() -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        layers = nn.ModuleList([nn.Tanh(), nn.Softplus()])

        def f(x: Any, layers: Any = layers) -> Any:
            layers[0], layers[1] = layers[1], layers[0]
            return layers[0](x)

        step = wrap(f)
        found.append([step(gradcore.ones(2)).tolist() for _ in range(5)])
    assert found[0] == found[1]
    assert "changes which parameters, buffers or children a ModuleList has" in step.explain()
    assert "test_compile_items.py" in step.explain()


@dataclass(frozen=True)
class Seen:
    rows: int = 0


def test_an_attribute_of_a_frozen_object_is_set_at_each_call() -> None:
    seen = Seen(2)

    def f(x: Any) -> Any:
        object.__setattr__(seen, "rows", x.shape[0])
        return x * 2

    compiled = gradcore.compile(f)
    for _ in range(3):
        object.__setattr__(seen, "rows", 0)
        compiled(gradcore.ones(2))
        assert seen.rows == 2


def test_a_key_that_is_removed_from_a_dict_with_defaults_stays_away() -> None:
    class Owner:
        table: dict[str, Any] = defaultdict(lambda: 1.0, a=2.0, b=SHARED)

    def remove(table: dict[str, Any]) -> None:
        table.pop("a", None)

    @gradcore.compile
    def f(x: Any) -> Any:
        remove(Owner.table)
        return x * len(Owner.table)

    assert [f(gradcore.ones(1)).item() for _ in range(3)] == [1.0] * 3 and [*Owner.table] == ["b"]


def test_a_list_of_tensors_that_a_call_makes_may_be_read_by_an_inner_function() -> None:
    def f(x: Any) -> Any:
        powers = [x, x * x, x * x * x]
        return tuple(powers[k] * 2 for k in (0, 2))

    compiled = gradcore.compile(f)
    assert [[y.item() for y in compiled(gradcore.full((1,), 2.0))] for _ in range(3)] == [[4.0, 16.0]] * 3
    assert len(compiled.traces) == 1, compiled.explain()


class Meter:
    def __init__(self) -> None:
        self.history: list[int] = []


def note_in(meters: Any) -> None:
    for meter in meters:
        (meter[1] if isinstance(meter, tuple) else meter).history.append(1)


class Event:
    """What each call makes anew, and hands to code that gets an object by it."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def note(self) -> None:
        self.meter.history.append(1)


def note_both(made: Callable[[Meter], Any], note: Callable[[Any], None]) -> None:
    for meter in METERS:
        note(made(meter))


def note_in_event(event: Any) -> None:
    event.meter.history.append(1)


METERS: list[Meter] = [Meter(), Meter()]
BY_NAME: dict[str, Meter] = dict(zip("ab", METERS, strict=True))


@pytest.mark.parametrize("note", [
    lambda: [meter.history.append(1) for meter in METERS],
    lambda: sum(len(meter.history) for meter in METERS if not meter.history.append(1)),  # type: ignore[func-returns-value]
    lambda: {name: meter.history.append(1) for name, meter in BY_NAME.items()},  # type: ignore[func-returns-value]
    lambda: note_in(BY_NAME.values()), lambda: note_in(BY_NAME.items()), lambda: note_in(iter(METERS)),
    lambda: note_both(Event, note_in_event), lambda: note_both(Event, Event.note),
    lambda: note_both(lambda meter: SimpleNamespace(meter=meter), note_in_event),
    lambda: note_in(meter for meter in METERS), lambda: note_in(enumerate(METERS)), lambda: note_in(reversed(METERS)),
], ids=["list", "generator", "dict", "values", "items", "iterator", "event", "method", "namespace", "given generator",
        "enumerate", "reversed"])
def test_what_is_written_by_way_of_an_iterator_or_a_new_object_is_written_in_each_call(note: Callable[[], Any]) -> None:
    def f(x: Any) -> Any:
        note()
        return x * 2

    for meter in METERS:
        meter.history.clear()
    compiled = gradcore.compile(f)
    for _ in range(3):
        compiled(gradcore.ones(1))
    assert [meter.history for meter in METERS] == [[1, 1, 1]] * 2 and not compiled.programs


def test_a_comprehension_begins_no_walk_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[Any] = []
    monkeypatch.setattr("gradcore.program.watching.began.Began.note_variables", lambda *given: walks.append(given))
    f = gradcore.compile(lambda x: x * sum(k for k in (1.0, 1.0)))
    assert f(gradcore.ones(1)).item() == 2.0 and f.programs and not walks
