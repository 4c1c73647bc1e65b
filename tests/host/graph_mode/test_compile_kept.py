"""The residuals of a compiled call are reported like those of the eager call, each byte once."""

from __future__ import annotations

from typing import Any

import gradcore
from gradcore import nn


def both() -> tuple[Any, Any, Any]:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    compiled, x = gradcore.compile(model), gradcore.ones(5, 6)
    compiled(x), compiled(x)
    return model, compiled, x


def kept(report: Any) -> list[Any]:
    return [(k.name, k.op, k.layer, k.allocated, k.dropped_at is not None, k.freed_at is not None) for k in report.kept
            if k.op != "full" and k.role in ("output", "temporary")]


def marks(step: Any) -> list[tuple[str, str]]:
    return [(r.what, r.label) for r in step.recording.records if isinstance(r, gradcore.events.Mark)]


def test_a_graph_lists_what_lies_in_the_arena() -> None:
    model, compiled, x = both()
    eager, found = gradcore.graph(model(x).sum()), compiled(x).sum()
    graph = gradcore.graph(found)
    # The bytes of x, and of tanh's result, which two eager nodes keep.
    assert graph.nbytes == eager.nbytes == 4 * (5 * 6 + 5 * 8)
    assert graph.parameter_nbytes == eager.parameter_nbytes
    assert "tanh of 1 float32[5, 8] 160 bytes" in str(graph)
    assert [r.layer for r in graph.nodes[1].residuals if r.made_by == "tanh"] == ["1"]
    found.backward()
    assert gradcore.graph(found).nbytes == 0


def test_a_report_shows_what_is_kept_once() -> None:
    model, compiled, x = both()
    reports = []
    for f in (model, compiled):
        model.zero_grad()
        with gradcore.step() as step:
            f(x).sum().backward()
        reports.append((kept(step.report), step.report.residual_bytes, marks(step)))
    assert reports[0] == reports[1]
    assert [row[0] for row in reports[0][0]] == ["out", "x"]


def test_a_step_that_begins_between_the_two_parts() -> None:
    model, compiled, x = both()
    reports = []
    for f in (model, compiled):
        model.zero_grad()
        y = f(x).sum()
        with gradcore.step() as step:
            y.backward()
        del y
        reports.append((kept(step.report), step.report.residual_bytes))
    assert reports[0] == reports[1]


def test_a_call_without_a_requested_gradient_frees_it() -> None:
    model, compiled, x = both()
    reports = []
    live = gradcore.memory_requested()
    for f in (model, compiled):
        before = f(x)
        with gradcore.step() as step:
            after = f(x)
            del before, after
        reports.append(sorted(kept(step.report)))
    assert reports[0] == reports[1] and all(row[-1] for row in reports[1])
    assert gradcore.memory_requested() == live
