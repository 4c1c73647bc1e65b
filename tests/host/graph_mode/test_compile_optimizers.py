"""Optimizers of compiled steps: rates that are tensors, several optimizers, optimizers of the user's, state that code reads."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn, optim

Wrap = Callable[[Any], Any]


def both(run: Callable[[Wrap], Any]) -> tuple[Any, Any]:
    """What a training gives eagerly and compiled, from the same weights."""
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found.append(run(wrap))
    return found[0], found[1]


def step_of(model: Any, *optimizers: Any, read: Callable[[Any], Any] = lambda loss: loss) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return read(loss.detach())

    return step


X = (2, 4)


@pytest.mark.parametrize("change", ["fill", "tensor", "memory", "number", "and back"])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "SGD", "Lion", "Adagrad", "Adadelta",
                                  "Adamax", "Rprop", "Adafactor"])
def test_a_rate_that_is_a_tensor(kind: str, change: str) -> None:
    def train(wrap: Wrap) -> list[float]:
        model = nn.Linear(4, 3)
        more = {"SGD": {"momentum": 0.9}, "Adagrad": {"lr_decay": 0.1}}.get(kind, {})
        optimizer = getattr(optim, kind)(model.parameters(), lr=gradcore.tensor(0.1), **more)
        step, losses = wrap(step_of(model, optimizer)), []
        for k in range(9):
            losses.append(step(gradcore.ones(*X)).item())
            group = optimizer.param_groups[0]
            if k == 4 and change == "fill":
                group["lr"].fill_(0.03)
            elif k == 4 and change == "memory":
                group["lr"].data = gradcore.tensor(0.03)
            elif k == 4:
                group["lr"] = gradcore.tensor(0.03) if change == "tensor" else 0.03
            elif k == 6 and change == "and back":
                group["lr"] = gradcore.tensor(0.05)
        return losses

    eager, compiled = both(train)
    assert eager == compiled


@pytest.mark.parametrize(("kind", "option", "values"), [
    ("Rprop", "etas", ((0.5, 1.2), (0.3, 1.5))), ("Rprop", "step_sizes", ((1e-6, 50), (0.01, 0.02))),
    ("ASGD", "lr", (0.1, 0.2)), ("ASGD", "lambd", (1e-4, 0.1)), ("ASGD", "alpha", (0.75, 0.5)), ("ASGD", "t0", (1e6, 2))])
def test_options_that_are_operands_change_without_another_trace(kind: str, option: str, values: Any) -> None:
    steps = []

    def train(wrap: Wrap) -> list[float]:
        model = nn.Linear(4, 3)
        optimizer = getattr(optim, kind)(model.parameters(), **{option: values[0]})
        step, losses = wrap(step_of(model, optimizer)), []
        steps.append(step)
        for k in range(9):
            losses.append(step(gradcore.ones(*X) * (1 + k % 3)).item())
            if k == 4:
                optimizer.param_groups[0][option] = values[1]
        return [*losses, *(x.item() for s in optimizer.state.values() for x in [s.get("ax", s.get("prev")).sum()])]

    eager, compiled = both(train)
    assert eager == compiled and len(steps[1].traces) == 2


@pytest.mark.parametrize("kinds", [("SGD", "Adam"), ("Adam", "SGD"), ("Adam", "Adam"), ("Adam", "NAdam")])
def test_two_optimizers_of_the_same_parameters_count_apart(kinds: tuple[str, str]) -> None:
    def train(wrap: Wrap) -> Any:
        model = nn.Linear(4, 3)
        a, b = (getattr(optim, kind)(model.parameters(), lr=rate) for kind, rate in zip(kinds, (0.1, 0.01), strict=True))
        step = wrap(step_of(model, a, b))
        losses = [step(gradcore.ones(*X)).item() for _ in range(6)]
        return losses, [[s.get("step") for s in o.state.values()] for o in (a, b)]

    eager, compiled = both(train)
    assert eager == compiled and {6} in [set(counts) for counts in eager[1]]


@pytest.mark.parametrize("count", [lambda o, p: o.state[p]["step"],
                                   lambda o, p: o.state_dict()["state"][0]["step"]], ids=["state", "state_dict"])
def test_counts_that_the_function_reads_are_not_frozen(count: Any) -> None:
    def train(wrap: Wrap) -> Any:
        model = nn.Linear(4, 3)
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        step = wrap(step_of(model, optimizer, read=lambda loss: loss * count(optimizer, model.weight)))
        losses = [step(gradcore.ones(*X)).item() for _ in range(6)]
        return losses if wrap is not gradcore.compile else (losses, step.traces[-1])

    eager, (compiled, reason) = both(train)
    assert eager == compiled and "it reads 'step' in the state of the optimizer Adam, which each run changes" in reason


def test_counts_of_a_schedule_that_the_function_reads_are_not_frozen() -> None:
    def train(wrap: Wrap) -> Any:
        model = nn.Linear(4, 3)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        schedule = optim.lr_scheduler.StepLR(optimizer, 3)
        step = wrap(step_of(model, optimizer, read=lambda loss: loss * schedule.state_dict()["last_epoch"]))
        losses = []
        for _ in range(6):
            losses.append(step(gradcore.ones(*X)).item())
            schedule.step()
        return losses if wrap is not gradcore.compile else (losses, step.traces[-1])

    eager, (compiled, reason) = both(train)
    assert eager == compiled and "calls StepLR.state_dict(), with what each step changes" in reason


def test_an_optimizer_that_is_made_inside() -> None:
    def train(wrap: Wrap) -> Any:
        def solve(x: Any) -> Any:
            w = gradcore.zeros(3, requires_grad=True)
            optimizer = optim.SGD([w], lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                (w - x).square().sum().backward()
                optimizer.step()
            return w.detach() * 1

        solve = wrap(solve)
        return [solve(gradcore.full((3,), float(k))).tolist() for k in range(5)]

    eager, compiled = both(train)
    assert eager == compiled and eager[4] == pytest.approx([1.44] * 3)


class Wrapper(optim.Optimizer):
    """Has another optimizer, and nothing of its own."""

    def __init__(self, base: Any) -> None:
        self.base, self.param_groups, self.state = base, base.param_groups, base.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        return self.base.step(closure)


def test_an_optimizer_without_an_optimizers_attributes() -> None:
    def train(wrap: Wrap) -> Any:
        model = nn.Linear(4, 3)
        optimizer = Wrapper(optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        step = wrap(step_of(model, optimizer))
        return [step(gradcore.ones(*X)).item() for _ in range(6)]

    eager, compiled = both(train)
    assert eager == compiled


@pytest.mark.parametrize("inside", ["model", "optimizer"])
def test_a_schedule_beside_a_function_that_only_clears_gradients_costs_no_trace(inside: str) -> None:
    model = nn.Linear(4, 3)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    cleared = {"model": model, "optimizer": optimizer}[inside]

    @gradcore.compile
    def run(x: Any) -> Any:
        cleared.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(12):
        run(gradcore.ones(*X))
        optimizer.step()
        schedule.step()
    assert len(run.traces) == 2 and len(run.programs) == 2


def test_an_optimizer_that_replaces_its_state_beside_a_function_that_only_clears_gradients() -> None:
    """LBFGS keeps new tensors after each step; ``zero_grad()`` in its closure reads none of them."""
    def train(wrap: Wrap) -> Any:
        gradcore.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)

        @wrap
        def closure(model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = (model(gradcore.ones(*X)) - 1).square().mean()
            loss.backward()
            return loss.detach()

        losses = [optimizer.step(closure).item() for _ in range(5)]
        if wrap is gradcore.compile:
            assert len(closure.traces) == 2 and len(closure.programs) == 2
        return losses

    eager, compiled = both(train)
    assert eager == compiled


def test_a_reason_says_whether_the_state_or_the_options_changed() -> None:
    model = nn.Linear(4, 3)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = gradcore.compile(step_of(model, optimizer))
    step(gradcore.ones(*X)), step(gradcore.ones(*X))
    for state in optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"].clone()
    step(gradcore.ones(*X))
    assert step.traces[-1] == "the state of the optimizer SGD changed"
    optimizer.param_groups[0]["dampening"] = 0.5
    step(gradcore.ones(*X))
    assert step.traces[-1] == "the options or parameters of the optimizer SGD changed"


@pytest.mark.parametrize("bias", [False, True])
def test_a_state_that_the_step_removes_is_made_again_in_each_call(bias: bool) -> None:
    def train(wrap: Wrap) -> list[float]:
        layer = nn.Linear(4, 3, bias=bias)
        optimizer = optim.Adam(layer.parameters(), lr=0.1)

        @wrap
        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = layer(x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.state.clear()
            return loss.detach()

        losses = [step(gradcore.ones(*X)).item() for _ in range(5)]
        assert not optimizer.state
        if wrap is gradcore.compile:
            assert "removes the state of the optimizer Adam" in step.traces[-1]
        return losses

    eager, compiled = both(train)
    assert eager == compiled


@pytest.mark.parametrize("name", ["_before", "_after", "_inside"])
def test_a_programs_own_attribute_of_an_optimizer_is_guarded(name: str) -> None:
    """Not those of gradcore, which each step changes."""
    optimizer = optim.SGD([gradcore.ones(1, requires_grad=True)])
    setattr(optimizer, name, 2)
    call = gradcore.compile(eval(f"lambda x: x * optimizer.{name}", {"optimizer": optimizer}))
    assert call(gradcore.ones(1)).item() == 2
    setattr(optimizer, name, 3)
    assert [call(gradcore.ones(1)).item() for _ in range(2)] == [3, 3] and len(call.programs) == 2
