"""Gradients that a compiled function clears itself, as ``zero_grad`` does, or that its caller requests."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.utils.checkpoint import checkpoint


def test_a_loop_over_parameters_may_drop_their_gradients() -> None:
    layer = nn.Linear(3, 2)

    def step(x: Any) -> Any:
        for p in layer.parameters():
            p.grad = None
        loss = layer(x).square().sum()
        loss.backward()
        return loss

    compiled = gradcore.compile(step)
    for k in range(4):
        x = gradcore.full((4, 3), float(k + 1))
        found = compiled(x).item(), layer.weight.grad.tolist(), layer.bias.grad.tolist()
        assert found == (step(x).item(), layer.weight.grad.tolist(), layer.bias.grad.tolist())
    assert len(compiled.programs) == 2, "one for gradients that are there, one for none: " + compiled.explain()


def test_other_things_called_grad_are_assigned_eagerly() -> None:
    class Holder:
        grad: Any = 1.0

    holder, x = Holder(), gradcore.ones(3).requires_grad_()

    def f(other: Any) -> Any:
        for t in (x, holder):
            t.grad = other
        return x * 2

    compiled = gradcore.compile(f)
    compiled(gradcore.ones(3))
    assert "assigns to grad (of a tensor: write p.grad.copy_(...) instead)" in compiled.explain()
    x.grad = None

    def g(x: Any) -> Any:
        holder.grad = None
        return x * 2

    compiled = gradcore.compile(g)
    compiled(gradcore.ones(3))
    assert "assigns to grad" in compiled.explain() and not compiled.programs


VIEWS: dict[str, Any] = {
    "rows": lambda x, w: x @ w[:3],
    "transposed": lambda x, w: x @ w[:, :3].t(),
    "expanded": lambda x, w: x * w[:1, :3].expand(4, 3),
    "parts": lambda x, w: x @ w.chunk(2)[0] + w.chunk(2)[1][0],
    "a view alone": lambda x, w: w.view(-1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_the_callers_gradient_reaches_what_was_read_through_views_alone(name: str) -> None:
    w = gradcore.tensor(np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32), requires_grad=True)
    f = VIEWS[name]
    compiled = gradcore.compile(lambda x: f(x, w))
    for k in range(4):
        x, found = gradcore.full((4, 3), float(k + 1)), []
        for run in (lambda x: f(x, w), compiled):
            w.grad = None
            y = run(x)
            y.backward(gradcore.ones(*y.shape) * 2)
            found.append((y.tolist(), w.grad.tolist()))
        assert found[0] == found[1]


@pytest.mark.parametrize("offset", [0, 2])
def test_a_gradient_that_is_the_cotangent_itself(offset: int) -> None:
    w, v = (gradcore.ones(4).requires_grad_() for _ in range(2))
    whole = gradcore.tensor(np.arange(8, dtype=np.float32))

    def f(x: Any) -> tuple[Any, Any]:
        return w.view(2, 2), v * x

    compiled = gradcore.compile(f)
    for k in range(3):
        w.grad = v.grad = None
        same, times = compiled(gradcore.full((4,), float(k)))
        gradcore.autograd.backward([same, times], [whole[offset:offset + 4].view(2, 2), gradcore.ones(4)])
        assert w.grad.tolist() == whole[offset:offset + 4].tolist() and v.grad.tolist() == [float(k)] * 4
        w.grad.zero_()
        assert whole.tolist() == list(range(8)), "the gradient has bytes of its own"


class Descent(gradcore.optim.Optimizer):
    """A user's update, which takes the learning rate as a number."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def _optim_update(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            if p.grad is not None:
                p.sub_(p.grad * group["lr"])


class Decaying(gradcore.optim.SGD):
    """The library's update, and other code that depends on the learning rate."""

    def _optim_update(self, group: dict[str, Any]) -> None:
        super()._optim_update(group)
        for p in group["params"]:
            p.mul_(1 - group["lr"])


@pytest.mark.parametrize("kind", [Descent, Decaying])
def test_a_rate_that_a_users_own_update_takes_may_change(kind: Any) -> None:
    def trained(wrap: Any) -> list[float]:
        gradcore.manual_seed(0)
        layer = nn.Linear(3, 2)
        optimizer = kind(layer.parameters())

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = layer(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        run, losses = wrap(step), []
        for k in range(6):
            optimizer.param_groups[0]["lr"] = 0.01 * (1 + k // 3)
            losses.append(run(gradcore.ones(4, 3)).item())
        return losses

    assert trained(gradcore.compile) == trained(lambda step: step)


def once_and_compiled(f: Any, params: list[Any], x: Any) -> Any:
    """The gradients of a function that its caller differentiates, called plainly and compiled, four times each."""
    compiled = gradcore.compile(f)
    for k in range(4):
        found = []
        for run in (f, compiled):
            for p in params:
                p.grad = None
            run(x * (k + 1)).backward()
            found.append([p.grad.tolist() for p in params])
        assert found[0] == found[1]
    return compiled


def test_a_backward_inside_the_callers_backward_adds_to_gradients_once() -> None:
    first, part = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    params = [*first.parameters(), *part.parameters()]

    def loss(x: Any, reentrant: bool) -> Any:
        return checkpoint(part, first(x), use_reentrant=reentrant).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = once_and_compiled(lambda x: loss(x, True), params, gradcore.ones(2, 3))
    assert not old.programs and "use_reentrant=False" in old.traces[0]
    for reentrant in (True, False):

        def step(x: Any, reentrant: bool = reentrant) -> Any:
            for p in params:
                p.grad = None
            found = loss(x, reentrant)
            found.backward()
            return found

        compiled = gradcore.compile(step)
        for _ in range(4):
            assert compiled(gradcore.ones(2, 3)).item() == step(gradcore.ones(2, 3)).item()
        assert compiled.programs, compiled.explain()


def test_a_checkpointed_part_is_replayed_for_the_callers_backward() -> None:
    part = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5))
    compiled = gradcore.compile(lambda x: checkpoint(part, x, use_reentrant=False).sum())
    for k in range(4):
        found = []
        for run in (lambda x: checkpoint(part, x, use_reentrant=False).sum(), compiled):
            gradcore.manual_seed(k)
            part[0].weight.grad = None
            run(gradcore.ones(2, 3) * k).backward()
            found.append(part[0].weight.grad.tolist())
        assert found[0] == found[1]
    assert len(compiled.programs) == 1 and len(compiled.traces) == 1


def test_a_leaf_that_the_function_makes_goes_with_its_gradient() -> None:
    """As in a physics-informed network, whose residual is a derivative with respect to the inputs."""
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))

    def step(x: Any) -> Any:
        for p in net.parameters():
            p.grad = None
        x = x.clone().requires_grad_()
        u = net(x)
        slope, = gradcore.autograd.grad(u, x, gradcore.ones_like(u), create_graph=True)
        loss = (slope - u).square().mean()
        loss.backward()
        return loss

    compiled = gradcore.compile(step)
    for k in range(4):
        x = gradcore.full((3, 1), float(k))
        found = compiled(x).item(), net[0].weight.grad.tolist()
        assert found == (step(x).item(), net[0].weight.grad.tolist())
    assert len(compiled.programs) == 2, compiled.explain()


def test_a_function_may_keep_numbers_for_its_backward() -> None:
    class Reverse(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float) -> Any:
            ctx.factor = factor
            ctx.shape, ctx.doubled = x.shape, 2 * factor
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.reshape(ctx.shape) * (ctx.doubled - ctx.factor), None

    layer = nn.Linear(3, 2)
    compiled = once_and_compiled(lambda x: Reverse.apply(layer(x), -0.5).square().sum(), [layer.weight], gradcore.ones(2, 3))
    assert len(compiled.programs) == 1


def second_part(function: Any) -> list[str]:
    """The ops of the gradient of a compiled function's only program."""
    program, = function.programs
    return [i.op for i in program.instructions[program.split:]]


def test_only_gradients_that_are_wanted_are_computed() -> None:
    product = gradcore.compile(lambda x, y: (x * y).sum())
    for _ in range(3):
        x, y = gradcore.full((3,), 2.0, requires_grad=True) * 1, gradcore.full((3,), 5.0)
        product(x, y).backward()
    assert second_part(product).count("mul") == 1
    # What is behind an argument is the caller's.
    doubled = gradcore.compile(lambda x: x * 2)
    for _ in range(3):
        w = gradcore.ones(3, requires_grad=True)
        doubled(w.exp().sin()).sum().backward()
        np.testing.assert_allclose(w.grad.numpy(), 2 * np.e * np.cos(np.e), rtol=1e-6)
    assert second_part(doubled) == ["mul"]


def test_an_argument_that_does_not_matter_has_no_gradient() -> None:
    f = gradcore.compile(lambda x, y: (x * 2, y.detach() + 1)[0])
    for _ in range(3):
        v, w = (gradcore.ones(3, requires_grad=True) for _ in range(2))
        f(v * 1, w * 1).sum().backward()
        assert v.grad.tolist() == [2, 2, 2] and w.grad is None


def test_calls_without_a_backward_give_their_arena_back() -> None:
    w = gradcore.ones(1000, requires_grad=True)
    f = gradcore.compile(lambda x: (x * w).exp())
    for _ in range(2):
        f(gradcore.ones(1000)).sum().backward()
    replay, = f._entries[next(iter(f._entries))]
    before = [*replay.replay._free]
    assert len(before) == 1
    waiting = f(gradcore.ones(1000))
    assert "program of" in f.explain() and replay.replay._free == []
    del waiting
    assert replay.replay._free == before
    found = f(gradcore.ones(1000))
    found.sum().backward()
    assert replay.replay._free == before and "Compiled" in str(gradcore.graph(found))


def _weighted(weight: Any, drops: bool) -> Any:
    """A function whose gradient reads the gradient that its weight has, and which may drop that."""
    def weighted(x: Any) -> Any:
        y = (x * weight * weight.grad).sum()
        if drops:
            weight.grad = None
        return y

    return weighted


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("drops", [False, True])
def test_a_gradient_that_the_second_part_reads_lives_until_it_has_run(drops: bool, recorded: bool) -> None:
    weight = gradcore.ones(3, requires_grad=True)
    compiled = gradcore.compile(_weighted(weight, drops))
    for k in range(4):
        weight.grad = gradcore.full((3,), k + 2.0)
        x = gradcore.ones(3, requires_grad=True) * (k + 1)
        y = compiled(x)
        weight.grad = None
        # What is allocated now would lie in its place.
        others = [gradcore.full((3,), 99.0) for _ in range(4)]
        with gradcore.step() if recorded else nullcontext():
            found = gradcore.autograd.grad(y, [x, weight])
        assert [g.tolist() for g in found] == [[k + 2.0] * 3, [(k + 1) * (k + 2.0)] * 3] and len(others) == 4
    assert len(compiled.programs) == len(compiled.traces) == 1


def test_a_gradient_that_the_second_part_reads_must_not_be_written_to() -> None:
    weight = gradcore.ones(3, requires_grad=True)
    compiled = gradcore.compile(_weighted(weight, False))
    for _ in range(3):
        weight.grad = gradcore.ones(3)
        y = compiled(gradcore.ones(3))
        weight.grad.mul_(3)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
    assert len(compiled.programs) == 1


class GradientOfWeight(gradcore.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.weight = weight
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return ctx.weight.grad, None


def test_code_that_asks_for_a_gradient_in_the_callers_backward_runs_each_time() -> None:
    weight = gradcore.ones(2, requires_grad=True)
    compiled = gradcore.compile(lambda x: GradientOfWeight.apply(x, weight).sum())
    for k in range(4):
        weight.grad = gradcore.full((2,), k + 1.0)
        x = gradcore.ones(2, requires_grad=True) * 1
        found, = gradcore.autograd.grad(compiled(x), x)
        assert found.tolist() == [k + 1.0] * 2
    assert not compiled.programs and "asks for a gradient" in compiled.traces[0]
