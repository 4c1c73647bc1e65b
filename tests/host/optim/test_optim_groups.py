"""Parameter groups: the dicts that the caller gives are the optimizer's."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore import optim


def groups_kept(library: Any) -> Any:
    """What is left of a caller's group, and what a change of it does to the next step."""
    first, second = library.ones(1, requires_grad=True), library.ones(1, requires_grad=True)
    mine, later = {"params": [first], "lr": 0.5, "name": "head"}, {"params": second}
    optimizer = library.optim.SGD([mine], lr=0.25, momentum=0.5)
    optimizer.add_param_group(later)
    for p in (first, second):
        p.grad = library.ones(1)
    mine["lr"], later["momentum"] = 2.0, 0.0
    optimizer.step()
    same = [mine is optimizer.param_groups[0], later is optimizer.param_groups[1]]
    return same, list(mine), list(later), later["lr"], first.tolist(), second.tolist()


def test_a_group_is_the_callers_dict() -> None:
    same, options, _, rate, first, second = groups_kept(gradcore)
    assert (same, options[:3], rate) == ([True, True], ["params", "lr", "name"], 0.25)
    assert (first, second) == ([-1.0], [0.75])


@pytest.mark.oracle
def test_groups_are_kept_as_pytorchs(torch: Any) -> None:
    assert groups_kept(gradcore) == groups_kept(torch)


def groups_loaded(library: Any) -> Any:
    """What loading changes in a group that two optimizers have."""
    x = library.ones(1, requires_grad=True)
    mine = {"params": [x], "lr": 0.5, "name": "head"}
    first, second = (library.optim.SGD([mine], lr=0.25) for _ in range(2))
    state = first.state_dict()
    state["param_groups"][0]["lr"] = 2.0
    first.load_state_dict(state)
    mine["lr"] += 0.125
    return [[group["lr"], group["name"], group["params"][0] is x] for o in (first, second) for group in o.param_groups]


def test_loading_leaves_the_callers_dict_as_it_is() -> None:
    assert groups_loaded(gradcore) == [[2.0, "head", True], [0.625, "head", True]]


@pytest.mark.oracle
def test_groups_are_loaded_as_pytorchs(torch: Any) -> None:
    assert groups_loaded(gradcore) == groups_loaded(torch)


@pytest.mark.parametrize("how", ["one", "all", "loaded"])
def test_a_compiled_step_notices_that_a_group_is_another_dict(how: str) -> None:
    x = gradcore.ones(1, requires_grad=True)
    optimizer = optim.SGD([x], lr=0.5)

    @gradcore.compile
    def step() -> None:
        optimizer.zero_grad()
        x.sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
    if how == "one":
        optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 0.25}
    elif how == "all":
        optimizer.param_groups = [{**group, "lr": 0.25} for group in optimizer.param_groups]
    else:
        state = optimizer.state_dict()
        optimizer.load_state_dict({**state, "param_groups": [{**state["param_groups"][0], "lr": 0.25}]})
    step()
    assert x.item() == -0.75
    optimizer.param_groups[0]["lr"] = 2.0
    step()
    assert x.item() == -2.75


def test_a_group_that_is_refused_stays_as_it_is() -> None:
    x = gradcore.ones(1, requires_grad=True)
    optimizer = optim.SGD([x], lr=0.1)
    group: dict[str, Any] = {"params": (p for p in [x])}
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group(group)
    assert list(group) == ["params"] and len(optimizer.param_groups) == 1
