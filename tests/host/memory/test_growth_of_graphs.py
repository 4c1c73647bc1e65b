"""A graph that grows from step to step without device bytes, since backward has released what its nodes kept."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import pytest

import gradcore
from gradcore import _looks, _step
from gradcore._holders import live_nodes
from gradcore.report import load_report
from gradcore.report.trend import growth_of_nodes


@pytest.fixture(autouse=True)
def first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_step, "_ends", {})
    monkeypatch.setattr(_looks, "_graphs", {})
    monkeypatch.setattr(_looks, "_links", {})


@pytest.mark.parametrize(("alive", "found"), [
    # Two, three and then two nodes of a step are alive, and all of the last.
    ([8, 9, 18, 19, 27, 28, 29, 38, 39, *range(40, 50)], (4, 2)), ([8, 9, 18, 19, 38, 39, *range(40, 50)], None), ([], None),
    # Those of before the first end may be anything, and four kinds of steps may alternate, each with a loss.
    ([1, 2, 3, 18, 27, 38, *range(40, 50)], None), ([*range(41, 51)], None)])
def test_a_graph_grows_if_each_step_leaves_nodes(alive: list[int], found: tuple[int, int] | None) -> None:
    # One step built none. The first node of those of a step continues from the step before.
    growth = growth_of_nodes([5, 10, 20, 20, 30, 40, 50], [(n + 1, n - 8 if n % 10 in (0, 7, 8) else n) for n in alive])
    assert (growth and (growth.steps, growth.nodes, growth.requested)) == (found and (*found, 0))


@pytest.mark.parametrize("form", ["total += loss", "total = total + loss", "total = 0.9 * total + loss"])
def test_a_graph_that_grows_without_bytes_is_told(form: str) -> None:
    """Each step's graph has released what it kept: its nodes alone are left, which hold no device memory."""
    w = gradcore.ones(1000, requires_grad=True)
    names: dict[str, Any] = {"total": gradcore.zeros(())}
    reports = []
    for _ in range(12):
        with gradcore.step(device="cpu") as step:
            loss = names["loss"] = w.exp().sum()
            loss.backward()
            exec(form, names)
        reports.append(step.report)
        w.grad = None
    assert [r.growth for r in reports[:5]] == [None] * 5
    growth = reports[-1].growth
    nodes = 3 + ("*" in form)
    assert growth is not None and (growth.steps, growth.nodes, growth.requested) == (10, nodes, 0)
    held, = growth.grown
    assert held.holder == "names['total'] in test_a_graph_that_grows_without_bytes_is_told()" and held.count == 1
    assert [c.reader for c in growth.carried] == ["add_" if "+=" in form else "mul" if "*" in form else "add"]
    text = str(reports[-1])
    assert f"The graph has grown for 10 steps, typically by {nodes} nodes per step, without device bytes:" in text
    assert "Did you mean loss.item() or detach()?" in text and load_report(json.loads(reports[-1].to_json())) == reports[-1]


@pytest.mark.parametrize("kinds", [2, 4])
def test_the_graphs_of_steps_that_alternate_grow(kinds: int) -> None:
    """The first of each kind continues from no graph: five more are needed."""
    w, totals = gradcore.ones(100, requires_grad=True), [gradcore.zeros(()) for _ in range(kinds)]
    for k in range(kinds + 5):
        _looks._graphs.clear()
        with gradcore.step(device="cpu") as step:
            loss = w.exp().sum()
            loss.backward()
            totals[k % kinds] = totals[k % kinds] + loss
        w.grad = None
    growth = step.report.growth
    assert growth is not None and (growth.steps, growth.nodes) == (4, 3)


def test_a_list_of_the_last_losses_is_no_growth_of_a_graph() -> None:
    """Each loss has a graph of its own, and the list is as long as it can be."""
    w, state, losses = gradcore.ones(100, requires_grad=True), gradcore.ones(100), deque[Any](maxlen=7)
    for _ in range(20):
        with gradcore.step(device="cpu") as step:
            state = (state.detach() * w).exp()
            losses.append(state.sum())
            losses[-1].backward()
        w.grad = None
    assert step.report.growth is None


def test_a_state_that_goes_on_without_its_graph_is_no_growth_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    w, state = gradcore.ones(100, requires_grad=True), gradcore.ones(100)
    looks = []
    monkeypatch.setattr(_looks, "live_nodes", lambda: looks.append(1) or live_nodes())
    for _ in range(8):
        with gradcore.step(device="cpu") as step:
            state = (state.detach() * w).exp()
            state.sum().backward()
        assert step.report.growth is None
        w.grad = None
    assert looks


def test_each_kind_of_look_takes_a_twentieth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if many steps are shorter together than a look."""
    now, looks = [0.0], []

    def look() -> list[tuple[int, int]]:
        now[0] += 1
        looks.append(1)
        return live_nodes()

    monkeypatch.setattr(_looks, "perf_counter", lambda: now[0])
    monkeypatch.setattr(_looks, "live_nodes", look)
    w, total = gradcore.ones(100, requires_grad=True), gradcore.zeros(())
    for _ in range(70):
        now[0] += 0.01
        with gradcore.step(device="cpu") as step:
            loss = w.exp().sum()
            loss.backward()
            total = total + loss
        growth = step.report.growth
        w.grad = None
    # One that counts the nodes, and one that asks what links the steps.
    assert growth is not None and growth.carried and (len(looks), growth.steps) == (2, 68)
