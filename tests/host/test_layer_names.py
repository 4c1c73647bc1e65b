"""Layers are called by their paths in the largest module that they are part of, however they are called."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import gradcore
from gradcore import nn
from gradcore.events import Launch
from gradcore.utils.checkpoint import checkpoint_sequential


class AutoEncoder(nn.Module):
    """Has no forward: its user calls the parts."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
        self.dec = nn.Linear(4, 8)

    def loss(self, x: Any) -> Any:
        return (self.dec(self.enc(x)) - x).square().mean()


def launched(call: Callable[[], Any]) -> dict[str, set[str]]:
    """The layers in which each op ran."""
    with gradcore.step() as step:
        call()
    found: dict[str, set[str]] = {}
    for record in step.recording.records:
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
