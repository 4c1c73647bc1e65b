"""Compiled functions and tensors that are given other elements of the memory that they have: ``p.data = p.data[:2]``."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.errors import TraceError


def run_twice(compiled: Any, change: Callable[[], None], *args: Any) -> None:
    """Three calls, the change and two more calls, each with the eager function's result; the change is noticed once."""
    function = compiled.__wrapped__
    with gradcore.no_grad():
        for _ in range(3):
            assert compiled(*args).tolist() == function(*args).tolist()
        change()
        for _ in range(2):
            assert compiled(*args).tolist() == function(*args).tolist()
    assert len(compiled.traces) == 2, compiled.explain()


def test_a_parameter_moves_within_a_flat_buffer() -> None:
    flat, layer = gradcore.arange(12.0), nn.Linear(3, 2, bias=False)

    def show(start: int) -> None:
        layer.weight.data = flat[start:start + 6].view(2, 3)

    show(0)
    compiled = gradcore.compile(lambda x: layer(x))
    run_twice(compiled, lambda: show(6), gradcore.ones(1, 3))
    assert compiled.traces[1] == "the memory of weight of Linear was replaced"


def test_channels_are_pruned() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))

    def prune() -> None:
        net[0].weight.data, net[0].bias.data = net[0].weight.data[:2], net[0].bias.data[:2]
        net[1].weight.data = net[1].weight.data[:, :2]

    run_twice(gradcore.compile(lambda x: net(x)), prune, gradcore.ones(1, 3))


@pytest.mark.parametrize("elements", [slice(3, 6), slice(0, None, 2), slice(0, 1)])
def test_other_tensors(elements: slice) -> None:
    ring, held, listed = gradcore.arange(6.0), SimpleNamespace(), [gradcore.ones(1)]
    norm = nn.BatchNorm1d(3, affine=False).eval()
    held.x, listed[0], norm.running_mean = ring[:3], ring[:3], ring[:3]

    def other(tensor: gradcore.Tensor) -> Callable[[], None]:
        return lambda: setattr(tensor, "data", ring[elements])

    run_twice(gradcore.compile(lambda x: x + held.x), other(held.x), gradcore.ones(3))
    run_twice(gradcore.compile(lambda x: x * listed[0]), other(listed[0]), gradcore.ones(3))
    if elements.stop == 6:
        run_twice(gradcore.compile(lambda x: norm(x)), other(norm.running_mean), gradcore.ones(2, 3))


def test_a_parameter_among_the_arguments() -> None:
    flat = gradcore.arange(6.0)
    p = nn.Parameter(flat[:3])
    compiled = gradcore.compile(lambda p, x: p * x)
    run_twice(compiled, lambda: setattr(p, "data", flat[3:]), p, gradcore.ones(3))


@pytest.mark.parametrize("within", [True, False])
def test_an_optimizers_state_and_its_learning_rate(within: bool) -> None:
    def trained(wrap: Callable[[Any], Any]) -> tuple[list[float], Any]:
        p, ring, rates = nn.Parameter(gradcore.ones(3)), gradcore.arange(6.0), gradcore.tensor([0.1, 0.2])
        optimizer = gradcore.optim.SGD([p], rates[0], momentum=0.9)

        def step(x: gradcore.Tensor) -> gradcore.Tensor:
            optimizer.zero_grad()
            loss = (p * x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        function, losses = wrap(step), []
        for k in range(12):
            if k == 3:
                optimizer.state[p]["momentum_buffer"].data = ring[:3]
            if k == 6:
                optimizer.state[p]["momentum_buffer"].data = ring[3:] if within else ring[3:].clone()
            if k == 9:
                optimizer.param_groups[0]["lr"].data = rates[1] if within else rates[1].clone()
            losses.append(function(gradcore.ones(3)).item())
        return losses, function

    losses, compiled = trained(gradcore.compile)
    assert losses == trained(lambda f: f)[0]
    assert compiled.traces[-3:] == ["the state of the optimizer SGD changed"] * 2 + [
        "the options or parameters of the optimizer SGD changed"], compiled.explain()


def test_a_traced_graph_refuses_them() -> None:
    flat = gradcore.arange(6.0)
    p, x = nn.Parameter(flat[:3]), gradcore.ones(3)
    graph = gradcore.trace(lambda x: p * x, x)
    assert graph.execute(x).tolist() == [0, 1, 2]
    p.data = flat[3:]
    with pytest.raises(TraceError, match="now shows other elements of the same memory"):
        graph.execute(x)
    p.data = flat[:3]
    assert graph.execute(x).tolist() == [0, 1, 2]
