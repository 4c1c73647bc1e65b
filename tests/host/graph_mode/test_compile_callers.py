"""What a compiled function shares with its caller: hooks and writes of the caller's backward, memory of gradients, options of
children that it only reads, and attributes that come and go."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn, optim
from gradcore.utils.checkpoint import checkpoint

Wrap = Callable[[Any], Any]
ones = gradcore.ones


def hooks_run_once(wrap: Wrap) -> Any:
    model, seen = nn.Linear(2, 3), []

    def forward(x: Any) -> Any:
        h = model(x)
        h.register_hook(lambda g: seen.append(g.tolist()))
        return h.sum()

    f = wrap(forward)
    for _ in range(3):
        f(ones(1, 2)).backward()
    return seen


def statistics_in_a_checkpoint_are_written_once(wrap: Wrap) -> Any:
    norm = nn.BatchNorm1d(2)
    f, seen = wrap(lambda x: checkpoint(norm, x, use_reentrant=False).sum()), []
    for k in range(4):
        f(gradcore.arange(8.0).view(4, 2) * k).backward()
        seen.append((norm.num_batches_tracked.item(), norm.running_mean.tolist(), norm.weight.grad.tolist()))
    return seen


def what_a_checkpoint_writes_again_may_be_written_before(wrap: Wrap) -> Any:
    """By another call whose gradient waits, or, as the generator's state is, by any op that draws numbers."""
    gradcore.manual_seed(0)
    block, seen = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)), []
    f = wrap(lambda x: checkpoint(block, x, use_reentrant=False))
    for k in range(4):
        x = gradcore.arange(8.0).view(4, 2) * k
        (f(x).sum() + nn.functional.dropout(f(x + 1)).square().sum()).backward()
        seen.append((block[1].running_mean.tolist(), block[0].weight.grad.tolist(), gradcore.get_rng_state().tolist()))
    return seen


#: What the function below adds to.
TOTALS: list[Any] = []


class Doubled(gradcore.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        TOTALS[0].mul_(0.9).add_(g)
        return g * 2


def a_backward_of_ones_own_writes_once(wrap: Wrap) -> Any:
    total, w = gradcore.zeros(3), ones(3, requires_grad=True)
    TOTALS[:] = [total]
    f, seen = wrap(lambda x: Doubled.apply(x * w).sum()), []
    for k in range(5):
        loss = f(ones(3) * k)
        seen.append(total.tolist())
        loss.backward()
        seen.append((total.tolist(), w.grad.tolist()))
    TOTALS.clear()
    return seen


def a_call_in_the_forward_of_a_function(wrap: Wrap) -> Any:
    """As that of a checkpoint with use_reentrant, for which it is one without a graph."""
    model, seen = nn.Sequential(nn.Linear(2, 3), nn.GELU()), []
    f = wrap(model)
    for k in range(4):
        x = gradcore.arange(4.0).view(2, 2).mul(k).requires_grad_()
        model.zero_grad()
        checkpoint(f, x, use_reentrant=True).square().sum().backward()
        seen.append((x.grad.tolist(), [p.grad.tolist() for p in model.parameters()]))
    return seen


def a_gradient_that_was_a_tensor_that_is_read(wrap: Wrap) -> Any:
    w, buffer = nn.Parameter(gradcore.tensor([1.0, 2.0])), gradcore.tensor([10.0, 20.0])
    f, seen = wrap(lambda x: ((w * x).sum().backward(), buffer * 1)[1]), []
    for k in range(7):
        if k in (2, 3):
            w.grad = buffer
        if k == 5:
            w.grad = ones(2)
        seen.append((f(ones(2) * k).tolist(), w.grad.tolist()))
    return seen


def a_gradient_that_was_an_argument(wrap: Wrap) -> Any:
    w = nn.Parameter(gradcore.tensor([1.0, 2.0]))
    f, seen = wrap(lambda x: ((w * x).sum().backward(), x * 1)[1]), []
    for k in range(7):
        x = ones(2) * k
        if k in (2, 3):
            w.grad = x
        seen.append((f(x).tolist(), w.grad.tolist()))
    return seen


def options_of_children(wrap: Wrap) -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.scale = nn.Dropout(0.5), 1.0

        def forward(self, x: Any) -> Any:
            return x * self.drop.p * self.scale * (2.0 if self.drop.training else 3.0)

    net, layers = Net(), nn.Sequential(nn.Identity(), nn.Dropout(0.5))
    f, g = wrap(lambda x: net(x)), wrap(lambda x: x * layers[1].p)
    seen = [f(ones(1)).item(), g(ones(1)).item()]
    net.scale = 2.0
    seen.append(f(ones(1)).item())
    net.drop.p = layers[1].p = 0.1
    seen += [f(ones(1)).item(), g(ones(1)).item()]
    net.drop.eval()
    return [*seen, f(ones(1)).item()]


def a_wrapper_that_reads_groups(wrap: Wrap) -> Any:
    class Look(optim.Optimizer):
        def __init__(self, base: Any) -> None:
            self.base, self.param_groups, self.state = base, base.param_groups, base.state

        def step(self, closure: Any = None) -> None:
            self.base.step()
            [p for group in self.param_groups for p in group["params"]]

    model = nn.Linear(2, 3)
    look = Look(optim.SGD(model.parameters(), lr=0.1))

    def step(x: Any) -> Any:
        model.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        look.step()
        return loss.detach()

    step = wrap(step)
    return [step(ones(4, 2)).item() for _ in range(4)]


def attributes_that_come_and_go(wrap: Wrap) -> Any:
    class Scaled(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * (self.scale if hasattr(self, "scale") else 1.0)

    holder, module = types.SimpleNamespace(), Scaled()
    f, g = wrap(lambda x: x * getattr(holder, "scale", 1.0)), wrap(lambda x: module(x))
    seen = []
    for k in range(8):
        seen.append((f(ones(1)).item(), g(ones(1)).item()))
        if k == 1:
            holder.scale = module.scale = 9.0
        elif k == 3:
            holder.scale = module.scale = 3.0
        elif k == 5:
            del holder.scale, module.scale
    return seen


def attributes_of_functions(wrap: Wrap) -> Any:
    def scaled(x: Any) -> Any:
        return x * scaled.gain  # type: ignore[attr-defined]

    f, seen = wrap(lambda x: scaled(x)), []
    for gain in (2.0, 2.0, 9.0, 9.0):
        scaled.gain = gain  # type: ignore[attr-defined]
        seen.append(f(ones(1)).item())
    return seen


def views_of_gradients(wrap: Wrap) -> Any:
    w = nn.Parameter(ones(4))

    def step(x: Any) -> Any:
        w.grad = None
        (w * x).sum().backward()
        return w.grad.view(2, 2)

    step, seen = wrap(step), []
    for _ in range(4):
        step(ones(4)).mul_(0)
        seen.append(w.grad.tolist())
    return seen


@pytest.mark.parametrize("run", [
    attributes_that_come_and_go, attributes_of_functions, views_of_gradients, hooks_run_once,
    statistics_in_a_checkpoint_are_written_once, what_a_checkpoint_writes_again_may_be_written_before,
    a_backward_of_ones_own_writes_once, a_call_in_the_forward_of_a_function, options_of_children,
    a_gradient_that_was_a_tensor_that_is_read, a_gradient_that_was_an_argument, a_wrapper_that_reads_groups],
    ids=lambda run: run.__name__)
def test_as_in_an_eager_run(run: Callable[[Wrap], Any]) -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        found.append(run(wrap))
    assert found[0] == found[1]
