"""Settings of checkpoints beside their arguments, and what a program notes on nodes of a graph. As in PyTorch."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.events import Alloc
from gradcore.utils.checkpoint import checkpoint
from tests.conftest import raises


def how_far(library: Any) -> list[Any]:
    """How often the function reaches its end, by where the setting is made; and how its error is caught."""
    part = importlib.import_module(f"{library.__name__}.utils.checkpoint")
    x = library.ones(2, requires_grad=True)
    ends: list[int] = []
    found: list[Any] = []

    def run(x: Any) -> Any:
        y = x.exp().sin()
        ends.append(1)
        return y

    for enable, early_stop in ((False, True), (True, False)):
        with part.set_checkpoint_early_stop(enable):
            y = part.checkpoint(run, x, use_reentrant=False, early_stop=early_stop, context_fn=part.noop_context_fn)
        y.sum().backward()
        found.append(len(ends))
        ends.clear()
    part.checkpoint(run, x, use_reentrant=False).sum().backward()
    widths = iter((2, 1))
    y = part.checkpoint(lambda x: x[:next(widths)].exp(), x, use_reentrant=False)
    with raises(part.CheckpointError, "Recomputed values for the following tensors have different metadata"):
        y.sum().backward()
    return [*found, len(ends), issubclass(part.CheckpointError, RuntimeError)]


def notes(library: Any) -> list[Any]:
    """What is noted on a node and on a leaf's, and found there by whoever walks the graph."""
    x = library.ones(2, requires_grad=True)
    y = (x * 2).exp()
    y.grad_fn.metadata["layer"] = "head"
    node, _ = y.grad_fn.next_functions[0]
    leaf, _ = node.next_functions[0]
    leaf.metadata["step"] = 3
    y.sum().backward()
    return [y.grad_fn.metadata, node.metadata, node.next_functions[0][0].metadata, x.grad is not None]


@pytest.mark.parametrize(("program", "outcome"), [
    (how_far, [2, 1, 1, True]), (notes, [{"layer": "head"}, {}, {"step": 3}, True])])
def test_settings_and_notes(program: Any, outcome: list[Any]) -> None:
    assert program(gradcore) == outcome


@pytest.mark.oracle
@pytest.mark.parametrize("program", [how_far, notes])
def test_settings_and_notes_are_pytorchs(torch: Any, program: Any) -> None:
    assert program(gradcore) == program(torch)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("level", ["events", "stacks"])
def test_what_runs_again_has_the_line_of_the_first_run(reentrant: bool, level: str) -> None:
    """Where the part has no line of its own, as one of the library's modules has not: backward's line says nothing of it."""
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x = gradcore.ones(4, 8, requires_grad=True)

    def inner(x: Any) -> Any:
        return block(x).exp()

    with gradcore.step(level=level) as step:
        y = checkpoint(block, x, use_reentrant=reentrant)
        checkpoint(inner, y, use_reentrant=reentrant).sum().backward()
    again = [r.tag.site for r in step.recording.records
             if isinstance(r, Alloc) and r.tag.phase == "backward" and r.tag.op == "tanh"]
    first = inner.__code__.co_firstlineno
    assert [site.short for site in again] == [f"{Path(__file__).name}:{line}" for line in (first + 1, first + 4)]
    assert again[1].function == test_what_runs_again_has_the_line_of_the_first_run.__name__


@pytest.mark.parametrize("early", [False, True])
def test_a_backward_inside_the_first_run_runs_again_what_there_has_been(early: bool) -> None:
    def part(x: Any) -> Any:
        g, = gradcore.autograd.grad((x.exp() * x.sin()).sum(), x, create_graph=True)
        return g * x.exp()

    found = []
    for run in (part, lambda x: checkpoint(part, x, early_stop=early)):
        x = gradcore.ones(3, requires_grad=True)
        run(x * 1).sum().backward()
        found.append(x.grad.tolist())
    assert found[0] == found[1]


def test_arguments_that_are_one_tensor_are_one_in_the_second_run() -> None:
    """Self-attention is a single product then: it looks at whether query, key and value are the same."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    once = partial(checkpoint, attention)
    found, kept = [], []
    for run in (attention, once, partial(checkpoint, once)):
        x = gradcore.arange(48.0).view(2, 3, 8).sin().requires_grad_()
        with gradcore.step() as step:
            y = x * 2
            run(y, y, value=y, need_weights=False)[0].square().sum().backward()
        found.append(x.grad.tolist())
        kept.append(sum(k.name == "an argument of checkpoint" for k in step.report.kept))
    assert found[0] == found[1] == found[2]
    assert kept == [0, 1, 2]
