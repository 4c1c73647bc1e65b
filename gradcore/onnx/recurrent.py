"""Converters to ONNX of recurrent layers.

Their ops take the input's product with its weight, so ONNX's weight of the input only puts the gates into ONNX's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.onnx.graph import Graph, Value
from gradcore.onnx.table import Refused, converts
from gradcore.spec import TensorSpec


def _layer(g: Graph, kind: str, given: Value, weight: Value, bias: Value | None, states: Sequence[Value], gates: Sequence[int],
           backwards: bool, **attrs: Any) -> list[Value]:
    """A layer of one direction: its outputs [L, N, H], and its last states [N, H]. ``gates`` are ours in ONNX's order."""
    length, batch, width = given.shape
    size = weight.shape[1]
    if not length or not batch:
        raise Refused("onnxruntime crashes at a recurrent layer without steps or samples")
    rows = np.concatenate([np.arange(size) + k * size for k in gates])
    turned = g.node("Gather", weight, g.constant(rows), axis=0, shape=(width, size))
    biases = None
    if bias is not None:
        biases = g.node("Concat", g.constant(np.zeros(width, bias.dtype)), g.node("Gather", bias, g.constant(rows), axis=0),
                        shape=(2 * width,), axis=0)
    # States of zeros are ONNX's default, whatever the size of the batch.
    starts = [None if g.is_zeros(state) else g.reshape(state, (1, batch, size)) for state in states]
    inputs = [given, g.constant(np.eye(width, dtype=given.dtype)[rows][None]), g.reshape(turned, (1, width, size)),
              None if biases is None else g.reshape(biases, (1, 2 * width)), None, *starts]
    results = [((length, 1, batch, size), given.dtype), *(((1, batch, size), given.dtype) for _ in states)]
    out, *last = g.several(kind, inputs, results, hidden_size=size, direction="reverse" if backwards else "forward", **attrs)
    return [g.reshape(out, (length, batch, size)), *(g.reshape(state, (batch, size)) for state in last)]


@converts("lstm")
def _lstm(g: Graph, out: TensorSpec, given: Value, weight: Value, h0: Value, c0: Value, *, backwards: bool) -> list[Value]:
    made, _, last = _layer(g, "LSTM", given, weight, None, (h0, c0), (0, 3, 1, 2), backwards)
    return [made, last]


@converts("gru")
def _gru(g: Graph, out: TensorSpec, given: Value, weight: Value, bias: Value | None, h0: Value, *, backwards: bool) -> Value:
    return _layer(g, "GRU", given, weight, bias, (h0,), (1, 0, 2), backwards, linear_before_reset=1)[0]


@converts("rnn")
def _rnn(g: Graph, out: TensorSpec, given: Value, weight: Value, h0: Value, *, relu: bool, backwards: bool) -> Value:
    return _layer(g, "RNN", given, weight, None, (h0,), (0,), backwards, activations=["Relu" if relu else "Tanh"])[0]
