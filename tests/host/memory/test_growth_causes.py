"""What is said to be the cause of memory that grows: lines of layers that take turns, and what links the steps."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from typing import Any

import pytest

import gradcore
from gradcore import _looks, _step
from gradcore.report.trend import Trend
from gradcore.utils.checkpoint import checkpoint


@pytest.mark.parametrize("form", ["detached", "detached after", "view", "kept", "compiled", "compiled, detached"])
def test_a_state_that_is_detached_is_not_said_to_link_steps(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What grows is what a list keeps. The state is read by the next step, which is a cause only if its graph is."""
    monkeypatch.setattr(_looks, "_links", {})
    w, state, kept = gradcore.ones(10, 10, requires_grad=True), gradcore.ones(10), []

    def update(state: gradcore.Tensor) -> gradcore.Tensor:
        turned = w.t()
        given = state.view(2, 5).view(10) if form == "view" else state
        return (given * turned).exp().sum(0)

    run = gradcore.compile(update) if "compiled" in form else update
    for _ in range(12):
        with gradcore.step(device="cpu") as step:
            state = run(state.detach() if form in ("detached", "compiled, detached") else state)
            kept.append(state.sin())
            if form == "detached after":
                state = state.detach()
    growth = step.report.growth
    assert growth is not None and "exp" in [g.op for g in growth.grown]
    assert [(c.op, c.reader) for c in growth.carried] == ([] if "detached" in form else [("sum", "mul")])


def test_a_state_without_its_graph_is_no_cause_also_where_nobody_looks_for_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_step, "_ends", {})
    w, state, kept = gradcore.ones(10, requires_grad=True), gradcore.ones(10), []
    for _ in range(6):
        with gradcore.step(device="cpu") as step:
            state = (w * state).tanh().detach()
            kept.append(state.exp())
    step.names_holders = False
    growth = step.report.growth
    assert growth is not None and [g.op for g in growth.grown] == ["exp"] and growth.carried == ()


def test_of_any_number_of_steps_only_the_last_few_are_kept() -> None:
    trend = Trend[int]()
    for k in range(1000):
        trend.add(k, k)
    assert trend.risen == list(range(975, 1000))
    assert sum(len(kept) for kept in vars(trend).values() if type(kept) is deque) < 100


def test_gradients_of_layers_in_turn_and_copies_of_a_model_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer, and each network, is another one: they gain together, and not one after the other."""
    monkeypatch.setattr(_step, "_ends", {})
    experts = gradcore.nn.ModuleDict({"expert": gradcore.nn.ModuleList(gradcore.nn.Linear(8, 8) for _ in range(8))})
    snaps = []
    for k in range(8):
        with gradcore.step(device="cpu") as step:
            experts["expert"][k](gradcore.ones(4, 8)).sum().backward()
            snaps.append(deepcopy(experts["expert"][0]))
    growth = step.report.growth
    assert growth is not None
    # The first step is what the others are compared with.
    assert [(g.op, g.layer, g.count, g.holder[:25]) for g in growth.grown] == [
        ("linear_grad", "ModuleDict.expert.1-7", 14, "experts.expert.1.weight.g"),
        ("clone", "Linear#2-8", 14, "snaps[1].weight in test_g")]


def test_what_layers_in_turn_replace_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last two results are of two layers, and those before are gone."""
    monkeypatch.setattr(_step, "_ends", {})
    layers = [gradcore.nn.Linear(8, 8) for _ in range(12)]
    last, kept = deque[Any](maxlen=2), []
    for k in range(12):
        with gradcore.step(device="cpu") as step, gradcore.no_grad():
            last.append(layers[k](gradcore.ones(4, 8)))
            kept.append(last[-1].exp())
    growth = step.report.growth
    assert growth is not None and [(g.op, g.count) for g in growth.grown] == [("exp", 12)]


def test_what_becomes_a_buffer_later_is_no_line_of_its_own() -> None:
    made = [gradcore.ones(100) for _ in range(12)]
    net, kept = gradcore.nn.Linear(2, 2), []
    for k in range(12):
        with gradcore.step(device="cpu") as step:
            net.register_buffer(f"b{k}", made[k])
            net(gradcore.ones(1, 2))
            kept.append(gradcore.zeros(10))
    growth = step.report.growth
    assert growth is not None and [g.count for g in growth.grown] == [12]


@pytest.mark.parametrize("how", ["checkpoint", "compiled", "buffer"])
def test_what_has_no_op_of_its_own_keeps_what_grows(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder and the keeper of what a checkpoint or a compiled function keeps; a buffer that goes on with its graph."""
    monkeypatch.setattr(_looks, "_links", {})
    nn, kept = gradcore.nn, []
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    net.register_buffer("mean", gradcore.zeros(8))
    compiled = gradcore.compile(net)
    for _ in range(6):
        with gradcore.step(device="cpu") as step:
            x = gradcore.ones(64, 8)
            if how == "buffer":
                net.mean = 0.9 * net.mean + net(x).square().mean(0)
            else:
                kept.append(compiled(x).sum() if how == "compiled" else checkpoint(net[1:], net[0](x)).sum())
    growth = step.report.growth
    assert growth is not None
    given, = (g for g in growth.grown if (g.op, g.layer) == (("linear", "0") if how == "checkpoint" else ("tanh", "1")))
    where = "test_what_has_no_op_of_its_own_keeps_what_grows()"
    assert given.keeper.partition(",")[0] == ("an argument of checkpoint" if how == "checkpoint" else "tanh")
    assert given.holder == f"the graph of {'net.mean' if how == 'buffer' else 'kept[0]'} in {where}"
    assert [(c.op, c.reader) for c in growth.carried] == ([("add", "mul")] if how == "buffer" else [])


def test_batches_kept_through_steps_without_a_log_are_named_but_no_parameters_that_stay() -> None:
    weights = [gradcore.nn.Parameter(gradcore.ones(10)) for _ in range(3)]
    kept: list[Any] = []
    for level in [*["counts"] * 4, "events"]:
        with gradcore.step(device="cpu", level=level) as step:
            kept.append(gradcore.tensor([1.0] * 1000))
    growth = step.report.growth
    assert growth is not None and [(g.op, g.count) for g in growth.grown] == [("tensor", 5)] and len(weights) == 3
