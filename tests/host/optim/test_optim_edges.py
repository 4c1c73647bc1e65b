"""Optimizers: parameters of any layout, and what state dicts hold beside tensors of the parameters."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}), ("Adam", {"lr": 0.1}), ("Adam", {"lr": 0.1, "amsgrad": True}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1}), ("RMSprop", {"momentum": 0.9, "centered": True}), ("Adadelta", {})]


def own_layouts(library: Any) -> list[Any]:
    """A transposed parameter, one that shares its bytes, a column of a matrix, and a plain one."""
    values = (library.arange(12.0) * 0.3).sin().reshape(4, 3)
    columns = library.arange(6.0).cos().reshape(3, 2)
    return [library.nn.Parameter(p) for p in (values.t(), values, columns[:, 1], library.ones(3))]


def loss_of(library: Any, params: list[Any]) -> Any:
    turned, straight, column, plain = params
    x = (library.arange(20.0) * 0.7).cos().reshape(5, 4)
    return (((x @ turned.t() + plain).tanh() @ straight.t()) ** 2).mean() + (column * plain).sum()


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_parameters_of_any_layout_are_updated_as_pytorchs(torch: Any, name: str, options: dict[str, Any]) -> None:
    found = []
    for library in (gradcore, torch):
        params = own_layouts(library)
        optimizer = getattr(library.optim, name)(params, foreach=False, **options)
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(library, params).backward()
            optimizer.step()
        found.append([p.detach().numpy() for p in params])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), OPTIONS[:4], ids=str)
def test_their_updates_are_replayed(name: str, options: dict[str, Any]) -> None:
    found = []
    for compiled in (False, True):
        params = own_layouts(gradcore)
        optimizer = getattr(optim, name)(params, **options)

        def train(params: Any = params, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = loss_of(gradcore, params)
            loss.backward()
            optimizer.step()
            return loss

        step = gradcore.compile(train) if compiled else train
        found.append([step().item() for _ in range(5)] + [p.tolist() for p in params])
        assert not compiled or len(step.programs) == 1
    assert found[0] == found[1]


def sgd(library: Any, **options: Any) -> Any:
    p = library.nn.Parameter(library.ones(3))
    p.grad = library.ones(3)
    return p, library.optim.SGD([p], **{"lr": 0.1, "momentum": 0.9, "foreach": False, **options})


def test_a_learning_rate_that_is_a_tensor_is_copied_when_it_is_loaded() -> None:
    _, one = sgd(gradcore, lr=gradcore.tensor(0.5))
    p, other = sgd(gradcore)
    other.load_state_dict(one.state_dict())
    schedule = optim.lr_scheduler.ExponentialLR(one, 0.1)
    one.step()
    schedule.step()
    assert one.param_groups[0]["lr"].item() == np.float32(0.05)
    other.step()
    assert p.tolist() == [0.5] * 3


@pytest.mark.oracle
def test_a_learning_rate_that_is_a_tensor_of_pytorchs_is_loaded(torch: Any) -> None:
    _, one = sgd(torch, lr=torch.tensor(0.5))
    p, other = sgd(gradcore)
    other.load_state_dict(one.state_dict())
    other.step()
    assert p.tolist() == [0.5] * 3


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop",
                                  "ASGD", "Adafactor"])
def test_a_learning_rate_may_be_a_tensor_of_one_dimension(torch: Any, name: str) -> None:
    found = []
    for library in (gradcore, torch):
        p = library.nn.Parameter(library.ones(2, 2))
        one = getattr(library.optim, name)([p], lr=library.tensor([0.25]))
        for k in (1.0, 2.0):
            p.grad = library.full((2, 2), k)
            one.step()
        found.append(p.tolist())
        assert tuple(one.param_groups[0]["lr"].shape) == (1,)
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.oracle
def test_state_beside_that_of_parameters_is_saved(torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        _, one = sgd(library)
        one.step()
        one.state["rounds"] = 3
        states = one.state_dict()
        p, other = sgd(library)
        other.load_state_dict(states)
        found.append((sorted(map(str, states["state"])), other.state["rounds"], other.state[p]["momentum_buffer"].tolist()))
    assert found[0] == found[1]


@pytest.mark.oracle
def test_the_text_of_several_groups_is_pytorchs(torch: Any) -> None:
    texts = []
    for library in (gradcore, torch):
        groups = [{"params": [library.nn.Parameter(library.ones(k + 1))], "lr": 0.1 * k} for k in range(3)]
        texts.append(repr(library.optim.Adagrad(groups)))
    assert texts[0] == texts[1]


def test_a_layer_of_transposed_weights_leaves_nothing() -> None:
    layer = nn.Linear(4, 4, bias=False)
    layer.weight = nn.Parameter(gradcore.ones(4, 4).t())
    optimizer = optim.SGD(layer.parameters(), lr=0.1)
    live = []
    for _ in range(3):
        with gradcore.step() as s:
            optimizer.zero_grad()
            layer(gradcore.ones(2, 4)).sum().backward()
            optimizer.step()
        assert sum(s.report.by_role.values()) == s.report.peak.allocated
        live.append(gradcore.memory_requested())
    assert live[1] == live[2]


def test_the_options_of_every_optimizer_are_in_its_signature(torch: Any) -> None:
    """Scripts ask ``"fused" in inspect.signature(torch.optim.AdamW).parameters``."""
    found = {name for name in dir(optim) if isinstance(getattr(torch.optim, name, None), type)}
    assert {"AdamW", "SGD", "LBFGS"} <= found
    for name in found:
        theirs, ours = (inspect.signature(getattr(library, name)).parameters for library in (torch.optim, optim))
        assert not theirs.keys() - ours.keys(), name


def test_the_parameters_are_a_list_of_a_module() -> None:
    p = nn.ParameterList([gradcore.ones(2), gradcore.ones(1)])
    assert all(a is b for a, b in zip(optim.SGD(p, lr=0.1).param_groups[0]["params"], p, strict=True))
