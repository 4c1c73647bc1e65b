"""Compiled functions whose arguments, leaves or modules have hooks, or are asked for gradients inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn

Wrap = Callable[[Any], Any]


def leaf() -> Any:
    return (gradcore.arange(4).float() + 1).requires_grad_()


def gradients_cleared_inside_and_computed_outside(wrap: Wrap) -> Any:
    m, p, found = nn.Linear(2, 1), nn.Parameter(gradcore.ones(2)), []
    m.weight.data = gradcore.ones(1, 2)

    def forward(x: Any) -> Any:
        m.zero_grad()
        p.grad = None
        return m(x).sum() + (p * x).sum()

    f = wrap(forward)
    for _ in range(4):
        f(gradcore.ones(1, 2)).backward()
        found.append((m.weight.grad.tolist(), p.grad.tolist()))
    return found


def a_hook_on_a_leaf_of_no_module(wrap: Wrap) -> Any:
    w, found = leaf(), []
    f = wrap(lambda x: (w * x).sum().backward())
    for k in range(4):
        w.grad = None
        if k == 2:
            w.register_hook(lambda g: g * 10)
        f(gradcore.ones(4))
        found.append(w.grad.tolist())
    return found


def inside(ask: Callable[[Any], Any]) -> Callable[[Wrap], Any]:
    def run(wrap: Wrap) -> Any:
        def body(x: Any) -> Any:
            ask(x)
            return x * 3

        f, found = wrap(body), []
        for _ in range(3):
            a = leaf()
            x = a * 2
            (f(x) + x * 5).sum().backward()
            found.append((a.grad.tolist(), x.grad.tolist() if x.retains_grad else None))
        return found

    return run


def a_hook_on_an_argument_and_a_gradient_inside(wrap: Wrap) -> Any:
    f, found = wrap(lambda x: gradcore.autograd.grad((x * x).sum(), x)[0]), []
    for _ in range(3):
        x = leaf() * 2
        x.register_hook(lambda g: g * 10)
        found.append(f(x).tolist())
    return found


def gradients_for_an_argument(wrap: Wrap) -> Any:
    def body(x: Any) -> Any:
        (x * x).backward(gradcore.ones(4), inputs=[x])
        return x.grad

    f = wrap(body)
    return [None if g is None else g.tolist() for g in (f(leaf() * 2) for _ in range(3))]


def arguments_that_depend_on_each_other(wrap: Wrap) -> Any:
    f, found = wrap(lambda x, y: gradcore.autograd.grad((x * y).sum(), x)[0]), []
    for _ in range(3):
        x = leaf() * 2
        found.append(f(x, x * 3).tolist())
    return found


def a_view_of_one_of_two_arguments_over_the_same_bytes(wrap: Wrap) -> Any:
    f, found = wrap(lambda x, d: (x[0] * 1, x[0], d.sum())), []
    for _ in range(3):
        a = leaf()
        x = a * 2
        f(x, x.detach())[1].mul_(5.0)
        x.sum().backward()
        found.append(a.grad.tolist())
    return found


def a_module_hook_that_changes_kind(wrap: Wrap) -> Any:
    m = nn.Linear(2, 2)
    m.weight.data, m.bias.data = gradcore.ones(2, 2), gradcore.ones(2)

    def hook(*args: Any) -> Any:
        return (args[1][0] * 2,) if len(args) == 2 else args[2] + 100

    before = m.register_forward_pre_hook(hook)
    f, x = wrap(lambda x: m(x)), gradcore.ones(1, 2)
    found = [f(x).tolist(), f(x).tolist()]
    before.remove()
    m.register_forward_hook(hook)
    return [*found, f(x).tolist()]


def an_attribute_that_the_class_gets_later(wrap: Wrap) -> Any:
    class Settings:
        pass

    owner = Settings()
    f = wrap(lambda x: x * getattr(owner, "scale", 1.0))
    found = [f(gradcore.ones(1)).item(), f(gradcore.ones(1)).item()]
    Settings.scale = 5.0  # type: ignore[attr-defined]
    return [*found, f(gradcore.ones(1)).item()]


def a_function_of_the_users_that_is_called_argument(wrap: Wrap) -> Any:
    class Argument(gradcore.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    a, found = leaf(), []
    for _ in range(3):
        a.grad = None
        h = Argument.apply(a)
        f = wrap(lambda x, h=h: x * h)
        f(gradcore.ones(4)).sum().backward()
        found.append(a.grad.tolist())
    return found


@pytest.mark.parametrize("program", [
    gradients_cleared_inside_and_computed_outside, a_hook_on_a_leaf_of_no_module,
    pytest.param(inside(lambda x: x.retain_grad()), id="retain_grad inside"),
    pytest.param(inside(lambda x: x.register_hook(lambda g: g * 10)), id="register_hook inside"),
    a_hook_on_an_argument_and_a_gradient_inside, gradients_for_an_argument, arguments_that_depend_on_each_other,
    a_view_of_one_of_two_arguments_over_the_same_bytes, a_module_hook_that_changes_kind,
    an_attribute_that_the_class_gets_later, a_function_of_the_users_that_is_called_argument])
def test_it_is_as_in_eager_mode(program: Callable[[Wrap], Any]) -> None:
    assert program(gradcore.compile) == program(lambda f: f)


def test_an_object_that_raises_when_it_is_looked_at_ends_the_trace_and_nothing_else() -> None:
    class Thing:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("__class__")

    def made() -> Any:
        thing = Thing()

        def f(x: Any) -> Any:
            return x * (2 if thing is not None or hasattr(x, "foo") else 3)

        return f

    with pytest.raises(RuntimeError):
        gradcore.compile(made())(gradcore.ones(1))
    assert gradcore.tensor([1.0]).tolist() == [1.0]
