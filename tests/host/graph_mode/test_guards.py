"""What counts as the same when a guard looks again, one kind of value at a time."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
from gradcore.engine.owners import MOST
from gradcore.program.guarding.guards import Guard, TensorGuard, Terms, same_entries, same_items, same_method
from gradcore.program.guarding.optimizers import OptimizerGuard
from gradcore.program.guarding.readers import Item
from gradcore.program.guarding.values import copied, equal, is_plain, same_array
from gradcore.program.watching.watch import Watcher

NAN = float("nan")
SAME: list[tuple[Any, Any]] = [
    (1, 1), ("a", "a"), (None, None), (0.0, 0.0), (-0.0, -0.0), (2.5, float("2.5")), (NAN, float("nan")),
    (np.float32(NAN), np.float32(NAN)), ([1, [2.0]], [1, [2.0]]), ((), ()), ({"a": [1]}, {"a": [1]}), ({1, 2.5}, {2.5, 1}),
    ({NAN}, {float("nan")}), (frozenset("ab"), frozenset("ba")), (deque([1]), deque([1]))]
OTHER: list[tuple[Any, Any]] = [
    (1, 2), (1, 1.0), (1, True), (0.0, -0.0), (complex(0, -0.0), 0j), (np.float32(0.0), np.float32(-0.0)), (NAN, 1.0),
    (gradcore.bfloat16.type(0.0), gradcore.bfloat16.type(-0.0)),
    (1.0, NAN), ([1], [1, 1]), ([1, 1], [1]), ([1], (1,)), ([1], [True]), ([0.0], [-0.0]), ({"a": 1}, {"a": 1.0}),
    ({"a": 1}, {"b": 1}), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"a": 1}, {"a": 1, "b": 2}), ({1: 2}, {True: 2}), ({1}, {2}),
    ({1}, {1.0}), ({0.0}, {-0.0}), ({(1,)}, {(True,)}), ({1}, {1, 2}),
    ({NAN, float("nan")}, {NAN}), (deque([1]), deque([2]))]


@pytest.mark.parametrize("now, seen", SAME)
def test_equal_data(now: Any, seen: Any) -> None:
    assert equal(now, seen) and equal(now, now)


@pytest.mark.parametrize("now, seen", OTHER)
def test_data_that_differs_although_python_may_call_it_equal(now: Any, seen: Any) -> None:
    assert not equal(now, seen) and not equal(seen, now)


def test_plain_data_is_small_shallow_and_has_no_objects() -> None:
    deep: Any = {"a": [({1},)]}
    assert is_plain(deep) and not is_plain([deep])
    endless: list[Any] = []
    endless.append(endless)
    assert not is_plain(endless)
    for make in (list, tuple, set, deque, dict.fromkeys):
        assert is_plain(make(range(MOST))) and not is_plain(make(range(MOST + 1)))
    assert not any(map(is_plain, (object(), [1, object()], {"a": 1, "b": object()}, {1: 1, (1, 2): 3})))


def test_arrays_are_compared_by_dtype_shape_and_bytes() -> None:
    zeros = np.zeros((2, 3), np.float32)
    assert same_array(zeros.copy(), zeros)
    assert not any(same_array(now, zeros) for now in (zeros.astype(np.int32), zeros.reshape(3, 2), zeros + 1, -zeros, 0.0))


def test_slices_and_dtypes_are_compared_by_value_and_type() -> None:
    assert same_method(slice(1, 2), slice(1, 2)) and not same_method(slice(1, 3), slice(1, 2))
    assert not same_method("float32", np.dtype("float32"))


def test_a_tensor_is_another_with_another_edge_or_other_memory() -> None:
    place = {"x": gradcore.ones(2)}
    x = place["x"]

    def why() -> str:
        terms = Terms([guard], {})
        assert terms.all_hold()() is not bool(terms.why_not())
        return terms.why_not()

    guard = TensorGuard("x", Item(place, "x"), x)
    assert not why()
    place["x"] = gradcore.ones(2)
    assert why() == "x is a different object" and not guard.replaced()
    place["x"] = x
    x.requires_grad_()
    assert why() == "requires_grad of x has changed"
    guard = TensorGuard("x", Item(place, "x"), x)
    storage, whole = x.storage, x.spec
    x.data = x.data[1:]
    assert x.storage is storage and why() == "the memory of x was replaced" and not guard.replaced()
    x.data = gradcore.ones(2)
    assert x.spec is whole and why() == "the memory of x was replaced" and guard.replaced() == [storage]


def test_items_and_entries_are_the_same_objects_and_as_many() -> None:
    a, b = object(), object()
    assert same_items([a, b], (a, b)) and not same_items([a], (a, b)) and not same_items([a, b], (a,))
    assert not same_items([b, a], (a, b))
    assert same_entries({1: a, 2: b}, {1: a, 2: b})
    assert not any(same_entries(now, {1: a, 2: b}) for now in (
        {1: a}, {1: a, 2: b, 3: b}, {1: a, 3: b}, {2: a, 1: b}, {True: a, 2: b}, {1: a, 2: a}))


def test_what_cannot_be_read_any_more_has_changed_and_says_so() -> None:
    gone = Guard("the global n", lambda: {}["n"], 1, equal)
    assert not gone.holds() and gone.why_not() == "the global n can no longer be read: KeyError('n')"


def test_reasons_show_plain_data_and_no_objects() -> None:
    assert Guard("n", lambda: 2, 1, equal).why_not() == "n is 2 and was 1"
    for now, seen in ((object(), 1), (1, object())):
        assert Guard("n", lambda now=now: now, seen, equal).why_not() == "n has changed"  # type: ignore[misc]


class Weights:
    """Adam over two parameters in groups of their own, after a step, and a guard on it."""

    def __init__(self) -> None:
        self.one, self.two = nn.Parameter(gradcore.ones(1)), nn.Parameter(gradcore.ones(1))
        self.optimizer = optim.Adam([{"params": [self.one]}, {"params": [self.two], "betas": [0.5, 0.5]}])
        for p in (self.one, self.two):
            p.grad = gradcore.ones(1)
        self.optimizer.step()
        self.groups, self.state = self.optimizer.param_groups, self.optimizer.state


class Name(Enum):
    A = "a"


def test_an_optimizer_may_have_any_names_in_its_state_and_any_dicts() -> None:
    """What a user's own optimizer keeps."""
    for kind in (dict, partial(defaultdict, list)):
        w = Weights()
        names: list[Any] = [Name.A, NAN, 1]
        for name in names:
            w.state[w.two][name] = gradcore.zeros(1)
        w.state[w.two] = kind(w.state[w.two])
        holds = Terms([OptimizerGuard(w.optimizer, False)], {}).all_hold()
        assert holds()
        for name in names:
            tensor = w.state[w.two].pop(name)
            assert not holds() and name not in w.state[w.two], "a guard must make no entry"
            w.state[w.two][name] = gradcore.zeros(1)
            assert not holds()
            w.state[w.two][name] = tensor
            assert holds()
            for attribute in ("storage", "spec"):
                was = getattr(tensor, attribute)
                setattr(tensor, attribute, getattr(gradcore.zeros(2), attribute))
                assert not holds()
                setattr(tensor, attribute, was)


class Settings:
    def __init__(self) -> None:
        self.factor = 2.0


@pytest.mark.parametrize("make", [Settings, nn.Identity])
def test_attributes_that_come_in_another_dict_are_noticed(make: Any) -> None:
    settings = make()
    settings.factor = 2.0
    step = gradcore.compile(lambda x: x * settings.factor)
    x = gradcore.ones(2)
    for _ in range(3):
        assert step(x).tolist() == [2, 2]
    settings.__dict__ = {**settings.__dict__, "factor": 5.0}
    assert step(x).tolist() == [5, 5]
    assert "dict of" in step.traces[-1]


def test_a_structured_scalar_that_is_written_to_is_noticed() -> None:
    record = np.zeros(1, [("factor", "f4")])[0]
    assert not is_plain(record)
    record["factor"] = 2
    step = gradcore.compile(lambda x: x * float(record["factor"]))
    for factor in (2, 2, 7):
        record["factor"] = factor
        assert step(gradcore.ones(2)).tolist() == [factor] * 2


def test_data_that_a_guard_copies_holds_on_to_nothing() -> None:
    class Own(tuple):
        pass

    class Attribute:
        pass

    data: Any = Own((1, (2.0, frozenset("a"))))
    data.attribute = Attribute()
    gone = ref(data.attribute)
    kept = copied(data)
    assert kept == data and type(kept) is Own and copied(kept[1]) is kept[1]
    del data
    assert gone() is None


CHANGES: dict[str, Callable[[Weights], Any]] = {
    "another state": lambda w: setattr(w.optimizer, "state", w.state.copy()),
    "another dict of a parameter": lambda w: w.state.update({w.two: dict(w.state[w.two])}),
    "another tensor": lambda w: w.state[w.two].update(exp_avg=gradcore.zeros(1)),
    "a group more": lambda w: w.optimizer.add_param_group({"params": [nn.Parameter(gradcore.ones(1))]}),
    "a group less": lambda w: w.groups.pop(), "another option": lambda w: w.groups[1].update(eps=0.5),
    "a list changed in place": lambda w: w.groups[1]["betas"].__setitem__(1, 0.25),
    "an option more": lambda w: w.groups[1].update(more=1), "a parameter more": lambda w: w.groups[1]["params"].append(w.one),
    "another parameter": lambda w: w.groups[1]["params"].__setitem__(0, w.one),
    "a hook before": lambda w: w.optimizer.register_step_pre_hook(lambda *_: None),
    "a hook after": lambda w: w.optimizer.register_step_post_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_optimizer_is_noticed(change: str) -> None:
    w = Weights()
    holds = Terms([OptimizerGuard(w.optimizer, False)], {}).all_hold()
    assert holds()
    w.optimizer.step()
    assert holds()
    CHANGES[change](w)
    assert not holds()


@pytest.mark.parametrize("rates", [False, True])
def test_a_learning_rate_matters_only_to_code_that_reads_it(rates: bool) -> None:
    w = Weights()
    holds = Terms([OptimizerGuard(w.optimizer, rates)], {}).all_hold()
    w.groups[1]["lr"] = 0.5
    assert holds() is not rates


@pytest.mark.parametrize("rates", [False, True])
def test_a_first_beta_changed_in_place_matters_only_to_code_that_reads_it(rates: bool) -> None:
    w = Weights()
    holds = Terms([OptimizerGuard(w.optimizer, rates)], {}).all_hold()
    w.groups[1]["betas"][0] = 0.25
    assert holds() is not rates


@pytest.mark.parametrize("before, after", [({2}, {2.0}), ({2: None}, {2.0: None})], ids=["a set", "keys"])
def test_a_program_does_not_outlive_the_type_of_a_number(before: Any, after: Any) -> None:
    factors = {"all": before}

    @gradcore.compile
    def scaled(x: Any) -> Any:
        for factor in factors["all"]:
            x = x * factor
        return x

    x = gradcore.tensor([1, 2])
    assert [scaled(x).dtype for _ in range(3)] == [gradcore.int64] * 3
    factors["all"] = after
    assert scaled(x).dtype == gradcore.float32


def test_a_watcher_that_has_ended_before_its_block_does_not_end_again() -> None:
    with Watcher(ones := lambda: gradcore.ones(1), frozenset()) as watcher:
        ones()
        watcher.__exit__()
    assert watcher.drawn == []


def test_a_weak_reference_to_a_tensor_is_named_and_nothing_is_drawn_from_it() -> None:
    t = gradcore.ones(2)
    weak = ref(t)
    f = gradcore.compile(lambda x: x + weak())
    x = gradcore.ones(2)
    assert [f(x).tolist() for _ in range(2)] == [[2, 2]] * 2
    assert "refers to the variable weak of <lambda>'s closure, a weak reference to a tensor" in f.traces[0]
    assert "draws from" not in f.traces[0]
