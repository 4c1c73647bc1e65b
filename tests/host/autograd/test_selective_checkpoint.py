"""Checkpoints that keep the results of chosen ops: the same bits, and no op whose result is kept runs twice."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.engine.state import local
from gradcore.events import Launch
from gradcore.nn import functional as F
from gradcore.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from gradcore.utils.flop_counter import FlopCounterMode
from tests.conftest import raises


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.whole, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        q, k, v = (t.view(4, -1, 2, 8).transpose(1, 2) for t in self.whole(self.norm(x).view(4, 8, 16)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)
        return x + F.dropout(self.out(y.transpose(1, 2).reshape(32, 16)), 0.3)


class Square(gradcore.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x.exp())
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 16)

    def forward(self, x: Any) -> Any:
        out, (h, _) = self.lstm(x.view(8, 4, 16))
        return (out * h).view(32, 16)


def _written(x: Any) -> Any:
    y = (x @ x.t()) * 0.5
    y[2:5] = x[2:5].exp().sum()
    y.sin_().mul_(2)
    y.t()[0].add_(1)
    return y @ x


def _several(x: Any) -> Any:
    values, places = (x * 2).max(1)
    ordered, order = x.sort(1, descending=True)
    inside = (x > 0) & (ordered < 1)
    parts = gradcore.where(inside, x.exp(), ordered).split([6, 10], 1)
    return gradcore.cat([parts[1].cos(), parts[0] * values[:, None] + order[:, :6] * places[:, None]], 1)


def _scattered(x: Any) -> Any:
    """Functions that write to results of their own."""
    places = gradcore.arange(16, device=x.device).reshape(1, 16) % 3
    y = x.exp().scatter(0, places, x.sin()[:1]) * x.index_add(0, places[0, :2], x[:2] * 2).select_scatter(x[0].cos(), 0, 3)
    return y + F.gumbel_softmax(x, hard=True)


def _drawn(x: Any) -> Any:
    y = F.dropout(x * gradcore.rand_like(x), 0.4)
    y = y + gradcore.randn(32, 16, device=x.device) * x.sigmoid()
    return F.dropout(y, 0.4) * gradcore.bernoulli(gradcore.full_like(x, 0.7))


def _aside(x: Any) -> Any:
    with gradcore.no_grad():
        scale = x.abs().mean()
    return (x / scale) * x.detach().exp() + gradcore.arange(16, device=x.device)


def _mixed(x: Any) -> Any:
    w = x[:16] * 0.1
    with gradcore.autocast("cpu"):
        y = (x @ w).tanh()
        with gradcore.autocast("cpu", enabled=False):
            y = y.float() @ w
        return (y @ w).float()


def _inner_gradient(x: Any) -> Any:
    y = (x.exp() * x.sin()).sum()
    g, = gradcore.autograd.grad(y, x, create_graph=True)
    return g * x.exp()


def _packed(x: Any) -> Any:
    with gradcore.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        return (x.exp() * x.tanh()).sin()


PARTS: dict[str, Any] = {
    "attention": Attention, "recurrent": Recurrent,
    "batch norm": lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU()),
    "convolutions": lambda: nn.Sequential(nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4),
                                          nn.SiLU(), nn.MaxPool2d(2, 1, 1), nn.Flatten(), nn.Linear(36, 16)),
    "function": lambda: lambda x: Square.apply(x.sin()) * Square.apply(x), "several": lambda: _several,
    "scattered": lambda: _scattered,
    "drawn": lambda: _drawn, "aside": lambda: _aside, "mixed": lambda: _mixed,
    "gradient": lambda: _inner_gradient, "packed": lambda: _packed}


def every(n: int, first: int = 0) -> Any:
    """A policy that keeps every n-th result; only the first run asks it."""
    turn = count(first)
    return lambda ctx, op, *args, **attrs: next(turn) % n == 0


def keeping_results(policy: Any) -> Any:
    return partial(create_selective_checkpoint_contexts, policy)


POLICIES: dict[str, Any] = {
    "products": lambda: ["linear", "matmul", "attention", "conv2d", "lstm"], "none": lambda: [], "all": lambda: every(1),
    "second": lambda: every(2), "others": lambda: every(2, 1), "third": lambda: every(3),
    "drawn": lambda: ["dropout", "uniform"],
    "enum": lambda: lambda ctx, op, *args, **attrs: (
        CheckpointPolicy.PREFER_SAVE if op.name in ("exp", "linear") else CheckpointPolicy.MUST_RECOMPUTE)}

WAYS: dict[str, Any] = {
    "once": lambda part, keeping, x: checkpoint(part, x, context_fn=keeping()),
    "whole": lambda part, keeping, x: checkpoint(part, x, context_fn=keeping(), early_stop=False),
    "in a plain one": lambda part, keeping, x: checkpoint(lambda x: checkpoint(part, x * 1, context_fn=keeping()).exp(), x),
    "around a plain one": lambda part, keeping, x: checkpoint(lambda x: checkpoint(part, x * 1).exp(), x, context_fn=keeping()),
    "two": lambda part, keeping, x: checkpoint(lambda x: checkpoint(part, x * 1, context_fn=keeping()).exp(), x,
                                               context_fn=keeping())}


def train(name: str, forward: Any, device: str = "cpu", region: Any = nullcontext) -> tuple[list[Any], Any]:
    gradcore.manual_seed(0)
    part = PARTS[name]()
    weights = list(part.to(device).parameters()) if isinstance(part, nn.Module) else []
    x = gradcore.randn(32, 16, device=device).requires_grad_()
    gradcore.empty_cache(device)
    gradcore.manual_seed(1)
    with gradcore.step(device=device) as step, FlopCounterMode(display=False) as counter:
        with region():
            y = forward(part, x * 1)
            loss = (y * y).mean()
        loss.backward()
        del y
    found = [loss.detach(), gradcore.rand(3, device=device), *(p.grad for p in (x, *weights))]
    report = step.report
    return ([] if device == "meta" else [t.numpy(force=True).copy() for t in found],
            (report.peak.requested, report.peak.allocated, report.residual_bytes, counter.get_flop_counts()))


def plain(way: str) -> Any:
    return (lambda part, x: part(x)) if way in ("once", "whole") else lambda part, x: part(x * 1).exp()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PARTS)
def test_the_bits_are_those_without_a_checkpoint_and_meta_predicts_the_bytes(name: str, way: str) -> None:
    expected, _ = train(name, plain(way))
    for policy in POLICIES.values():
        forward = lambda part, x, policy=policy: WAYS[way](part, lambda: keeping_results(policy()), x)
        found, figures = train(name, forward)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert train(name, forward, "meta")[1] == figures


def small() -> tuple[Any, Any]:
    gradcore.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)), gradcore.randn(8, 16).requires_grad_()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_graph_that_is_retained_can_run_again_and_be_differentiated_twice(policy: str) -> None:
    found = []
    for how in (lambda net, x: net(x), lambda net, x: checkpoint(net, x, context_fn=keeping_results(POLICIES[policy]()))):
        net, x = small()
        y = how(net, x)
        loss = (y * y).sum()
        for _ in range(3):
            loss.backward(retain_graph=True)
        g, = gradcore.autograd.grad(loss, x, create_graph=True)
        (g * g).sum().backward(retain_graph=True)
        loss.backward()
        found.append([p.grad.numpy().copy() for p in (x, *net.parameters())])
        with raises(RuntimeError, "backward through the graph a second time"):
            loss.backward()
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_compiled_step_with_a_checkpoint_computes_the_same() -> None:
    found = []
    for keeping in (keeping_results([]), keeping_results(["linear"])):
        net, x = small()
        optimizer = gradcore.optim.SGD(net.parameters(), lr=0.1)

        @gradcore.compile
        def step(x: Any, net: Any = net, optimizer: Any = optimizer, keeping: Any = keeping) -> Any:
            optimizer.zero_grad()
            loss = checkpoint(net, x, context_fn=keeping).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        with gradcore.step() as seen:
            losses = [step(x.detach()).item() for _ in range(4)]
        launched = Counter(r.invocation.op for r in seen.recording.records if isinstance(r, Launch))
        found.append((losses, [p.numpy(force=True).copy() for p in net.parameters()], launched["linear"], len(step.programs)))
        del step
    (a, weights, twice, some), (b, same, once, programs) = found
    assert a == b and twice > once == 8 and programs == some
    for v, w in zip(weights, same, strict=True):
        np.testing.assert_array_equal(v, w)


def test_weights_that_autocast_has_cast_before() -> None:
    """The second run finds no casts of before, and shows none of them for another."""
    gradcore.manual_seed(0)
    first, second, x = nn.Linear(16, 16), nn.Linear(16, 16), gradcore.randn(8, 16).requires_grad_()
    found = []
    for how in (lambda part: part(x), lambda part: checkpoint(part, x, context_fn=keeping_results(every(1)))):
        for p in (x, *first.parameters(), *second.parameters()):
            p.grad = None
        with gradcore.autocast("cpu"):
            z = first(x)
            y = how(lambda x: second(first(x).tanh()))
        (y.float().square().sum() + z.float().sum()).backward()
        found.append([p.grad.numpy().copy() for p in (x, *first.parameters(), *second.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_step_that_began_inside_may_end_after_it():
    """As in a generator that the run has left waiting: its end sets the scope that was at its beginning."""
    def steps():
        with gradcore.step():
            yield

    waiting = steps()
    first, _ = create_selective_checkpoint_contexts(["matmul"])
    with first:
        next(waiting)
    waiting.close()
    assert not local.state.scope.watched
    assert (gradcore.ones(2) + 1).tolist() == [2, 2]
    weight = gradcore.ones(2, 2, requires_grad=True)
    contexts = partial(create_selective_checkpoint_contexts, ["matmul"])
    checkpoint(lambda x: x @ weight, gradcore.ones(2, 2), context_fn=contexts).sum().backward()
    assert weight.grad.tolist() == [[2, 2]] * 2
