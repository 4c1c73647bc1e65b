"""Steps of recurrent layers, and a layer's run along a sequence.

What the input gives to all gates of all steps is one matrix product; the rest of a layer's run is one op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradcore.functional import select
from gradcore.ops import activation, linalg, movement, recurrent

Tensor = Any
State = tuple[Tensor, ...]
#: (state, what the input gives, weight_hh, bias_hh) -> the next state, whose first tensor is the step's output.
Step = Callable[[State, Tensor, Tensor, Any], State]


def _parts(x: Tensor, count: int) -> Sequence[Tensor]:
    """Equal parts of the last dimension; views."""
    width = x.spec.shape[-1] // count
    parts: Sequence[Tensor] = movement.split(x, sizes=(width,) * count, dim=x.spec.ndim - 1)
    return parts


def rnn_tanh(state: State, given: Tensor, weight: Tensor, bias: Any) -> State:
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh). Elman, Finding Structure in Time, 1990."""
    return (activation.tanh(given + linalg.linear(state[0], weight, bias)),)


def rnn_relu(state: State, given: Tensor, weight: Tensor, bias: Any) -> State:
    """h' = relu(W_ih x + b_ih + W_hh h + b_hh)."""
    return (activation.relu(given + linalg.linear(state[0], weight, bias)),)


def lstm(state: State, given: Tensor, weight: Tensor, bias: Any) -> State:
    """Gates i, f, g, o; c' = f c + i g, h' = o tanh(c'). Hochreiter and Schmidhuber, 1997; Gers et al., 2000."""
    h, c = state
    i, f, g, o = _parts(given + linalg.linear(h, weight, bias), 4)
    c = activation.sigmoid(f) * c + activation.sigmoid(i) * activation.tanh(g)
    return activation.sigmoid(o) * activation.tanh(c), c


def gru(state: State, given: Tensor, weight: Tensor, bias: Any) -> State:
    """Gates r, z; n = tanh(x_n + r h_n), h' = n + z (h - n). Cho et al., arXiv:1406.1078."""
    h = state[0]
    from_input, from_state = _parts(given, 3), _parts(linalg.linear(h, weight, bias), 3)
    r, z = (activation.sigmoid(a + b) for a, b in zip(from_input[:2], from_state[:2], strict=True))
    n = activation.tanh(from_input[2] + r * from_state[2])
    return (n + z * (h - n),)


#: Gates, tensors of a state, and the step, by the layer's name.
STEPS: dict[str, tuple[int, int, Step]] = {
    "RNN_TANH": (1, 1, rnn_tanh), "RNN_RELU": (1, 1, rnn_relu), "LSTM": (4, 2, lstm), "GRU": (3, 1, gru)}


def run(mode: str, input: Tensor, state: State, weights: Sequence[Any], backwards: bool) -> tuple[Tensor, State]:
    """One direction of one layer along [L, N, in], two launches in all: outputs [L, N, H] and the last state.

    ``mode`` is the layer's name. ``weights`` are weight_ih, weight_hh, bias_ih and bias_hh, the biases None for none;
    ``backwards`` goes from the end. Kept are the outputs and, of gated layers, what their gates gave: nothing can be
    differentiated twice.
    """
    weight_ih, weight_hh, bias_ih, bias_hh = weights
    if mode == "GRU":
        out = recurrent.gru(linalg.linear(input, weight_ih, bias_ih), weight_hh, bias_hh, *state, backwards=backwards)
    else:
        given = linalg.linear(input, weight_ih, bias_ih if bias_hh is None else bias_ih + bias_hh)
        if mode == "LSTM":
            out, last = recurrent.lstm(given, weight_hh, *state, backwards=backwards)
            return out, (_end(out, backwards), last)
        out = recurrent.rnn(given, weight_hh, *state, relu=mode == "RNN_RELU", backwards=backwards)
    return out, (_end(out, backwards),)


def _end(out: Tensor, backwards: bool) -> Tensor:
    return select(out, 0, 0 if backwards else -1)
