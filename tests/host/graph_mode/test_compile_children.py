"""A compiled module as an attribute of another one."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn


class Net(nn.Module):
    def __init__(self, wrap: Any = lambda module: module) -> None:
        super().__init__()
        gradcore.manual_seed(0)
        self.first = wrap(nn.Sequential(nn.Linear(4, 5), nn.ReLU()))
        self.last = nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x))


def data(seed: int) -> Any:
    return gradcore.tensor(np.random.default_rng(seed).standard_normal((3, 4)).astype(np.float32))


def trained(net: Net, step: Any = None) -> list[Any]:
    optimizer = gradcore.optim.Adam(net.parameters(), lr=0.1)

    def one(x: Any) -> Any:
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    run = one if step is None else step(one)
    return [run(data(k)).item() for k in range(5)] + [p.tolist() for p in net.parameters()]


def test_its_parameters_are_the_modules_own() -> None:
    net = Net(gradcore.compile)
    assert list(net.state_dict()) == list(Net().state_dict()) == [
        "first.0.weight", "first.0.bias", "last.weight", "last.bias"]
    assert len(list(net.modules())) == 5
    net.eval()
    assert not net.first.training
    assert trained(net) == trained(Net())
    assert net.first.programs, "calls of the attribute are replayed"


def test_inside_a_compiled_step_it_is_as_any_child() -> None:
    net = Net(gradcore.compile)
    compiled: list[Any] = []

    def wrap(step: Any) -> Any:
        compiled.append(gradcore.compile(step))
        return compiled[0]

    assert trained(net, wrap) == trained(Net())
    assert len(compiled[0].traces) <= 2 and compiled[0].programs, compiled[0].explain()


def test_another_module_takes_its_place_and_copies_are_whole() -> None:
    net = Net(gradcore.compile)
    net(data(0))
    twin = copy.deepcopy(net)
    assert twin.first is not net.first and twin.first.__wrapped__ is twin._modules["first"]
    with gradcore.no_grad():
        twin.get_parameter("first.0.weight").fill_(0.0)
    assert net(data(1)).tolist() != twin(data(1)).tolist()
    net.first = nn.Linear(4, 5)
    assert list(net.state_dict())[:2] == ["first.weight", "first.bias"] and net.first is net._modules["first"]
    net.first = gradcore.compile(net.first)
    del net.first
    assert list(net.state_dict()) == ["last.weight", "last.bias"] and not hasattr(net, "first")


def test_sequential_takes_modules_alone() -> None:
    with pytest.raises(TypeError, match="CompiledModule is not a Module subclass: compile the Sequential instead"):
        nn.Sequential(gradcore.compile(nn.Linear(2, 2)))
