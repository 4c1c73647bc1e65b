"""State of optimizers that goes to PyTorch and back, and what optimizers other than SGD and Adam do alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import folds, nn, optim
from tests.conftest import raises
from tests.host.optim.test_optim import CONFIGS, FAMILY, compare, give_gradients, oracle, parameters, start

__all__ = ["oracle"]


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "options"), [CONFIGS[1], CONFIGS[6], *FAMILY], ids=lambda v: str(v))
def test_state_dicts_have_pytorchs_layout_and_go_both_ways(oracle: Any, name: str, options: dict[str, Any]) -> None:
    ours, theirs = parameters(gradcore), parameters(oracle)
    a, b = getattr(optim, name)(ours, **options), getattr(oracle.optim, name)(theirs, **options)
    for step in range(3):
        for library, params, optimizer in ((gradcore, ours, a), (oracle, theirs, b)):
            give_gradients(library, params, step)
            optimizer.step()
    mine, other = a.state_dict(), b.state_dict()
    assert mine["param_groups"][0]["params"] == other["param_groups"][0]["params"]
    assert set(mine["param_groups"][0]) == set(other["param_groups"][0])
    assert {k: set(s) for k, s in mine["state"].items()} == {k: set(s) for k, s in other["state"].items()}
    fresh = [gradcore.tensor(q.detach().numpy(), requires_grad=True) for q in theirs]
    c = getattr(optim, name)(fresh)
    c.load_state_dict(other)
    back = [oracle.tensor(p.detach().numpy(), requires_grad=True) for p in ours]
    d = getattr(oracle.optim, name)(back)
    d.load_state_dict({**mine, "state": {k: {n: oracle.tensor(v.numpy() if hasattr(v, "numpy") else float(v))
                                            for n, v in s.items()} for k, s in mine["state"].items()}})
    for step in range(3, 6):
        for library, params, optimizer in ((gradcore, fresh, c), (oracle, theirs, b), (oracle, back, d)):
            give_gradients(library, params, step)
            optimizer.step()
    compare(fresh, theirs)
    compare(fresh, back)


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "options"), [("SGD", {"lr": 0.1, "momentum": 0.9}), ("Adam", {}), ("AdamW", {}), *FAMILY],
                         ids=lambda v: str(v))
def test_a_parameter_without_dimensions_goes_on_after_loading(oracle: Any, name: str, options: dict[str, Any]) -> None:
    ours, theirs = gradcore.tensor(0.5, requires_grad=True), oracle.tensor(0.5, requires_grad=True)
    a, b = getattr(optim, name)([ours], **options), getattr(oracle.optim, name)([theirs], **options)
    for step in range(4):
        if step in (1, 3):
            # From a state of our own, then from PyTorch's.
            fresh = getattr(optim, name)([ours], **options)
            fresh.load_state_dict(a.state_dict() if step == 1 else b.state_dict())
            a = fresh
        for x, optimizer in ((ours, a), (theirs, b)):
            optimizer.zero_grad()
            (x * x).backward()
            optimizer.step()
    np.testing.assert_allclose(ours.item(), theirs.item(), rtol=2e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["Adamax", "Rprop", "ASGD", "Adafactor"])
def test_a_gradient_that_is_not_finite_reaches_what_it_does_in_torch(oracle: Any, name: str) -> None:
    ours, theirs = parameters(gradcore), parameters(oracle)
    a, b = getattr(optim, name)(ours), getattr(oracle.optim, name)(theirs)
    for step in range(4):
        for library, params, optimizer in ((gradcore, ours, a), (oracle, theirs, b)):
            give_gradients(library, params, step)
            if step == 1:
                params[1].grad[2], params[1].grad[4] = float("nan"), float("inf")
            optimizer.step()
    compare(ours, theirs)


def test_lion_is_its_paper() -> None:
    params = parameters(gradcore)
    lion = optim.Lion(params, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)
    values = [start(k).astype(np.float64) for k in range(len(params))]
    means = [np.zeros_like(v) for v in values]
    for step in range(20):
        give_gradients(gradcore, params, step)
        for k, p in enumerate(params):
            g = p.grad.numpy()
            values[k] = values[k] * (1 - 0.01 * 0.1) - 0.01 * np.sign(0.8 * means[k] + 0.2 * g)
            means[k] = 0.95 * means[k] + 0.05 * g
        lion.step()
    for p, v in zip(params, values, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), v, rtol=2e-6, atol=2e-6)


def test_parameters_that_differ_in_their_steps_go_apart() -> None:
    a, b, c = parameters(gradcore)
    nadam = optim.NAdam([a, b, c])
    give_gradients(gradcore, [a, b, c], 0)
    c.grad = None
    nadam.step()
    give_gradients(gradcore, [c], 1)
    nadam.step()
    assert [nadam.state[p]["step"] for p in (a, b, c)] == [2, 2, 1]
    assert nadam.state[a]["mu_product"] < nadam.state[c]["mu_product"] < 1


def test_a_momentum_that_is_turned_on_begins_at_nothing() -> None:
    params = parameters(gradcore)
    rms = optim.RMSprop(params, lr=0.1)
    give_gradients(gradcore, params, 0)
    rms.step()
    rms.param_groups[0]["momentum"] = 0.9
    rms.step()
    assert set(rms.state[params[0]]) == {"step", "square_avg", "momentum_buffer"} and rms.state[params[0]]["step"] == 2


def test_errors_have_pytorchs_words() -> None:
    p = gradcore.ones(2, requires_grad=True)
    for make, text in (
            (lambda: optim.RMSprop([p], lr=-1), "Invalid learning rate: -1"),
            (lambda: optim.RMSprop([p], alpha=-0.1), "Invalid alpha value: -0.1"),
            (lambda: optim.RMSprop([p], momentum=-0.1), "Invalid momentum value: -0.1"),
            (lambda: optim.Adagrad([p], lr_decay=-2), "Invalid lr_decay value: -2"),
            (lambda: optim.Adagrad([p], initial_accumulator_value=-2), "Invalid initial_accumulator_value value: -2"),
            (lambda: optim.Adadelta([p], rho=1.5), "Invalid rho value: 1.5"),
            (lambda: optim.NAdam([p], momentum_decay=-1), "Invalid momentum_decay value: -1"),
            (lambda: optim.RAdam([p], betas=(0.9, 1.0)), "Invalid beta parameter at index 1: 1.0"),
            (lambda: optim.Adamax([p], betas=(1.0, 0.9)), "Invalid beta parameter at index 0: 1.0"),
            (lambda: optim.Rprop([p], etas=(0.5, 0.9)), "Invalid eta values: 0.5, 0.9"),
            (lambda: optim.ASGD([p], weight_decay=-1), "Invalid weight_decay value: -1"),
            (lambda: optim.Lion([p], weight_decay=-3), "Invalid weight_decay value: -3")):
        with raises(ValueError, text):
            make()
    with raises(NotImplementedError, "RMSprop(differentiable=True) is not supported"):
        optim.RMSprop([p], differentiable=True)


def test_loaded_state_is_the_state_of_its_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    first, second = (optim.Adam(model.parameters()) for _ in range(2))
    model(gradcore.ones(2, 4)).sum().backward()
    first.step()
    state = first.state_dict()
    with gradcore.step(device="cpu") as s:
        second.load_state_dict(state)
    loaded = [h.tag for h in folds.live_at(s.log, len(s.log) - 1) if h.tag.phase == "optimizer"][-4:]
    # Two moments of a weight and of a bias.
    assert {(tag.role, tag.layer, tag.op) for tag in loaded} == {("optimizer state", "0", "clone")} and len(loaded) == 4
