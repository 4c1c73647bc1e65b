"""``module.compile()``: the module's own calls are replayed, and it stays the module that it was."""

from __future__ import annotations

import copy
import gc
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import TraceError
from tests.conftest import raises


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        gradcore.manual_seed(0)
        self.first = nn.Linear(4, 5)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(5, 2)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.last(self.drop(self.first(x).relu())) * scale

    def seen(self, module: nn.Module, args: Any, output: Any) -> Any:
        return output * 3


def data(seed: int, rows: int = 3) -> Any:
    return gradcore.tensor(np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32))


def made(compiled: bool) -> Net:
    net = Net()
    if compiled:
        assert net.compile() is None  # type: ignore[func-returns-value]
    return net


def traces(net: nn.Module) -> list[str]:
    found: list[str] = net._compiled_call_impl.traces  # type: ignore[attr-defined]
    return found


def trained(net: Net) -> list[Any]:
    gradcore.manual_seed(1)
    optimizer = gradcore.optim.Adam(net.parameters(), lr=0.1)
    losses = []
    for k in range(4):
        optimizer.zero_grad()
        loss = net(data(k), scale=2.0).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    losses += [net(data(k)).tolist() for k in range(2)]
    net.first.weight = nn.Parameter(gradcore.ones(5, 4))
    losses += [net(data(k)).tolist() for k in range(2)]
    net.train()
    return losses


def test_its_calls_are_replayed_in_every_mode_and_with_other_parameters() -> None:
    net = made(True)
    assert trained(net) == trained(made(False))
    assert traces(net)[0] == "the first call" and len(traces(net)) == 3
    assert traces(net)[2] == "weight of Linear is a different object"


def test_its_hooks_run_and_are_replayed() -> None:
    found = []
    for compiled in (False, True):
        net = made(compiled)
        net.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        handle = net.register_forward_hook(lambda module, args, output: output * 2)
        net.first.register_forward_hook(lambda module, args, output: output * 3)
        calls = [trained(net)]
        handle.remove()
        found.append([*calls, trained(net)])
    assert found[0] == found[1] and found[0][0] != found[0][1]
    assert "the hooks of Net have changed" in traces(net)


def test_as_a_child_and_inside_a_compiled_step() -> None:
    class Outer(nn.Module):
        def __init__(self, compiled: bool) -> None:
            super().__init__()
            self.net = made(compiled)

        def forward(self, x: Any) -> Any:
            return self.net(x) + 1

    outer, plain, x = Outer(True).eval(), Outer(False).eval(), data(0)
    assert [outer(x).tolist() for _ in range(3)] == [plain(x).tolist()] * 3
    assert len(traces(outer.net)) == 1
    step = gradcore.compile(lambda x: outer(x).sum())
    assert [step(x).item() for _ in range(3)] == [plain(x).sum().item()] * 3
    assert len(step.programs) == 1 and len(traces(outer.net)) == 1


def test_a_report_names_the_layers_of_the_network_that_it_is_in() -> None:
    net = nn.Sequential(nn.Linear(4, 4), made(False)).eval()
    layers = []
    for compiled in (False, True):
        if compiled:
            net[1].compile()
        net(data(0))
        with gradcore.step() as step:
            net(data(0))
        layers.append(step.report.by_layer)
    assert layers[0].keys() == layers[1].keys() and "1.first" in layers[1]


def test_copies_and_state_are_those_of_a_module_that_is_not_compiled() -> None:
    net, x = made(True).eval(), data(0)
    before = net(x).tolist()
    assert list(net.state_dict()) == list(made(False).state_dict())
    for twin in (copy.copy(net), copy.deepcopy(net)):
        assert twin(x).tolist() == before and twin._compiled_call_impl is None
        assert vars(twin).keys() - {"_module_hooks"} == vars(made(False)).keys()
    with gradcore.no_grad():
        net.last.bias.fill_(9.0)
    assert net(x).tolist() != before == copy.deepcopy(twin)(x).tolist()
    assert net._compiled_call_impl.programs  # type: ignore[attr-defined]


@pytest.mark.parametrize("by", [copy.copy, copy.deepcopy])
def test_a_copy_that_its_class_makes_of_all_attributes_calls_itself(by: Any) -> None:
    class Whole(Net):
        def __getstate__(self) -> dict[str, Any]:
            return self.__dict__.copy()

    net, x = Whole().eval(), data(0)
    net.compile()
    before = net(x).tolist()
    twin = by(net)
    twin.last = nn.Linear(5, 2)
    assert twin(x).tolist() == twin.forward(x).tolist() != before == net(x).tolist()


@pytest.mark.parametrize("base", [dict, list, Exception, type("Slotted", (), {"__slots__": ("a", "b")})])
def test_a_module_may_be_of_a_class_with_a_layout_of_its_own(base: type) -> None:
    both = type("Both", (Net, base), {"__init__": lambda self: Net.__init__(self)})
    found, x = [], data(0)
    before = gradcore.memory_allocated()
    for compiled in (False, True):
        net = both().eval()
        if compiled:
            net.compile()
        found.append([net(x).tolist() for _ in range(3)])
    assert found[0] == found[1] and len(traces(net)) == 1
    del net
    assert gradcore.memory_allocated() == before


def test_it_is_freed_by_reference_counts() -> None:
    assert not gc.isenabled()
    x = data(0)
    before = gradcore.memory_allocated()
    net = made(True)
    for again in range(2):
        if again:
            net.compile()
        for _ in range(3):
            net(x).sum().backward()
    assert traces(net) == ["the first call"] and gradcore.memory_allocated() > before
    del net
    assert gradcore.memory_allocated() == before


def test_one_in_a_cycle_is_freed_by_the_collector() -> None:
    x = data(0)
    gc.collect()
    before = gradcore.memory_allocated()
    net = made(True)
    # A hook that is a method of the module's refers to it, as does what was traced.
    net.first.register_forward_hook(net.seen)
    for _ in range(3):
        net(x)
    del net
    gc.collect()
    assert gradcore.memory_allocated() == before


def test_a_layer_that_reads_a_value_is_blamed_by_its_function() -> None:
    layer = nn.CELU(gradcore.tensor(0.5))
    layer.compile()
    with raises(TraceError, "reads a value of a tensor on the host, by celu()"):
        layer(data(0))


def test_it_takes_the_arguments_of_compile() -> None:
    net, x = made(False), data(0)
    with raises(ValueError, "max_programs"):
        net.compile(max_programs=0)
    net.compile(disable=True)
    net(x)
    net.compile(mode="reduce-overhead", fullgraph=True, max_programs=1)
    with pytest.warns(RuntimeWarning, match="Net was traced 1 times") as warned:
        for rows in (1, 2):
            net(data(0, rows))
    assert warned[0].filename == __file__
