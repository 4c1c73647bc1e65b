"""Attributes of a program's modules: what gradcore keeps in a module has names that no program uses."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import gradcore

#: Names that programs have given to what they keep in their modules, and to their methods.
NAMES = "_hooks _tree _parents _places _entries _register _put _named _shown _at _whole _run_forward _foreign".split()


@pytest.mark.oracle
def test_what_modules_have_besides_pytorchs_begins_in_one_way(torch: Any) -> None:
    found = {*vars(gradcore.nn.Module())} - {*vars(torch.nn.Module())}
    for name in dir(torch.nn):
        theirs, kind = getattr(torch.nn, name), getattr(gradcore.nn, name, None)
        if isinstance(theirs, type) and issubclass(theirs, torch.nn.Module) and kind is not None:
            found |= {*dir(kind)} - {*dir(theirs)}
    # PyTorch has these, too, in what it makes.
    in_instances = {"_backward_hooks", "_backward_pre_hooks", "_buffers", "_forward_hooks", "_forward_pre_hooks", "_modules",
                    "_flat_weights", "_flat_weights_names", "_parameters", "mode", "transposed"}
    assert not [name for name in found - in_instances if not name.startswith(("_module_", "__"))]


def walk(t: Any, name: str, method: bool) -> list[Any]:
    """What a module with an attribute or a method of this name gives."""
    class Net(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if not method:
                setattr(self, name, [])
            self.inner = t.nn.Sequential(t.nn.Linear(2, 2), t.nn.ReLU())
            if not method:
                getattr(self, name).append(self.inner[1].register_forward_hook(lambda m, args, out: out + 1))

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    if method:
        setattr(Net, name, lambda self, *args: "mine")
    net, x = Net(), t.ones(1, 2, requires_grad=True)
    for p in net.parameters():
        t.nn.init.constant_(p, 0.5)
    whole = t.nn.Sequential(net).double().float()
    handle = net.register_full_backward_hook(lambda *args: None)
    whole(x).sum().backward()
    handle.remove()
    whole.load_state_dict(whole.state_dict())
    again = copy.deepcopy(whole)
    net.register_buffer("more", t.ones(1))
    kept = getattr(net, name)() if method else len(getattr(again[0], name))
    return [whole(x).tolist(), again.eval()(x).tolist(), kept, list(whole.state_dict()), repr(whole),
            [n for n, _ in whole.named_modules()], net.inner[0].weight.grad.tolist()]


LAYERS: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "Sequential": ((), (2, 3)), "LSTM": ((3, 2), (4, 3)), "LSTMCell": ((3, 2), (4, 3)), "Conv1d": ((2, 2, 1), (1, 2, 3)),
    "BatchNorm1d": ((3,), (2, 3)), "MaxPool1d": ((2,), (1, 2, 4)), "Dropout": ((0.0,), (2, 3)), "ZeroPad1d": ((1,), (1, 2, 3)),
    "TransformerEncoderLayer": ((4, 2, 8, 0.0), (3, 1, 4))}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", "_name _of _run _step _tensors _start _dims _mode _part _make pool drop convolve".split())
def test_nor_do_those_of_its_layers(layer: str, name: str) -> None:
    made, shape = LAYERS[layer]
    kind = getattr(gradcore.nn, layer)
    mine, plain, x = type("Mine", (kind,), {name: lambda self: "mine"})(*made), kind(*made), gradcore.rand(shape)
    mine.load_state_dict(plain.state_dict())
    assert str(mine(x)) == str(plain(x)) and getattr(mine, name)() == "mine"
    setattr(mine, name, [name])
    assert str(mine(x)) == str(plain(x)) and getattr(mine, name) == [name]


@pytest.mark.oracle
@pytest.mark.parametrize("method", [False, True], ids=["attribute", "method"])
@pytest.mark.parametrize("name", NAMES)
def test_a_programs_own_names_change_nothing(name: str, method: bool, torch: Any) -> None:
    assert walk(gradcore, name, method) == walk(torch, name, method)
