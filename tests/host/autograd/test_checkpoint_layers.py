"""Layers that are checkpointed by name: the same gradients, bytes and names as with ``checkpoint`` in the code."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from typing import Any
from weakref import ref

import pytest

import gradcore
from gradcore import nn
from gradcore.spec import round_up
from gradcore.utils.checkpoint import checkpoint
from gradcore.utils.checkpointed import checkpoint_layers
from tests.conftest import raises


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.drop, self.narrow = nn.Linear(16, 64), nn.Dropout(0.3), nn.Linear(64, 16)

    def forward(self, x: Any, *, scale: float = 1.0) -> Any:
        return x + self.narrow(self.drop(self.wide(x).tanh())) * scale


class Network(nn.Module):
    def __init__(self, by_hand: bool = False) -> None:
        super().__init__()
        self.first, self.blocks, self.by_hand = nn.Linear(8, 16), nn.ModuleList(Block() for _ in range(3)), by_hand

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for k, block in enumerate(self.blocks):
            x = checkpoint(block, x, scale=0.5) if self.by_hand and k < 2 else block(x, scale=0.5)
        return x.square().mean()


def built(layers: Any = (), by_hand: bool = False) -> Any:
    gradcore.manual_seed(0)
    return checkpoint_layers(Network(by_hand), layers)


def trained(network: Any) -> tuple[Any, Any]:
    """The gradients and the report of a step; nothing but the network should be live."""
    gradcore.manual_seed(1)
    x = gradcore.ones(128, 8)
    with gradcore.step() as step:
        network(x).backward()
    return [p.grad.numpy().copy() for p in network.parameters()], step.report


def test_layers_checkpointed_by_name_are_as_if_their_caller_did_so() -> None:
    expected, whole = trained(built())
    found, report = trained(built(["blocks.0", "blocks.1"]))
    _, same = trained(built(by_hand=True))
    assert all((a == b).all() for a, b in zip(expected, found, strict=True))
    assert report.peak.allocated == same.peak.allocated < whole.peak.allocated
    assert [replace(k, node=0, serial=0) for k in report.kept] == [replace(k, node=0, serial=0) for k in same.kept]
    layers = [f"blocks.{k}.{name}" for k in range(3) for name in ("wide", "narrow")]
    assert {*layers} < {*report.by_layer}


def test_all_else_of_a_checkpointed_layer_is_as_before() -> None:
    plain, named = built(), built(["blocks.0"])
    checkpoint_layers(named, ["blocks.0"])
    assert repr(named) == repr(plain) and [*named.state_dict()] == [*plain.state_dict()]
    layer = named.blocks[0]
    assert isinstance(layer, Block) and type(layer).__mro__[2] is Block
    named.eval()
    assert not layer.training
    with gradcore.no_grad():
        assert named(gradcore.ones(2, 8)).item() == plain.eval()(gradcore.ones(2, 8)).item()
    gc.disable()
    try:
        gone = ref(layer)
        del named, layer
        assert gone() is None
    finally:
        gc.enable()


def test_what_a_class_asks_of_its_subclasses_is_not_asked_here() -> None:
    made = []

    class Registered(nn.Linear):
        def __init_subclass__(cls, tag: str, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            made.append(tag)

    class Own(Registered, tag="own"):
        def twice(self, x: Any) -> Any:
            return 2 * x

    network = checkpoint_layers(nn.Sequential(Own(2, 2)), ["0"])
    assert made == ["own"] and Own._module_foreign and type(network[0])._module_foreign
    assert network(gradcore.ones(2, 2)).requires_grad


def test_classes_go_with_their_last_layer() -> None:
    def checkpointed() -> Any:
        class Own(nn.Linear):
            pass

        network = checkpoint_layers(nn.Sequential(Own(2, 2), Own(2, 2)), ["0", "1"])
        assert type(network[0]) is type(network[1])
        return ref(Own)

    gone = checkpointed()
    gc.collect()
    assert gone() is None


def test_a_copy_is_checkpointed_too() -> None:
    named = built(["blocks.0"])
    twin = copy.deepcopy(named)
    assert type(twin.blocks[0]) is type(named.blocks[0]) and type(twin.blocks[1]) is Block
    found, report = trained(named)
    del named
    again, same = trained(twin)
    assert all((a == b).all() for a, b in zip(found, again, strict=True))
    assert report.peak.allocated == same.peak.allocated + sum(round_up(p.nbytes) for p in twin.parameters())


def test_hooks_run_again_with_the_layer() -> None:
    network, called = built(["blocks.1"]), []
    network.blocks[1].register_forward_pre_hook(lambda module, args: called.append(type(module).__name__))
    trained(network)
    assert called == ["Block", "Block"]


@pytest.mark.parametrize(("name", "error", "words"), [
    ("blocks", ValueError, "'blocks' is a ModuleList, which is never called: name the layers in it"),
    ("lazy", ValueError, "'lazy' is a LazyLinear, which has no parameters yet: call it first"),
    ("blocks.7", AttributeError, "7"), ("last", AttributeError, "last")])
def test_names_of_no_layer_change_nothing(name: str, error: Any, words: str) -> None:
    network = built()
    network.lazy = nn.LazyLinear(3)
    with raises(error, words):
        checkpoint_layers(network, ["blocks.0", name])
    assert type(network.blocks[0]) is Block


def test_one_name_is_in_a_list_too() -> None:
    with raises(TypeError, "names must be a list of layers' names, but got the str 'first': write ['first']"):
        checkpoint_layers(built(), "first")
