"""A graph names every byte that it keeps alive: its figure is that of the log."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import folds, nn
from gradcore.utils.checkpoint import checkpoint

F = nn.functional


def kept(make: Callable[[], Any]) -> tuple[gradcore.autograd.inspection.Graph, int, int]:
    """A graph, and the requested bytes of other buffers and of parameters that the log says are kept for backward."""
    with gradcore.step() as step:
        result = make()
    held = [h for h in folds.live_at(step.log, len(step.log) - 1) if h.kept_by]
    parameters = sum(h.requested for h in held if h.role == "parameter")
    return gradcore.graph(result), sum(h.requested for h in held) - parameters, parameters


def parts() -> tuple[Any, nn.Module, nn.Module]:
    return (gradcore.ones(20, 10, requires_grad=True), nn.Linear(10, 10),
            nn.Sequential(nn.Linear(10, 30), nn.GELU(), nn.Dropout(0.5), nn.LayerNorm(30), nn.Linear(30, 10)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_arguments_of_a_checkpoint_are_kept_by_its_graph(reentrant: bool) -> None:
    x, first, part = parts()
    found, held, parameters = kept(lambda: checkpoint(part, first(x), use_reentrant=reentrant))
    assert (found.nbytes, found.parameter_nbytes) == (held, parameters)
    assert held >= 2 * x.nbytes, "what the first layer read, and what it made"
    if not reentrant:
        shown = [(n.layer[-1], r.name, r.made_by) for n in found for r in n.residuals if "checkpoint" in r.name]
        assert shown == [("0", "an argument of checkpoint", "linear"), ("0", "the random state of checkpoint", "clone")]


def test_a_checkpoint_within_a_checkpoint_counts_its_arguments_once() -> None:
    x, first, part = parts()
    found, held, parameters = kept(lambda: checkpoint(lambda y: checkpoint(part, y) * 2, first(x)))
    assert (found.nbytes, found.parameter_nbytes) == (held, parameters)


def test_what_a_checkpoint_holds_goes_with_its_backward() -> None:
    x, first, part = parts()
    y = checkpoint(part, first(x))
    y.sum().backward()
    found = gradcore.graph(y)
    assert (found.nbytes, found.parameter_nbytes) == (0, 0) and {n.state for n in found} == {"released"}


def test_what_only_a_recipe_reads_is_kept_by_the_graph() -> None:
    """The bias of a norm is read where backward recomputes the output, and by no gradient."""
    x, first, _ = parts()
    bias, norm = gradcore.ones(10), nn.BatchNorm1d(10)
    found, held, parameters = kept(lambda: first(F.layer_norm(first(x), (10,), None, bias)))
    assert (found.nbytes, found.parameter_nbytes) == (held, parameters)
    assert [(n.op, r.name, r.nbytes) for n in found for r in n.residuals if r.name == "bias"] == [("layer_norm", "bias", 40)]
    found, held, parameters = kept(lambda: first(F.relu(norm(first(x)))))
    assert (found.nbytes, found.parameter_nbytes) == (held, parameters)


def test_a_recipe_is_named_where_its_own_node_has_run() -> None:
    """Another loss recomputes the norm's output from what the norm's node has let go of."""
    x, first, _ = parts()

    def make() -> Any:
        y = F.layer_norm(first(x), (10,))
        other = first(y)
        y.sum().backward()
        return other

    found, held, parameters = kept(make)
    assert (found.nbytes, found.parameter_nbytes) == (held, parameters) and held >= x.nbytes
    assert [n.state for n in found if n.op == "layer_norm"] == ["released"]


def test_where_a_graph_forks_it_is_indented_and_leaves_are_drawn_once() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 1))
    y, w = model(gradcore.ones(4, 2)), gradcore.ones(1, requires_grad=True)
    seen = gradcore.graph((y * w + y.square() * 2).sum())
    text = [re.sub(r" of .*|#\d+ ", "", line) for line in str(seen).splitlines()]
    assert text == [
        "8 nodes keep 100 bytes, and 12", "SumBackward0", "AddBackward0", "  MulBackward0", "    LinearBackward0",
        "      GeluBackward0", "      LinearBackward0", "        leaf 0.weight", "        leaf 0.bias", "      leaf 2.weight",
        "      leaf 2.bias", "    leaf float32[1] (1)", "  MulBackward0", "  SquareBackward0", "  LinearBackward0 (above)"]
    assert re.findall(r'-> "(.*)";', seen.dot()) == ["float32[1] (1)", "2.weight", "2.bias", "0.weight", "0.bias"]
    leaves = re.findall(r'  "(.*)" \[shape=ellipse\];', seen.dot())
    assert leaves == ["0.bias", "0.weight", "2.bias", "2.weight", "float32[1] (1)"]
