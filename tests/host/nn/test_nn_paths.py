"""Layer paths: the layer that a module's bytes are attributed to, whoever calls it."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable
from typing import Any

import gradcore
from gradcore import nn
from gradcore.engine.state import local, scoped
from gradcore.events import Launch, typed
from gradcore.nn import functional as F
from gradcore.nn.paths import calls
from gradcore.utils.checkpoint import checkpoint_sequential
from tests.conftest import raises


def tag(x: Any) -> Any:
    return x.storage.block.tag


class Block(nn.Module):
    """Records the scope in which it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("scale", gradcore.ones(3))
        self.seen: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.seen.append(local.state.scope.plain)
        return self.fc(x) * self.scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(3, 2, bias=False)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Calls(nn.Module):
    """Calls a module that it does not own."""

    def __init__(self, hidden: list[Any]) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, x: Any) -> Any:
        return self.hidden[0](x)


def test_bytes_belong_to_the_path_of_their_module() -> None:
    m = Model()
    y = m(gradcore.ones(4, 3))
    assert tag(y).layer == "head" and tag(y).phase == "forward"
    assert {n: tag(p).layer for n, p in m.named_parameters()} == {
        n: n.rpartition(".")[0] for n, _ in m.named_parameters()}
    assert (tag(m.blocks[0].scale).layer, tag(m.blocks[0].scale).role) == ("blocks.0", "buffer")
    assert m.head.weight.edge[0].path == "head.weight"
    assert [b.seen[-1].layer for b in m.blocks] == ["blocks.0", "blocks.1"]
    y.sum().backward()
    assert {tag(p.grad).layer for p in m.blocks[1].parameters()} == {"blocks.1.fc"}
    assert {tag(p.grad).phase for p in m.parameters()} == {"backward"}


def test_the_scope_comes_back_also_after_an_error() -> None:
    class Breaks(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ZeroDivisionError

    m = nn.Sequential(nn.Identity(), Breaks())
    before = local.state.scope
    with raises(ZeroDivisionError):
        m(gradcore.ones(1))
    assert local.state.scope == before and calls.tree is None
    m[0](gradcore.ones(1))
    assert local.state.scope == before and calls.tree is None


def test_phase_and_role_stay_as_the_caller_set_them() -> None:
    block = Block()
    with scoped(phase="measuring", role="input"):
        y = block(gradcore.ones(2, 3))
        assert block.seen[-1][:2] == ("", "measuring") and block.seen[-1].role == "input"
    assert tag(y).role == "input" and tag(y).phase == "measuring"


def test_a_structure_that_changes_is_mapped_again() -> None:
    m = nn.Sequential(Block(), Block())
    m(gradcore.ones(1, 3))
    m.add_module("last", Block())
    m(gradcore.ones(1, 3))
    assert m.get_submodule("last").seen[-1].layer == "last"
    assert tag(m.get_submodule("last").fc.weight).layer == "last.fc"
    outer = nn.Sequential(m)
    outer(gradcore.ones(1, 3))
    assert m[0].seen[-1].layer == "0.0" and tag(m[0].fc.bias).layer == "0.0.fc"


def test_making_modules_elsewhere_leaves_maps_alone() -> None:
    m = Block()
    m(gradcore.ones(1, 3))
    tree = m._module_tree
    other = Block()
    m(gradcore.ones(1, 3))
    assert m._module_tree is tree
    other(gradcore.ones(1, 3))
    m.fc = nn.Linear(3, 3)
    m(gradcore.ones(1, 3))
    assert m._module_tree is not tree and tag(m.fc.weight).layer == "fc"


def test_a_part_called_alone_and_its_bytes_keep_their_name() -> None:
    m = nn.Sequential(Block())
    m(gradcore.ones(1, 3))
    m[0](gradcore.ones(1, 3))
    assert m[0].seen[-1].layer == "0" and tag(m[0].fc.weight).layer == "0.fc"


def test_a_module_outside_the_tree_works_on_its_callers_account() -> None:
    stranger = Block()
    nn.Sequential(Calls([stranger]))(gradcore.ones(1, 3))
    assert stranger.seen[-1].layer == "0"


def test_modules_hold_no_cycle() -> None:
    """The collector is off: what remains after the last reference remains for ever. The fixture checks."""
    m = Model()
    loss = F.mse_loss(m(gradcore.ones(4, 3)), gradcore.zeros(4, 2))
    loss.backward()
    m.add_module("more", Block())
    with gradcore.no_grad():
        m(gradcore.ones(4, 3))


def test_threads_call_the_same_model_each_in_its_own_scope() -> None:
    m = Model()
    start = threading.Barrier(4)
    layers: list[set[str]] = []

    def run() -> None:
        start.wait()
        found = set()
        for _ in range(20):
            found.add(tag(m(gradcore.ones(1, 3))).layer)
        layers.append(found)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert layers == [{"head"}] * 4


class AutoEncoder(nn.Module):
    """Has no forward: the user calls its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
        self.dec = nn.Linear(4, 8)

    def loss(self, x: Any) -> Any:
        return (self.dec(self.enc(x)) - x).square().mean()


def launched(call: Callable[[], Any]) -> dict[str, set[str]]:
    """The layers in which each op ran, by their paths only; tests/host/nn/test_networks.py tests their networks."""
    with gradcore.step() as step:
        call()
    found: dict[str, set[str]] = {}
    for record in map(typed, step.raw_log):
        if isinstance(record, Launch):
            found.setdefault(record.tag.op, set()).add(record.tag.layer)
    return found


def test_parts_of_a_module_that_is_not_called() -> None:
    model, x = AutoEncoder(), gradcore.ones(16, 8)
    for m in (model, copy.deepcopy(model)):
        layers = launched(lambda m=m: m.loss(x).backward())  # type: ignore[misc]
        assert layers["linear"] == {"enc.0", "dec"} and layers["tanh"] == {"enc.1"} and layers["square"] == {""}
        assert layers["linear_grad"] == {"enc.0", "dec"}


def test_parts_that_are_called_one_by_one() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), gradcore.ones(4, 8)
    assert launched(lambda: model[2](model[0](x)))["linear"] == {"0", "2"}
    assert launched(lambda: checkpoint_sequential(model, 2, x).sum().backward())["linear"] == {"0", "2"}
    both = nn.ModuleDict({"G": nn.Linear(8, 8), "D": nn.Linear(8, 1)})
    assert launched(lambda: both["D"](both["G"](x)))["linear"] == {"G", "D"}


def test_a_part_of_two_modules_is_named_by_neither() -> None:
    shared, x = nn.Linear(8, 8), gradcore.ones(4, 8)
    first, second = nn.Sequential(shared), nn.Sequential(nn.Tanh(), shared)
    assert launched(lambda: shared(x))["linear"] == {""}
    assert launched(lambda: first(x))["linear"] == {"0"} and launched(lambda: second(x))["linear"] == {"1"}


def test_a_tied_weight_is_the_first_module_s() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    loss = model(gradcore.zeros(3, dtype=gradcore.int64)).sum()
    assert [name for name, _ in model.named_parameters()] == ["0.weight"] and tag(model[0].weight).layer == "0"
    assert str(gradcore.graph(loss)).count("leaf 0.weight") == 2
    twice = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    twice[1].running_mean = twice[0].running_mean
    twice(gradcore.ones(2, 4))
    assert tag(twice[0].running_mean).layer == "0"


def test_what_is_taken_out_is_a_module_of_its_own() -> None:
    model, x = AutoEncoder(), gradcore.ones(4, 8)
    encoder = model.enc
    assert launched(lambda: encoder(x))["tanh"] == {"enc.1"}
    model.enc = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    assert launched(lambda: encoder(x))["tanh"] == {"1"} and launched(lambda: model.enc(x))["relu"] == {"enc.1"}
    outer = nn.ModuleDict({"auto": model})
    assert launched(lambda: model.loss(x))["relu"] == {"auto.enc.1"}
    del outer


def test_a_part_does_not_keep_what_it_is_part_of() -> None:
    model = AutoEncoder()
    encoder, gone = model.enc, weakref.ref(model)
    model.loss(gradcore.ones(4, 8))
    del model
    assert gone() is None and encoder(gradcore.ones(4, 8)).shape == (4, 4)


def test_a_child_that_is_put_in_its_place_again_and_again_has_one_parent() -> None:
    net, child = nn.Sequential(nn.ReLU()), nn.Linear(2, 2)
    for _ in range(3):
        net.add_module("last", child)
        net._modules = dict(net._modules)
    assert [r() for r in child._module_parents] == [net]


def test_state_of_a_layer_that_moves_takes_none_of_a_layer_with_a_longer_number_along() -> None:
    net = nn.Sequential(*[nn.Linear(2, 2) for _ in range(11)])
    optimizer = gradcore.optim.Adam(net.parameters())
    net(gradcore.ones(1, 2)).sum().backward()
    optimizer.step()
    kept = [net[1], net[10]]
    state = [optimizer.state[layer.weight]["exp_avg"].storage for layer in kept]
    del net
    found = []
    for larger in (nn.Sequential(kept[0]), nn.Sequential(nn.ReLU(), kept[1])):
        larger(gradcore.ones(1, 2))
        found.append([storage.block.tag.layer for storage in state])
    assert found == [["0", "10"], ["0", "1"]]
