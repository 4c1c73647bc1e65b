"""Steps of recurrent layers, and a layer's run along a sequence.

What the input gives to all gates of all steps is one matrix product; the rest of a layer's run is one op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradcore.functional import cat, narrow, reshape, select
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
    ``backwards`` goes from the end. Kept are the outputs and, of gated layers, what their gates gave. Who differentiates the
    gradient pays for it then, with up to ninety launches a step.
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


def run_packed(mode: str, data: Tensor, runs: Sequence[tuple[int, int]], state: State, weights: Sequence[Any],
               backwards: bool) -> tuple[Tensor, State]:
    """:func:`run` along packed sequences: outputs [steps in all, H] and each sequence's last state.

    ``runs`` are numbers of steps, and of the sequences that have these steps, which shrink: one :func:`run` each.
    """
    starts = [0]
    for steps, n in runs:
        starts.append(starts[-1] + steps * n)
    outputs: list[Any] = [None] * len(runs)
    ended: list[State] = []
    # From the end, sequences join as they begin; from the start, they leave as they end.
    now = tuple(narrow(s, 0, 0, runs[-1 if backwards else 0][1]) for s in state)
    for k in range(len(runs))[::-1 if backwards else 1]:
        steps, n = runs[k]
        had = now[0].spec.shape[0]
        if n > had:
            now = tuple(cat([s, narrow(first, 0, had, n - had)]) for s, first in zip(now, state, strict=True))
        elif n < had:
            ended.append(tuple(narrow(s, 0, n, had - n) for s in now))
            now = tuple(narrow(s, 0, 0, n) for s in now)
        part = reshape(narrow(data, 0, starts[k], steps * n), (steps, n, data.spec.shape[1]))
        out, now = run(mode, part, now, weights, backwards)
        outputs[k] = reshape(out, (steps * n, out.spec.shape[2]))
    last = tuple(cat(list(parts)) for parts in zip(now, *reversed(ended), strict=True)) if ended else now
    return cat(outputs), last


def _end(out: Tensor, backwards: bool) -> Tensor:
    return select(out, 0, 0 if backwards else -1)
