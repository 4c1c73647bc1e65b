"""What the search for holders costs: a look at every reference of the program, as often as it takes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import gradcore
from gradcore import _holders
from tests.host.memory.holding import fresh, holder

FOUND: dict[str, Any] = {}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of looks."""
    # Anew, since the collector no longer sees what there was when the tests began, from Python 3.15 on even an empty dict.
    global FOUND
    FOUND = {}
    count, look = [0], _holders.referrers

    def looked(objects: tuple[Any, ...]) -> list[Any]:
        count[0] += 1
        return look(objects)

    monkeypatch.setattr(_holders, "referrers", looked)
    yield count
    FOUND.clear()
    gc.collect()


def test_nothing_is_looked_for_once_all_have_names(looks: list[int]) -> None:
    """Here garbage, which has no name, leads to the tensor, too."""
    x = fresh()
    serial, cycle = x.storage.serial, [[x]]
    cycle[0].append(cycle)
    FOUND["here"] = x
    del x, cycle
    assert holder(serial) == f"FOUND['here'] in {__name__}" and looks == [1]


def test_what_an_optimizer_holds_takes_no_look_for_the_optimizer_itself(looks: list[int]) -> None:
    """It is followed last, as a parameter has a better name: but by then it has one of its own, and so has its state."""
    w = gradcore.ones(4, requires_grad=True)
    optimizer = gradcore.optim.SGD([w], lr=0.1, momentum=0.9)
    w.sum().backward()
    optimizer.step()
    serial = optimizer.state[w]["momentum_buffer"].storage.serial
    del w
    # For the tensor, its entry and the state.
    assert holder(serial).startswith("optimizer.state[") and looks == [3]


def test_a_weight_deep_within_a_network_has_a_name(looks: list[int]) -> None:
    """As those of transformers do, in five modules and more, of a network that a container holds, or a cycle."""
    def network() -> int:
        model = layer = gradcore.nn.Linear(100, 1)
        for _ in range(8):
            outer = gradcore.nn.Module()
            outer.inner, model = model, outer
        FOUND["nets"] = {"one": [model]}
        return layer.weight.storage.serial

    serial = network()
    assert holder(serial) == f"FOUND['nets']['one'][0]{'.inner' * 8}.weight in {__name__}"
    net = FOUND["nets"]["one"]
    net.append(net)
    del FOUND["nets"], net
    assert holder(serial) == "a reference cycle of Linear, which only gc.collect() frees"
