"""Changes of what a compiled function depends on are detected: each case gives the same results plain and compiled."""

from __future__ import annotations

import enum
import math
import operator
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import nn
from tests.conftest import collector

Scenario = Callable[[Callable[[Any], Any]], list[Any]]
SCENARIOS: dict[str, Scenario] = {}
scenario = collector(SCENARIOS)


def ones(count: int = 1) -> Any:
    return gradcore.ones(count)


@scenario
def gradients_add_up_over_several_functions(made: Any) -> list[Any]:
    w = nn.Parameter(ones())
    opt = gradcore.optim.SGD([w], lr=0.1)

    def first(x: Any) -> None:
        opt.zero_grad()
        (w * x).sum().backward()

    first, more = made(first), made(lambda x: (w * x).sum().backward())  # type: ignore[assignment]
    found = []
    for _ in range(4):
        first(ones())
        for size in (10, 100, 1000):
            more(ones() * size)
        found.append(w.grad.item())
    return found


@scenario
def a_graph_behind_an_argument(made: Any) -> list[Any]:
    p = nn.Parameter(ones())
    f, found = made(lambda x: x.sum().backward()), []
    for k in (1.0, 2.0, 3.0):
        p.grad = None
        f(p * k)
        found.append(p.grad.item())
    return found


@scenario
def a_graph_behind_what_is_captured(made: Any) -> list[Any]:
    z = nn.Parameter(ones())
    scaled = z * 3
    f, found = made(lambda x: (scaled * x).sum()), []
    for _ in range(3):
        z.grad = None
        f(ones()).backward(retain_graph=True)
        found.append(z.grad.item())
    return found


@scenario
def the_scale_of_a_scaler(made: Any) -> list[Any]:
    p = nn.Parameter(ones())
    opt = gradcore.optim.SGD([p], lr=0.1)
    scaler = gradcore.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    f, found = made(lambda: scaler.scale((p * 1).sum()).backward()), []
    for _ in range(6):
        opt.zero_grad()
        f()
        scaler.step(opt)
        scaler.update()
        found.append(p.item())
    return found


@scenario
def rates_that_a_step_changes(made: Any) -> list[Any]:
    p = nn.Parameter(ones())
    opt = gradcore.optim.SGD([p], lr=1.0)

    def step() -> None:
        opt.zero_grad()
        (p * p).sum().backward()
        opt.step()
        for group in opt.param_groups:
            group["lr"] *= 0.5

    step, found = made(step), []  # type: ignore[assignment]
    for _ in range(4):
        step()
        found.append((p.item(), opt.param_groups[0]["lr"]))
    return found


@scenario
def a_gradient_that_appears_later(made: Any) -> list[Any]:
    a, b = nn.Parameter(ones()), nn.Parameter(ones())
    clip, found = made(lambda: nn.utils.clip_grad_norm_([a, b], 1.0)), []
    for with_b in (False, False, True, True, False):
        a.grad, b.grad = ones() * 3, ones() * 4 if with_b else None
        found.append(clip().item())
        found.append((a.grad.item(), None if b.grad is None else b.grad.item()))
    return found


@scenario
def a_hook_of_the_optimizer(made: Any) -> list[Any]:
    p, seen = nn.Parameter(ones()), []
    opt = gradcore.optim.SGD([p], lr=0.1)

    def step() -> None:
        opt.zero_grad()
        (p * p).sum().backward()
        opt.step()

    step = made(step)
    step()
    step()
    opt.register_step_pre_hook(lambda *_: seen.append(1))
    step()
    return [p.item(), bool(seen)]


@scenario
def state_that_was_cleared(made: Any) -> list[Any]:
    p, found = nn.Parameter(ones()), []
    opt = gradcore.optim.Adam([p], lr=0.1)

    def step() -> None:
        opt.zero_grad()
        (p * p).sum().backward()
        opt.step()

    step = made(step)
    for k in range(6):
        if k == 3:
            opt.state.clear()
        step()
        found.append(p.item())
    return [*found, sorted(opt.state[p])]


class Mode(enum.Enum):
    A, B = 1, 2


@scenario
def other_objects_in_the_same_place(made: Any) -> list[Any]:
    found: list[Any] = []
    holder = SimpleNamespace()
    f = made(lambda x: holder.act(x * holder.cfg.k) if holder.mode is Mode.A else x - holder.cfg.k)
    for cfg, mode, act in ((SimpleNamespace(k=1.0), Mode.A, gradcore.exp), (SimpleNamespace(k=3.0), Mode.A, gradcore.exp),
                           (SimpleNamespace(k=3.0), Mode.B, gradcore.exp), (SimpleNamespace(k=3.0), Mode.A, gradcore.sin)):
        holder.cfg, holder.mode, holder.act = cfg, mode, act
        found += [f(ones()).item(), f(ones()).item()]
    return found


@scenario
def builtins_partials_and_methods(made: Any) -> list[Any]:
    found: list[Any] = []
    holder = SimpleNamespace()
    f = made(lambda x: holder.op(x, x + 2))
    for holder.op in (operator.add, operator.mul, partial(gradcore.add, alpha=2), partial(gradcore.add, alpha=3)):
        found += [f(ones()).item(), f(ones()).item()]
    return found


@scenario
def a_module_that_is_only_read(made: Any) -> list[Any]:
    m = nn.Linear(2, 2)
    f, found = made(lambda x: (x @ m.weight.t() if m.bias is None else x).sum() * (2 if m.training else 1)), []
    for change in (lambda: None, lambda: setattr(m, "bias", None), m.eval,
                   lambda: setattr(m, "weight", nn.Parameter(gradcore.zeros(2, 2)))):
        change()
        found += [f(ones(2)).item(), f(ones(2)).item()]
    return found


@scenario
def a_zero_of_the_other_sign(made: Any) -> list[Any]:
    found: list[Any] = []
    holder = SimpleNamespace()
    f = made(lambda x: x / holder.zero)
    for holder.zero in (0.0, -0.0, 0.0):
        found += [f(ones()).item(), f(ones()).item()]
    return found


@scenario
def an_argument_with_a_graph_that_is_written_to(made: Any) -> list[Any]:
    def body(x: Any) -> Any:
        x.mul_(2)
        return (x * x).sum()

    f, found = made(body), []
    for _ in range(3):
        x = gradcore.ones(2, requires_grad=True)
        a = x * 1
        (f(a) + a.sum()).backward()
        found.append(x.grad.tolist())
    return found


@scenario
def results_in_other_kinds_of_dicts(made: Any) -> list[Any]:
    f = made(lambda x: OrderedDict(a=x * 2, b=defaultdict(list, c=x + 1)))
    return [(type(r), r["a"].item(), type(r["b"]), r["b"]["c"].item(), r["b"]["d"]) for r in (f(ones()), f(ones()))]


@scenario
def gradients_dropped_by_a_function_whose_caller_differentiates(made: Any) -> list[Any]:
    p = nn.Parameter(ones(2))
    opt = gradcore.optim.SGD([p], lr=0.1)

    def loss_of(x: Any) -> Any:
        before = 0.0 if p.grad is None else p.grad.sum()
        opt.zero_grad()
        return (x * p).sum() + before

    f, found = made(loss_of), []
    for k in range(5):
        loss = f(gradcore.tensor([1.0, k]))
        loss.backward()
        found.append((loss.item(), p.grad.tolist()))
    return found


@scenario
def results_with_a_graph_where_a_gradient_was_taken_inside(made: Any) -> list[Any]:
    w, v, found = nn.Parameter(ones(2)), nn.Parameter(ones(2)), []

    def asks(x: Any) -> Any:
        y = (x * w).sum()
        (slope,) = gradcore.autograd.grad(y, w, retain_graph=True)
        return y * 2, slope

    def adds(x: Any) -> Any:
        (x * v).sum().backward()
        return (x * w).sum()

    asks, adds = made(asks), made(adds)
    for k in range(4):
        w.grad = None
        y, slope = asks(gradcore.tensor([1.0, k]))
        (y + adds(gradcore.tensor([2.0, k]))).backward()
        found.append((slope.tolist(), w.grad.tolist(), v.grad.tolist()))
    return found


@scenario
def parameters_that_were_left_out_for_a_while(made: Any) -> list[Any]:
    m, n = nn.Linear(2, 2), nn.Linear(2, 2)
    for p in (*m.parameters(), *n.parameters()):
        nn.init.ones_(p)
    opt, skip = gradcore.optim.Adam([*m.parameters(), *n.parameters()], lr=0.1), SimpleNamespace(now=False)

    def step(x: Any) -> Any:
        opt.zero_grad()
        h = m(x)
        (h if skip.now else n(h)).square().sum().backward()
        opt.step()
        return n.weight.detach().sum()

    f, found = made(step), []
    for k in range(9):
        skip.now = 3 <= k < 6
        found.append(f(ones(4).reshape(2, 2)).item())
    return found


@scenario
def a_gradient_that_a_frozen_parameter_is_given(made: Any) -> list[Any]:
    m = nn.Linear(2, 2, bias=False)
    nn.init.ones_(m.weight)
    m.weight.requires_grad_(False)
    opt = gradcore.optim.SGD(m.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        opt.step()
        opt.zero_grad()
        return m(x).sum()

    f, found = made(step), []
    for k in range(6):
        if k in (2, 4):
            m.weight.grad = gradcore.ones(2, 2)
        found.append((f(ones(2)).item(), m.weight.grad is None))
    return found


@scenario
def other_memory_for_parameters_that_are_only_updated(made: Any) -> list[Any]:
    p = nn.Parameter(ones(2))
    opt = gradcore.optim.SGD([p], lr=0.1)
    f, found = made(lambda: opt.step()), []
    for k in range(6):
        p.grad = gradcore.ones(2)
        if k == 3:
            p.data = gradcore.tensor([7.0, 8.0])
        f()
        found.append(p.tolist())
    return found


@pytest.mark.parametrize("several", [False, True], ids=["one stream", "several streams"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_it_is_noticed(name: str, several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradcore.device("cpu"), "several", several)

    def run(made: Any) -> list[Any]:
        gradcore.manual_seed(0)
        return SCENARIOS[name](made)

    plain = run(lambda f: f)
    assert not any(isinstance(x, float) and math.isnan(x) for x in plain)
    assert run(gradcore.compile) == plain


def test_a_global_that_has_an_attributes_name_is_not_looked_at() -> None:
    """``with gradcore.step() as step`` is a different object each time, and an optimizer has a method of that name."""
    names: dict[str, Any] = {}
    exec(compile("""
import gradcore
p = gradcore.nn.Parameter(gradcore.ones(2))
optimizer = gradcore.optim.SGD([p], lr=0.1)

@gradcore.compile
def run():
    optimizer.zero_grad()
    (p * p).sum().backward()
    optimizer.step()

for _ in range(6):
    with gradcore.step() as step:
        run()
""", __file__, "exec"), names)
    traces = names["run"].traces
    names.clear()
    assert len(traces) <= 2, traces
