"""``backward(inputs=...)``: only the named tensors get gradients, as in PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.events import Launch
from gradcore.utils.checkpoint import checkpoint
from tests.conftest import raises


def leaves(t: Any) -> tuple[Any, Any, Any, Any]:
    w, v = (t.tensor(values, requires_grad=True) for values in ([1.0, 2.0], [3.0, 4.0]))
    h = w * v
    return w, v, h, (h * h * v).sum()


def numbers(*tensors: Any) -> list[Any]:
    return [None if x.grad is None else x.grad.tolist() for x in tensors]


def leaf(t: Any) -> Any:
    w, v, _, y = leaves(t)
    y.backward(inputs=[w], retain_graph=True)
    found = numbers(w, v)
    y.backward(inputs=w)
    return found + numbers(w, v)


def inner(t: Any) -> Any:
    w, v, h, y = leaves(t)
    y.backward(inputs=(h, v), retain_graph=True)
    found = numbers(w, v, h)
    y.backward(inputs=(x for x in (h, v)))
    return found + numbers(w, v, h)


def twice(t: Any) -> Any:
    w, v, _, y = leaves(t)
    t.autograd.backward([y, (w * v).sum()], inputs=(w, w))
    return numbers(w, v)


def hooks(t: Any) -> Any:
    seen: list[Any] = []
    w, v, h, y = leaves(t)
    w.register_hook(lambda g: seen.append(("w", g.tolist())))
    h.register_hook(lambda g: seen.append(("h", g.tolist())))
    v.register_hook(lambda g: g * 10)
    v.register_post_accumulate_grad_hook(lambda p: seen.append(("v", p.grad.tolist())))
    y.backward(inputs=[v])
    return seen, numbers(w, v)


def graph(t: Any) -> Any:
    a = t.tensor(2.0, requires_grad=True)
    (a ** 3).backward(inputs=[a], create_graph=True)
    found = a.grad.item(), t.autograd.grad(a.grad, a)[0].item()
    # The leaf's gradient has a graph that leads to the leaf.
    a.grad = None
    return found


def unused(t: Any) -> Any:
    w, v, _, y = leaves(t)
    other = t.ones(2, requires_grad=True)
    y.backward(inputs=[other])
    return numbers(w, v, other)


def of_leaves(t: Any) -> Any:
    """A tensor that backward starts from is a leaf, and another one than those that are named."""
    w, v, *_ = leaves(t)
    t.autograd.backward([w, w * v], [t.ones(2)] * 2, inputs=[v])
    return numbers(w, v), t.autograd.grad(w, v, t.ones(2), allow_unused=True)


@pytest.mark.oracle
@pytest.mark.parametrize("script", [leaf, inner, twice, hooks, graph, unused, of_leaves], ids=lambda f: f.__name__)
def test_gradients_are_pytorchs(script: Any, torch: Any) -> None:
    with warnings.catch_warnings():
        # PyTorch warns of a graph that refers to itself.
        warnings.simplefilter("ignore", UserWarning)
        assert script(gradcore) == script(torch)


def test_what_is_not_named_gets_no_bytes() -> None:
    w, v, h, y = leaves(gradcore)
    before = gradcore.memory_requested()
    y.backward(inputs=[v])
    del y, h
    assert gradcore.memory_requested() < before and w.grad is None


@pytest.mark.parametrize("inputs, kind, text", [
    ([], RuntimeError, "cannot be empty"), ([1.0], TypeError, "float"),
    ([gradcore.tensor], TypeError, "function"), ("constant", RuntimeError, "does not require grad: inputs[0] of shape [2]")])
def test_inputs_that_cannot_be(inputs: Any, kind: Any, text: str) -> None:
    w, v, _, y = leaves(gradcore)
    with raises(kind, text):
        y.backward(inputs=gradcore.ones(2) if inputs == "constant" else inputs)
    y.backward()
    assert numbers(w, v) == [[54.0, 256.0], [27.0, 192.0]]


def test_a_compiled_step_trains_the_named_half() -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        first, second = nn.Linear(4, 4), nn.Linear(4, 2)
        optimizer = gradcore.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)

        @wrap
        def step(x: Any, first: Any = first, second: Any = second, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = (second(first(x).tanh()) ** 2).mean()
            loss.backward(inputs=list(second.parameters()))
            optimizer.step()
            return loss

        losses = [step(gradcore.ones(3, 4) * k).item() for k in range(1, 5)]
        found.append((losses, [p.tolist() for p in (*first.parameters(), *second.parameters())]))
        assert all(p.grad is None for p in first.parameters())
    assert found[0] == found[1]


def test_only_requested_gradients_are_computed() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    x = gradcore.ones(1, 2, 4, 4, requires_grad=True)

    def launched(run: Any) -> list[str]:
        with gradcore.step(device="cpu") as step:
            run()
        # A name for each gradient that a launch computes.
        return [r.invocation.op for r in step.log if isinstance(r, Launch) and r.tag.phase == "backward"
                for _ in r.invocation.outputs]

    whole = launched(lambda: model(x).sum().backward())
    assert "conv2d_weight_grad" in whole and whole.count("conv2d_input_grad") == 1 and whole.count("linear_grad") == 3
    for run in (lambda: gradcore.autograd.grad(model(x).sum(), x), lambda: model(x).sum().backward(inputs=[x]),
                lambda: gradcore.autograd.grad(model(x).sum(), x, create_graph=True)):
        ops = launched(run)
        assert "conv2d_weight_grad" not in ops and ops.count("conv2d_input_grad") == 1
        assert ops.count("linear_grad") == 1
    weight = launched(lambda: gradcore.autograd.grad(model(x).sum(), model[0].weight))
    assert "conv2d_input_grad" not in weight and "conv2d_weight_grad" in weight


@pytest.mark.oracle
def test_a_write_to_what_no_requested_gradient_reads_is_refused_too(torch: Any) -> None:
    for t in (gradcore, torch):
        w, v, _, _ = leaves(t)
        a, b = w * 1, v * 1
        y = (a * b).sum()
        with t.no_grad():
            b.mul_(2)
        with raises(RuntimeError, "has been modified by an inplace operation"):
            y.backward(inputs=[v])


@pytest.mark.parametrize("kind", ["function", "layer_norm", "checkpoint"])
def test_what_was_not_asked_for_sees_no_part_of_its_gradient(kind: str) -> None:
    """A rule that computes several gradients at once delivers those alone from which the input can be reached."""
    class Product(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, y = ctx.saved_tensors
            return g * y, g * x

    run = {"function": Product.apply, "checkpoint": lambda x, y: checkpoint(Product.apply, x, y, use_reentrant=True),
           "layer_norm": lambda x, y: nn.functional.layer_norm(x, (3,), y)}[kind]
    a, b = gradcore.arange(3.0).requires_grad_(), gradcore.ones(3, requires_grad=True)
    x, y, seen = a * 2, b * 3, []
    x.retain_grad()
    x.register_hook(seen.append)
    z = (run(x, y) ** 2).sum()
    z.backward(inputs=[b], retain_graph=True)
    found, = gradcore.autograd.grad(z, b, retain_graph=True)
    assert found.tolist() == b.grad.tolist() and x.grad is None and not seen
    z.backward()
    assert len(seen) == 1 and x.grad.tolist() == seen[0].tolist() and a.grad is not None
