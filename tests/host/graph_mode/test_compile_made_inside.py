"""Objects that a compiled function makes itself, and gives to its helpers, are new in each run: they are no obstacle."""

from __future__ import annotations

import copy
import gc
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn

Pair = namedtuple("Pair", "logits inputs")


class Output(OrderedDict[str, Any]):
    """As transformers return, with items as attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


@dataclass
class Data:
    logits: Any


def total(out: Any) -> Any:
    return out.logits.sum()


#: By what is made: a function of an input, a layer, labels and weights.
MADE: dict[str, Any] = {
    "a named tuple": lambda x, layer, y, w: total(Pair(layer(x), x)),
    "a namespace": lambda x, layer, y, w: total(SimpleNamespace(logits=layer(x))),
    "an ordered dict": lambda x, layer, y, w: total(Output(logits=layer(x))),
    "a dataclass": lambda x, layer, y, w: total(Data(layer(x))),
    "a module with buffers": lambda x, layer, y, w: nn.BatchNorm1d(4, affine=False)(x) * 2,
    "a module in another mode": lambda x, layer, y, w: nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Dropout()).eval()(x),
    "a loss with weights": lambda x, layer, y, w: nn.CrossEntropyLoss(weight=w)(layer(x), y),
    "a range as an index": lambda x, layer, y, w: layer(x)[range(5), y].sum()}


@pytest.mark.parametrize("what", MADE)
def test_what_is_made_inside_is_made_anew(what: str) -> None:
    layer, y, w = nn.Linear(4, 3), gradcore.zeros(5, dtype=gradcore.int64), gradcore.ones(3)

    def function(x: Any) -> Any:
        return MADE[what](x, layer, y, w)

    compiled = gradcore.compile(function)
    for k in range(4):
        x = gradcore.tensor(np.random.default_rng(k).normal(size=(5, 4)).astype(np.float32))
        assert compiled(x).tolist() == function(x).tolist()
    assert len(compiled.programs) == len(compiled.traces) == 1


def test_what_was_there_before_is_still_guarded() -> None:
    holder = SimpleNamespace(options=SimpleNamespace(scale=2.0), pair=Pair(3.0, None), output=Output(scale=4.0))

    def scaled(x: Any, options: Any, pair: Any, output: Any) -> Any:
        return x * options.scale * pair.logits * output.scale

    compiled = gradcore.compile(lambda x: scaled(x, holder.options, holder.pair, holder.output))
    for k in range(12):
        found = compiled(gradcore.ones(1)).item()
        assert found == holder.options.scale * holder.pair.logits * holder.output.scale
        if k == 2:
            holder.options.scale = 5.0
        elif k == 5:
            holder.pair = Pair(7.0, None)
        elif k == 8:
            holder.output["scale"] = 11.0
    assert len(compiled.traces) == 4


def collected(x: Any) -> Any:
    """Return an argument when the collector has moved all that exists to its oldest generation."""
    gc.collect()
    keep = [[k] for k in range(3000)]
    return x if keep else None


#: By what is made: a function of an input that makes it before the collector runs, and gives it to a helper then.
MADE_BEFORE: dict[str, Any] = {
    "a named tuple": lambda x: total(collected(Pair(x * 2, None))),
    "a namespace": lambda x: total(collected(SimpleNamespace(logits=x * 2))),
    "an ordered dict": lambda x: total(collected(Output(logits=x * 2))),
    "a dataclass": lambda x: total(collected(Data(x * 2))),
    "a copy": lambda x: total(collected(copy.copy(Data(x * 2)))),
    "a replaced tuple": lambda x: total(collected(Pair(x, x)._replace(logits=x * 2))),
    "a tuple without tensors": lambda x: x.sum() * total(collected(Pair(np.ones(2), 2.0))) / 2 * 2}


@pytest.mark.parametrize("what", MADE_BEFORE)
def test_a_collection_makes_nothing_old(what: str) -> None:
    compiled = gradcore.compile(lambda x: MADE_BEFORE[what](x))
    callbacks = [*gc.callbacks]
    for k in range(4):
        assert compiled(gradcore.full((3,), float(k))).item() == k * 6
    assert len(compiled.programs) == len(compiled.traces) == 1 and gc.callbacks == callbacks


class Decoder(nn.Module):
    """A deep model whose layers all read what the encoder has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(100)])

    def forward(self, x: Any) -> Any:
        memory = Pair(x * 2, 0.5)
        for layer in self.layers:
            x = self.one(layer, x, memory)
        return x

    def one(self, layer: Any, x: Any, memory: Any) -> Any:
        return layer(x) + memory.logits * memory.inputs


def test_a_deep_model_whose_layers_read_a_named_tuple_is_replayed() -> None:
    compiled, threshold = gradcore.compile(Decoder()), gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    try:
        for _ in range(3):
            compiled(gradcore.ones(2, 4))
    finally:
        gc.set_threshold(*threshold)
    assert len(compiled.traces) == 1


def test_attributes_of_a_copy_may_be_set_by_name() -> None:
    config = SimpleNamespace(encoder_scale=2.0, encoder_bias=1.0)

    def settings(of: Any) -> Any:
        for key in [*vars(of)]:
            setattr(of, key.removeprefix("encoder_"), getattr(of, key))
            delattr(of, key)
        return of

    f = gradcore.compile(lambda x: x * (found := settings(copy.copy(config))).scale + found.bias)
    assert [f(gradcore.ones(1)).item() for _ in range(3)] == [3.0] * 3 and len(f.programs) == 1, f.explain()
    config.encoder_scale = 4.0
    assert f(gradcore.ones(1)).item() == 5.0
    g = gradcore.compile(lambda x: x * settings(config).scale)
    assert g(gradcore.ones(1)).item() == 4.0 and "calls setattr(), which a replay would not do" in g.traces[0]
