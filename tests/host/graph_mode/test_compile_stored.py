"""What a compiled function stores where no guard looks, by ``setattr`` or in a queue, is stored by each call."""

from __future__ import annotations

import queue
import types
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.engine.value import Value


def test_activations_that_a_differentiated_function_stores_are_those_of_the_last_call() -> None:
    w, seen, lines = gradcore.tensor([2.0, -3.0], requires_grad=True), types.SimpleNamespace(), queue.SimpleQueue[Any]()

    def by_name(x: Any) -> Any:
        h = (x * w).exp()
        setattr(seen, "h", h.detach())
        return (h * h).sum()

    def by_method(x: Any) -> Any:
        h = (x * w).exp()
        lines.put(h)
        return (h * h).sum()

    for f, last in ((by_name, lambda: seen.h), (by_method, lines.get)):
        compiled = gradcore.compile(f)
        for k in range(4):
            x = gradcore.full((2,), float(k))
            compiled(x).backward()
            assert last().tolist() == (x * w).exp().tolist()
        assert "the result of exp" in compiled.traces[0] and "still referenced after the run" in compiled.traces[0]


def test_a_result_that_a_function_stores_too_is_that_of_the_last_call() -> None:
    lines = queue.SimpleQueue[Any]()
    holder = types.SimpleNamespace()

    def by_name(x: Any) -> Any:
        y = x * 2
        setattr(holder, "y", y)
        return y, y.view(-1)

    def by_method(x: Any) -> Any:
        y = x * 2
        lines.put(y)
        return {"y": y}

    for f, last in ((by_name, lambda: holder.y), (by_method, lines.get)):
        compiled = gradcore.compile(f)
        for k in range(4):
            compiled(gradcore.full((2,), float(k)))
            assert last().tolist() == [2.0 * k] * 2
        assert "the function stores a result, float32[2], in a" in compiled.traces[0]

    def plain(x: Any) -> Any:
        y = x * 2
        return y, [y, {"view": y[0]}], x

    compiled = gradcore.compile(plain)
    for k in range(3):
        compiled(gradcore.full((2,), float(k)))
    assert len(compiled.traces) == 1 == len(compiled.programs), compiled.explain()


def test_an_activation_that_is_both_stored_and_kept_by_a_graph_is_stored_again_by_each_call() -> None:
    w, seen = gradcore.tensor([2.0, -3.0], requires_grad=True), types.SimpleNamespace()

    def losses(x: Any) -> Any:
        seen.h = (x * w).exp()
        return (seen.h * seen.h).sum().detach()

    def stored(x: Any) -> Any:
        h = (x * w).exp()
        setattr(seen, "h", h)
        return (h * h).sum().detach()

    for f in (losses, stored):
        compiled = gradcore.compile(f)
        for k in range(4):
            x = gradcore.full((2,), float(k))
            compiled(x)
            assert seen.h.tolist() == (x * w).exp().tolist()


#: How a step stores its loss, or the gradient of its weight, where no guard looks.
STORES: dict[str, Any] = {
    "an item": lambda of, loss, w: of.log.__setitem__("loss", loss.detach()),
    "appended": lambda of, loss, w: of.lines.append(loss.detach()),
    "updated": lambda of, loss, w: of.log.update(loss=loss.detach()),
    "in a new list": lambda of, loss, w: of.log.setdefault("losses", []).append(loss.detach()),
    "with a number": lambda of, loss, w: of.lines.append((loss.detach(), 3)),
    "in a queue": lambda of, loss, w: of.queue.put(loss.detach()),
    "by name": lambda of, loss, w: setattr(of, "loss", loss.detach()),
    "data": lambda of, loss, w: of.lines.append(loss.data),
    "a view": lambda of, loss, w: of.lines.append(loss.view(1)),
    "a gradient": lambda of, loss, w: of.log.__setitem__("gradient", w.grad),
    "gradients": lambda of, loss, w: of.lines.append(w.grad),
    "a detached gradient": lambda of, loss, w: of.lines.append(w.grad.detach())}


@pytest.mark.parametrize("how", STORES)
def test_what_shares_the_memory_of_a_result_or_a_gradient_is_stored_by_each_call(how: str) -> None:
    def plain(x: Any) -> Any:
        if isinstance(x, queue.SimpleQueue):
            return [plain(x.get()) for _ in range(x.qsize())]
        if isinstance(x, (list, tuple)):
            return [plain(v) for v in x]
        return {k: plain(v) for k, v in x.items()} if isinstance(x, dict) else x.tolist() if isinstance(x, Value) else x

    found = []
    for wrap in (lambda f: f, gradcore.compile):
        w = gradcore.tensor([2.0, -3.0], requires_grad=True)
        of = types.SimpleNamespace(log={}, lines=[], queue=queue.SimpleQueue())

        def step(x: Any, w: Any = w, of: Any = of) -> Any:
            w.grad = None
            loss = (x * w).exp().sum()
            loss.backward()
            STORES[how](of, loss, w)
            return loss.detach()

        run = wrap(step)
        found.append([(run(gradcore.full((2,), k / 4)).item(), plain(vars(of))) for k in range(5)])
    assert found[0] == found[1]
    assert "the function stores a tensor with the memory of a result or of a gradient in a" in run.traces[0]


def test_a_list_of_results_is_called_a_list_that_has_changed() -> None:
    """Not another object, nor one of what guards hold: it is the user's, with an item more."""
    of = types.SimpleNamespace(lines=[])

    def step(x: Any) -> Any:
        y = x * 2
        of.lines.append(y)
        return y

    compiled = gradcore.compile(step)
    compiled(gradcore.ones(3))
    assert "lines of a SimpleNamespace has changed; the function stores a result, float32[3], in a list" in compiled.traces[0]


def test_what_a_function_assigns_to_is_the_first_reason() -> None:
    """Others follow from it: results that the module keeps, and former ones that it lets go of."""
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", gradcore.zeros(3))
            self.register_buffer("square", gradcore.zeros(3))

        def forward(self, x: Any) -> Any:
            self.mean = self.mean * 0.9 + x.sum(0) * 0.1
            self.square = self.square * 0.9 + (x * x).sum(0) * 0.1
            return x - self.mean

    compiled = gradcore.compile(Averaged())
    for _ in range(3):
        compiled(gradcore.ones(2, 3))
    first, *others = compiled.traces[0].split("; it cannot be replayed: ")[1].split("; ")
    assert first.endswith(" assigns to mean") and others


@pytest.mark.parametrize("name, store", [
    ("weight_norm", nn.utils.weight_norm), ("spectral_norm", nn.utils.spectral_norm),
    ("prune", lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", 1) and layer)])
def test_a_hook_that_stores_a_weight_is_named(name: str, store: Any) -> None:
    compiled = gradcore.compile(store(nn.Linear(3, 2)))
    compiled(gradcore.ones(2, 3))
    assert f" calls a layer in which nn.utils.{name} stores a weight: a parametrization" in compiled.traces[0]
