"""Functions that add or remove hooks: replayed if the same hooks are there when they return, refused otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import gradcore
from gradcore import nn

Hangs = Callable[[nn.Module, gradcore.optim.Optimizer], Any]


def on_a_module(m: nn.Module, optimizer: gradcore.optim.Optimizer) -> Any:
    return m.register_forward_hook(lambda module, args, output: output * 2)


def on_a_parameter(m: nn.Module, optimizer: gradcore.optim.Optimizer) -> Any:
    return m.weight.register_hook(lambda g: g * 2)


def on_an_optimizer(m: nn.Module, optimizer: gradcore.optim.Optimizer) -> Any:
    return optimizer.register_step_post_hook(lambda optimizer, args, kwargs: m.weight.detach().mul_(2))


def in_the_dict_of_a_module(m: nn.Module, optimizer: gradcore.optim.Optimizer) -> Any:
    key, taken_away = 10 ** 9 + len(m._forward_hooks), ExitStack()
    m._forward_hooks[key] = lambda module, args, output: output * 2
    taken_away.callback(m._forward_hooks.pop, key)
    return taken_away


WAYS = [on_a_module, in_the_dict_of_a_module, on_a_parameter, on_an_optimizer]


def found(make: Callable[..., Any]) -> list[Any]:
    """What eager calls of the function that ``make`` returns leave, and compiled ones; and the compiled function."""
    left: list[Any] = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        m = nn.Linear(2, 2)
        optimizer = gradcore.optim.SGD(m.parameters(), lr=0.1)
        f = wrap(make(m, optimizer))
        left.append([(f(gradcore.ones(1, 2)).tolist(), m.weight.tolist()) for _ in range(5)])
    return [*left, f]


def step(m: nn.Module, optimizer: gradcore.optim.Optimizer, x: Any) -> Any:
    optimizer.zero_grad()
    loss = m(x).sum()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("hangs", WAYS)
def test_one_hook_more_in_each_call(hangs: Hangs) -> None:
    def make(m: nn.Module, optimizer: gradcore.optim.Optimizer) -> Any:
        def f(x: Any) -> Any:
            hangs(m, optimizer)
            return step(m, optimizer, x)
        return f

    eager, compiled, f = found(make)
    assert compiled == eager and not f.programs
    assert "test_compile_hung.py" in f.traces[-1] and "adds or removes a hook, which a replay would not do" in f.traces[-1]


@pytest.mark.parametrize("hangs", WAYS)
def test_a_hook_for_the_time_of_a_call_is_replayed(hangs: Hangs) -> None:
    def make(m: nn.Module, optimizer: gradcore.optim.Optimizer) -> Any:
        def f(x: Any) -> Any:
            with hangs(m, optimizer):
                return step(m, optimizer, x)
        return f

    eager, compiled, f = found(make)
    assert compiled == eager and f.programs and len(f.traces) <= 2


def test_a_hook_that_removes_itself() -> None:
    def make(m: nn.Module, optimizer: gradcore.optim.Optimizer) -> Any:
        def once(module: nn.Module, args: Any, output: Any) -> Any:
            handle.remove()
            return output * 2

        handle = m.register_forward_hook(once)
        return lambda x: step(m, optimizer, x)

    eager, compiled, f = found(make)
    assert compiled == eager and f.programs and len(f.traces) <= 3
    assert "adds or removes a hook" in f.traces[0]


def test_hooks_on_what_a_call_makes_go_with_it() -> None:
    def make(m: nn.Module, optimizer: gradcore.optim.Optimizer) -> Any:
        def f(x: Any) -> Any:
            made = nn.Linear(2, 2)
            made.register_forward_hook(lambda module, args, output: output * 0)
            optimizer.zero_grad()
            y = m(x)
            y.register_hook(lambda g: g * 2)
            loss = (y + made(x)).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()
        return f

    eager, compiled, f = found(make)
    assert compiled == eager and f.programs and len(f.traces) <= 2
