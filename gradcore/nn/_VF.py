"""``torch._VF``: whole recurrent layers as functions, which layers derived from PyTorch's call with ``_flat_weights``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.functional import transpose
from gradcore.nn.layered import apart, through
from gradcore.nn.utils.rnn import PackedSequence

Tensor = Any


def _run(mode: str, states: tuple[Tensor, ...], x: Tensor, batch_sizes: Tensor | None, params: Sequence[Tensor],
         has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
         batch_first: bool = False) -> tuple[Tensor, ...]:
    directions = 1 + bidirectional
    each = len(params) // (num_layers * directions)
    weights = [params[k:k + each] for k in range(0, len(params), each)]
    runs = None if batch_sizes is None else PackedSequence(x, batch_sizes).runs()
    x = transpose(x, 0, 1) if batch_first else x
    out, last = through(mode, x, runs, apart(states), weights, has_biases, directions, dropout if train else 0.0)
    return (transpose(out, 0, 1) if batch_first else out, *last)


def _layer(mode: str, *args: Any) -> tuple[Tensor, ...]:
    """Of a batch: input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first; of packed sequences:
    data, batch_sizes, hx, params and the same but for the last."""
    packed = not isinstance(args[3], bool)
    x, batch_sizes, hx, *others = args if packed else (args[0], None, *args[1:])
    return _run(mode, tuple(hx) if mode == "LSTM" else (hx,), x, batch_sizes, *others)


def lstm(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs, h and c of :class:`gradcore.nn.LSTM`."""
    out, h, c = _layer("LSTM", *args)
    return out, h, c


def gru(*args: Any) -> tuple[Tensor, Tensor]:
    """The outputs and h of :class:`gradcore.nn.GRU`."""
    out, h = _layer("GRU", *args)
    return out, h


def rnn_tanh(*args: Any) -> tuple[Tensor, Tensor]:
    """The outputs and h of :class:`gradcore.nn.RNN`."""
    out, h = _layer("RNN_TANH", *args)
    return out, h


def rnn_relu(*args: Any) -> tuple[Tensor, Tensor]:
    """The outputs and h of :class:`gradcore.nn.RNN` with relu."""
    out, h = _layer("RNN_RELU", *args)
    return out, h
