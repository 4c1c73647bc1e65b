"""Results of a compiled function that share bytes: a write by the caller to one is in the graph of all, as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn


class Net(nn.Module):
    def __init__(self, returned: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.weight = nn.Parameter(gradcore.ones(3, 4))
        self.register_buffer("buffer", gradcore.ones(3, 4))
        self.returned = returned

    def forward(self, x: Any) -> Any:
        return self.returned(self, self.linear(x), x)


def in_no_grad(net: Any, y: Any, x: Any) -> Any:
    with gradcore.no_grad():
        return y, y[0]


RETURNED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a row": lambda net, y, x: (y, y[0]),
    "a row before": lambda net, y, x: (y[0], y),
    "transposed": lambda net, y, x: (y, y.t()),
    "a part of a part": lambda net, y, x: (y, y[1:][0]),
    "detached": lambda net, y, x: (y, y.detach()[0]),
    "taken in no_grad": in_no_grad,
    "halves": lambda net, y, x: (y[:1], y[1:]),
    "overlapping": lambda net, y, x: (y[:2], y[1:]),
    "of an argument": lambda net, y, x: (y, x.view(-1)),
    "of a buffer": lambda net, y, x: (y, net.buffer[0]),
    "of a buffer that is returned": lambda net, y, x: (net.buffer, net.buffer[0] * 1, y, net.buffer[1])[::3],
    "of a parameter": lambda net, y, x: (y, net.weight[0]),
}


def write_second(a: Any, b: Any) -> None:
    b.mul_(2.0)
    a.sum().backward()


def write_first(a: Any, b: Any) -> None:
    a.mul_(2.0)
    (b * b).sum().backward()


def write_a_part(a: Any, b: Any) -> None:
    a[0].mul_(3.0)
    (a.sum() * 2 + (b * b).sum()).backward()


def write_both(a: Any, b: Any) -> None:
    b.mul_(2.0)
    a.add_(1.0)
    b.mul_(3.0)
    ((a * a).sum() + b.sum()).backward()


def write_unseen(a: Any, b: Any) -> None:
    with gradcore.no_grad():
        b.mul_(2.0)
    (a.sum() + b.sum()).backward()


def write_what_was_used(a: Any, b: Any) -> None:
    c = a.exp()
    b.mul_(2.0)
    c.sum().backward()


@pytest.mark.parametrize("write", [write_second, write_first, write_a_part, write_both, write_unseen, write_what_was_used])
@pytest.mark.parametrize("returned", RETURNED)
def test_a_write_to_a_result_is_in_the_history_of_all(returned: str, write: Callable[[Any, Any], None]) -> None:
    found = []
    for wrap in (lambda net: net, gradcore.compile):
        gradcore.manual_seed(0)
        net = Net(RETURNED[returned])
        function, seen = wrap(net), []
        for k in range(3):
            net.zero_grad()
            x = gradcore.full((3, 4), 0.5 * k + 1)
            a, b = function(x)
            error = None
            try:
                write(a, b)
            except RuntimeError as raised:
                # A residual has another name in a compiled node.
                error = type(raised).__name__, str(raised).split(":")[0]
            seen.append((error, a.tolist(), b.tolist(), x.tolist(), net.buffer.tolist(), net.weight.tolist(),
                         [None if p.grad is None else p.grad.tolist() for p in net.parameters()]))
            del a, b
        found.append(seen)
    assert found[0] == found[1]


def test_what_cannot_be_related_runs_eagerly_and_says_so() -> None:
    net = Net(RETURNED["overlapping"])
    compiled = gradcore.compile(net)
    compiled(gradcore.ones(3, 4))
    assert "are views of a tensor that is not returned: return that too, or clone() them" in compiled.traces[0]
    halves = gradcore.compile(Net(RETURNED["halves"]))
    halves(gradcore.ones(3, 4))
    assert len(halves.programs) == 1


@pytest.mark.parametrize("part", [False, True])
def test_a_write_to_a_view_of_an_argument_is_in_the_history_of_the_argument_of_each_call(part: bool) -> None:
    function = gradcore.compile(lambda x: (x * 2, x.view(-1)))
    for k in range(3):
        whole = gradcore.full((4, 2), k + 1.0)
        x = whole[1:3] if part else whole
        _, flat = function(x)
        w = gradcore.ones(flat.shape, requires_grad=True)
        flat.mul_(w)
        assert x.requires_grad and whole.requires_grad
        whole.sum().backward()
        assert w.grad.tolist() == [k + 1.0] * len(flat)
        del flat, x
    assert len(function.programs) == 1


def test_a_view_that_was_taken_in_no_grad_is_known_as_such() -> None:
    def f(x: Any) -> Any:
        with gradcore.no_grad():
            apart = x.view(-1)
        return x * 2, apart, x.view(-1)

    function = gradcore.compile(f)
    for _ in range(3):
        x, w = gradcore.ones(3), gradcore.ones(3, requires_grad=True)
        _, apart, flat = function(x)
        with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
            apart.mul_(w)
        flat.mul_(w)
        assert x.requires_grad
    assert len(function.programs) == 1
