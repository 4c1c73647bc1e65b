"""Hooks: the same script gives the same calls, in the same order, with the same numbers, here and in PyTorch."""

from __future__ import annotations

import gc
from copy import deepcopy
from typing import Any
from weakref import ref

import numpy as np
import pytest

import gradcore
from gradcore.errors import DeviceError, SpecError
from tests.conftest import raises, torch_or_skip


def scripts() -> dict[str, Any]:
    """Each takes a library and a list of events to append to."""

    def replaces(t: Any, seen: list[Any]) -> list[Any]:
        x = t.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        y.register_hook(lambda g: seen.append(("y", g.tolist())))
        y.register_hook(lambda g: g * 10)
        y.register_hook(lambda g: seen.append(("again", g.tolist())))
        (y * 3).sum().backward()
        return [x.grad]

    def whole_gradient(t: Any, seen: list[Any]) -> list[Any]:
        """A tensor that is used three times has one gradient, and its hook runs once."""
        x = t.tensor([1.0, 2.0], requires_grad=True)
        y = x * 2
        y.register_hook(lambda g: seen.append(g.tolist()))
        x.register_hook(lambda g: seen.append(("x", g.tolist())))
        (y * y + y.exp() + x * 3).sum().backward()
        return [x.grad]

    def on_a_leaf(t: Any, seen: list[Any]) -> list[Any]:
        x = t.tensor([1.0, 2.0], requires_grad=True)
        handle = x.register_hook(lambda g: g * 2)
        (x * x + x).sum().backward()
        handle.remove()
        (x * x + x).sum().backward()
        return [x.grad]

    def accumulated(t: Any, seen: list[Any]) -> list[Any]:
        x, w = t.tensor([1.0, 2.0], requires_grad=True), t.tensor([3.0, 4.0], requires_grad=True)

        def step(p: Any) -> None:
            seen.append(p.grad.tolist())
            p.grad = None

        w.register_post_accumulate_grad_hook(step)
        ((x * w).exp() * 1e-3 + w * x).sum().backward()
        ((x * w) * w).sum().backward()
        return [x.grad, t.tensor(0.0) if w.grad is None else w.grad]

    def retained(t: Any, seen: list[Any]) -> list[Any]:
        x = t.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        y.retain_grad()
        x.retain_grad()
        z = (y * y).sum()
        z.backward(retain_graph=True)
        seen.append((y.grad.tolist(), y.retains_grad, x.retains_grad))
        z.backward()
        return [x.grad, y.grad]

    def retained_over_writes(t: Any, seen: list[Any]) -> list[Any]:
        """The gradient that is retained is that of the value after the last write, added to that of an earlier one."""
        class Doubled(t.autograd.Function):  # type: ignore[misc, name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.mark_dirty(x)
                return x.mul_(2)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 2

        x, factors = t.tensor([1.0, 2.0, 3.0], requires_grad=True), t.tensor([5.0, 6.0, 7.0])
        results = [x * 1 for _ in range(4)]
        part = results[3][:2]
        for y in (*results, part):
            y.retain_grad()
            if y is not results[2]:
                # PyTorch forgets the earlier gradient when a function of one's own writes.
                y.sum().backward(retain_graph=True)
        results[0].mul_(2)
        results[1][:2].mul_(2)
        Doubled.apply(results[2])
        results[3].mul_(2)
        for y in results:
            (y * factors).sum().backward(retain_graph=True)
        seen.append(part.grad.tolist())
        part.exp_().sum().backward()
        seen.append([y.retains_grad for y in (*results, part)])
        return [y.grad for y in (x, *results, part)]

    def on_nodes(t: Any, seen: list[Any]) -> list[Any]:
        x, w = t.tensor([1.0, 2.0], requires_grad=True), t.tensor([3.0, 4.0], requires_grad=True)
        y = x * w
        y.grad_fn.register_prehook(lambda gs: (gs[0] * 2,))
        y.grad_fn.register_hook(lambda inputs, outputs: seen.append([g.tolist() for g in (*inputs, *outputs)]))
        y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 0, inputs[1]))
        y.sum().backward()
        return [x.grad, w.grad]

    def in_order(t: Any, seen: list[Any]) -> list[Any]:
        """Hooks of a node run if it does, after the tensor's gradient is retained, or returned by ``grad``."""
        x = t.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        y.grad_fn.register_prehook(lambda gs: seen.append("node") or (gs[0] * 5,))
        y.retain_grad()
        y.register_hook(lambda g: seen.append("tensor") or g * 3)
        found = [*t.autograd.grad(y.sum(), y, retain_graph=True), *t.autograd.grad(y.sum(), x, retain_graph=True)]
        y.sum().backward()
        return [*found, x.grad, y.grad]

    def asked_for(t: Any, seen: list[Any]) -> list[Any]:
        x = t.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        y.register_hook(lambda g: g + 1)
        x.register_hook(lambda g: g * 5)
        return [*t.autograd.grad((y * 3).sum(), x, retain_graph=True), *t.autograd.grad((y * 3).sum(), y)]

    def twice(t: Any, seen: list[Any]) -> list[Any]:
        x = t.tensor([1.0, 2.0], requires_grad=True)
        y = x ** 3
        y.register_hook(lambda g: g * g)
        slope, = t.autograd.grad((y * x).sum(), x, create_graph=True)
        (slope * slope).sum().backward()
        return [x.grad]

    def inside_backward(t: Any, seen: list[Any]) -> list[Any]:
        """A backward within a backward has its own graph, and does not change the outer one."""
        x, z = t.tensor([1.0, 2.0], requires_grad=True), t.tensor([5.0], requires_grad=True)

        def hook(g: Any) -> None:
            with t.enable_grad():
                (z * z).sum().backward()
            seen.append((z.grad.tolist(), t.is_grad_enabled()))

        y = x * 2
        y.register_hook(hook)
        (y * y).sum().backward()
        return [x.grad, z.grad]

    def as_context(t: Any, seen: list[Any]) -> list[Any]:
        x = t.tensor([1.0], requires_grad=True)
        with x.register_hook(lambda g: g * 7):
            x.sum().backward()
        x.sum().backward()
        return [x.grad]

    return {name: f for name, f in locals().items() if callable(f)}


@pytest.mark.oracle
@pytest.mark.parametrize("name", scripts())
def test_a_script_with_hooks(name: str) -> None:
    torch = torch_or_skip()
    ours: list[Any] = []
    theirs: list[Any] = []
    mine = [g.tolist() for g in scripts()[name](gradcore, ours)]
    expected = [g.tolist() for g in scripts()[name](torch, theirs)]
    np.testing.assert_allclose(np.concatenate([np.ravel(g) for g in mine]), np.concatenate([np.ravel(g) for g in expected]),
                               rtol=1e-6)
    assert rounded(ours) == rounded(theirs)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return [rounded(v) for v in value] if isinstance(value, (list, tuple)) else value


def test_a_step_inside_backward_frees_each_gradient_at_once() -> None:
    """When the oldest node that uses a weight has run, its gradient is complete, and may be freed before the next one."""
    weights = [gradcore.ones(256, 256, requires_grad=True) for _ in range(6)]

    def forward() -> Any:
        x = gradcore.ones(1, 256)
        for w in weights:
            x = (x @ w) * (1 / 256)
        return x.sum()

    with gradcore.step() as plain:
        forward().backward()
    for w in weights:
        w.grad = None

    def let_go(w: Any) -> None:
        w.grad = None

    handles = [w.register_post_accumulate_grad_hook(let_go) for w in weights]
    with gradcore.step() as hooked:
        forward().backward()
    for handle in handles:
        handle.remove()
    one = weights[0].nbytes
    assert plain.report.peak.requested - hooked.report.peak.requested >= 4 * one


def test_what_a_hook_may_return() -> None:
    x = gradcore.ones(3, requires_grad=True)
    with raises(TypeError, "must return a Tensor or None, but returned int"):
        y = x * 2
        y.register_hook(lambda g: 3)
        y.sum().backward()
    with raises(SpecError, "returned shape [2] for a gradient of shape [3]"):
        y = x * 2
        y.register_hook(lambda g: gradcore.ones(2))
        y.sum().backward()
    with raises(SpecError, "a hook on a leaf returned float64 for a gradient of float32"):
        z = gradcore.ones(3, requires_grad=True)
        z.register_hook(lambda g: g.double())
        z.sum().backward()
    with raises(DeviceError, "returned a tensor on meta for a gradient on cpu"):
        y = x * 2
        y.register_hook(lambda g: g.to("meta"))
        y.sum().backward()
    with raises(RuntimeError, "a pre-hook of MulBackward0 must return 1 gradient, but returned 2"):
        y = x * x
        y.grad_fn.register_prehook(lambda gs: (gs[0], gs[0]))
        y.sum().backward()
    with raises(RuntimeError, "a hook of MulBackward0 must return 2 gradients, but returned 1"):
        y = x * x
        y.grad_fn.register_hook(lambda results, gs: results[0])
        y.sum().backward()
    del y
    with raises(RuntimeError, "cannot register a hook on a tensor that doesn't require gradient"):
        gradcore.ones(3).register_hook(print)
    with raises(RuntimeError, "post accumulate grad hooks cannot be registered on non-leaf tensors"):
        (x * 2).register_post_accumulate_grad_hook(print)
    with raises(RuntimeError, "can't retain_grad on Tensor that has requires_grad=False"):
        gradcore.ones(3).retain_grad()


def test_an_exception_in_a_hook_leaves_everything_as_it_was() -> None:
    x = gradcore.ones(3, requires_grad=True)
    live = gradcore.memory_requested()

    def fail(g: Any) -> None:
        raise KeyError("planted")

    y = (x * 2).exp()
    y.register_hook(fail)
    z = (y * y).sum()
    with raises(KeyError, "planted"):
        z.backward()
    assert gradcore.is_grad_enabled() and x.grad is None
    del y, z
    assert gradcore.memory_requested() == live
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def test_a_hook_sees_its_own_lines() -> None:
    x = gradcore.ones(3, requires_grad=True)
    made: list[Any] = []
    x.register_hook(lambda g: made.append(g * 2))
    with gradcore.step() as s:
        (x * 2).sum().backward()
    from gradcore.events import Launch
    from tests.logs import normalized
    sites = {r.tag.site.function for r in normalized(s.raw_log) if isinstance(r, Launch) and r.invocation.op == "mul"}
    assert any("<lambda>" in name for name in sites), sites
    made.clear()


def test_a_retained_gradient_lives_as_long_as_its_tensor() -> None:
    gc.disable()
    x = gradcore.ones(1000, requires_grad=True)
    y = x.exp()
    y.retain_grad()
    loss = (y * 2).sum()
    loss.backward()
    before = gradcore.memory_requested()
    assert y.grad.tolist() == [2.0] * 1000
    del y
    # The result itself, which nothing keeps any more, and its gradient.
    assert before - gradcore.memory_requested() == 8000


def test_a_retained_gradient_with_a_graph_makes_a_cycle_only_while_its_tensor_exists() -> None:
    gc.disable()
    before = gradcore.memory_requested()
    x = gradcore.ones(1000, requires_grad=True)
    y = x.exp()
    y.retain_grad()
    y.exp().sum().backward(create_graph=True)
    assert y.grad.requires_grad
    x.grad = None
    del x, y
    assert gradcore.memory_requested() == before


def test_a_handle_holds_no_hooks() -> None:
    gc.disable()
    before = gradcore.memory_requested()

    class Watch:
        def __init__(self, *register: Any) -> None:
            self.held, self.count = gradcore.ones(1000), 0
            self.handles = [r(self.see) for r in register]

        def see(self, *seen: Any) -> None:
            self.count += 1

    for removed in (False, True):
        model, x = gradcore.nn.Linear(3, 3), gradcore.ones(2, 3, requires_grad=True) * 1
        optimizer = gradcore.optim.SGD(model.parameters())
        watch = Watch(model.register_forward_hook, model.register_full_backward_hook, model.register_state_dict_pre_hook,
                      x.register_hook, x.grad_fn.register_prehook, x.grad_fn.register_hook, optimizer.register_step_post_hook)
        for handle in watch.handles[:7 * removed]:
            handle.remove()
            handle.remove()
        model(x).exp().sum().backward()
        optimizer.step()
        model.state_dict()
        assert watch.count == (0 if removed else 7)
        del model, x, optimizer, watch
    assert gradcore.memory_requested() == before


def test_a_copied_handle_leaves_the_hooks_of_the_original() -> None:
    model = gradcore.nn.Linear(3, 3)
    copied = deepcopy(model.register_forward_hook(lambda *_: gradcore.zeros(1)))
    copied.remove()
    assert model(gradcore.ones(2, 3)).shape == (1,)


def test_hooks_hold_no_graph() -> None:
    gc.disable()
    x = gradcore.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: None)
    y.retain_grad()
    node = ref(y.grad_fn)
    y.sum().backward()
    del y
    assert node() is None
