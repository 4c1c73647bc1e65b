"""Compiled functions see what an optimizer holds that its own update does not read: memory, attributes and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn


class Plain(gradcore.optim.Optimizer):
    """An update of the user's own, out of common ops."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.25})

    @gradcore.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])


def stepping(optimizer: Any) -> Callable[[], Any]:
    return lambda: optimizer.step()


def clamping(optimizer: Any) -> Callable[[], Any]:
    def clamp() -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.data.clamp_(-0.5, 0.5)
    return clamp


def in_both_modes(make: Callable[[Any], Any], run: Callable[[Any], Any], change: Callable[[Any], None]) -> list[list[Any]]:
    """What eager and compiled calls return, and leave in the parameter, before and after a change that a replay must notice.

    ``run`` makes the function of an optimizer.
    """
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        p = nn.Parameter(gradcore.ones(2, 2))
        optimizer = make([p])
        call = wrap(run(optimizer))
        values = []
        for k in range(6):
            p.grad = gradcore.ones(2, 2)
            if k == 3:
                change(optimizer)
            result = call()
            values.append((p.tolist(), None if result is None else result.tolist()))
        found.append(values)
        if wrap is gradcore.compile:
            assert call.programs and "cannot be replayed" not in call.traces[-1]
    return found


@pytest.mark.parametrize("make", [Plain, gradcore.optim.Adafactor, gradcore.optim.SGD])
@pytest.mark.parametrize("run", [stepping, clamping])
def test_a_parameter_that_only_an_optimizer_leads_to_was_given_other_memory(make: Any, run: Any) -> None:
    def change(optimizer: Any) -> None:
        p, = optimizer.param_groups[0]["params"]
        p.data = p.data + 1

    eager, compiled = in_both_modes(make, run, change)
    assert compiled == eager


class Scaled(Plain):
    """One with options in attributes, of its class too, and in its state."""

    power = 1.0

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.factor = 1.0
        self.scales = [gradcore.ones(2, 2)]
        self.options = {"shift": 0.0}

    def shifted(self, grad: Any) -> Any:
        return grad + self.options["shift"]

    @gradcore.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                grad = self.shifted(p.grad) * self.scales[0] * self.factor * self.power
                p.add_(grad, alpha=-group["lr"] * self.state[p].get("factor", 1.0))


def state_of(optimizer: Any) -> dict[str, Any]:
    p, = optimizer.param_groups[0]["params"]
    found: dict[str, Any] = optimizer.state[p]
    return found


@pytest.mark.parametrize("change", [
    lambda optimizer: setattr(optimizer, "factor", 2.0),
    lambda optimizer: setattr(optimizer, "power", 2.0),
    lambda optimizer: setattr(optimizer, "shifted", lambda grad: grad * 3),
    lambda optimizer: setattr(optimizer.scales[0], "data", gradcore.zeros(2, 2)),
    lambda optimizer: optimizer.scales.__setitem__(0, gradcore.zeros(2, 2)),
    lambda optimizer: optimizer.options.update(shift=1.0),
    lambda optimizer: state_of(optimizer).update(factor=2.0),
], ids=["attribute", "class", "method", "memory", "item", "dict", "state"])
def test_what_an_optimizer_of_the_users_reads_of_itself_changed(change: Callable[[Any], None]) -> None:
    eager, compiled = in_both_modes(Scaled, stepping, change)
    # Without the change, four updates by 0.25 would leave 0.
    assert compiled == eager and eager[3][0][0][0] != 0


class Shared(Plain):
    """One that keeps a factor in its state beside that of its parameters."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.state["factor"] = 1.0

    @gradcore.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] * self.state["factor"])


def test_what_is_in_the_state_beside_that_of_parameters() -> None:
    eager, compiled = in_both_modes(Shared, stepping, lambda optimizer: optimizer.state.update(factor=2.0))
    assert compiled == eager and eager[3][0][0][0] != 0


class Alternating(gradcore.optim.SGD):
    """One that takes two buffers in turn."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p]
                kept["a"], kept["b"] = kept["b"], kept["a"]
                p.grad.mul_(kept["a"])
        return super().step(closure)


def test_an_optimizer_that_exchanges_its_buffers_is_not_replayed() -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        p = nn.Parameter(gradcore.ones(2))
        optimizer = Alternating([p], lr=0.5)
        optimizer.state[p].update(a=gradcore.ones(2), b=gradcore.zeros(2))
        call = wrap(lambda optimizer=optimizer: optimizer.step())
        values = []
        for _ in range(5):
            p.grad = gradcore.ones(2)
            call()
            values.append(p.tolist())
        found.append(values)
    assert found[0] == found[1] and call.traces[0].endswith("has other items, or has them in another order")


class Counting(Plain):
    """One that counts its steps, as that of a paper."""

    @gradcore.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p]
                kept["step"] = kept.get("step", 0) + 1
                p.add_(p.grad, alpha=-group["lr"] / kept["step"])


def test_a_number_that_an_optimizer_of_the_users_counts_is_named() -> None:
    p = nn.Parameter(gradcore.ones(2))
    optimizer = Counting([p])
    step = gradcore.compile(lambda: optimizer.step())
    for _ in range(3):
        p.grad = gradcore.ones(2)
        step()
    assert not step.programs and "the state of a Counting[a Parameter]['step'] is 3 and was 2" in step.traces[-1]
    assert "other items" not in step.traces[-1]


def stepped(params: Any) -> Any:
    optimizer = gradcore.optim.Adam(params, lr=0.5)
    params[0].grad = gradcore.ones(2, 2)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("run", "change"), [
    (lambda o: lambda: state_of(o)["exp_avg"] * 2,
     lambda o: state_of(o).update(exp_avg=gradcore.zeros(2, 2))),
    (lambda o: lambda: sum(kept["exp_avg"] for kept in o.state.values()) * 2,
     lambda o: setattr(state_of(o)["exp_avg"], "data", gradcore.zeros(2, 2))),
    (lambda o: lambda: sum(kept["exp_avg"] / (1 - 0.9 ** kept["step"]) for kept in o.state.values()), lambda o: o.step()),
    (lambda o: lambda: [p.data.mul_(0.5) for p in o.state] and None,
     lambda o: [setattr(p, "data", p.data + 1) for p in o.state]),
    (lambda o: lambda: gradcore.ones(2, 2) * len(o.state), lambda o: o.state.clear()),
    (lambda o: lambda: gradcore.ones(2, 2) * o.defaults["lr"], lambda o: o.defaults.update(lr=2.0)),
], ids=["tensor", "memory", "count", "keys", "length", "defaults"])
def test_what_other_code_reads_of_an_optimizer_changed(run: Callable[[Any], Any], change: Callable[[Any], None]) -> None:
    eager, compiled = in_both_modes(stepped, run, change)
    assert compiled == eager and eager[2:3] * 3 != eager[3:]


def test_counts_that_are_not_read_do_not_end_a_program() -> None:
    """The state is named, and each step counts."""
    p = nn.Parameter(gradcore.ones(2, 2))
    optimizer = stepped([p])

    @gradcore.compile
    def train() -> Any:
        p.grad = None
        p.square().sum().backward()
        optimizer.step()
        return optimizer.state[p]["exp_avg"].sum()

    for _ in range(5):
        train()
    assert len(train.traces) == len(train.programs) == 1 and state_of(optimizer)["step"] == 6
