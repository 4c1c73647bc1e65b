"""Steps of recurrent layers, and the run of a layer along a sequence.

One matrix product computes the input's part of all gates of all steps; the rest of a layer's run is one op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradcore.functional import cat, narrow, reshape, select, zeros_like
from gradcore.ops import activation, linalg, movement, pointwise, recurrent

Tensor = Any
State = tuple[Tensor, ...]
#: (state, W_ih x + b_ih, weight_hh, bias_hh) -> the next state, whose first tensor is the step's output.
Step = Callable[[State, Tensor, Tensor, Any], State]


def _parts(x: Tensor, count: int) -> Sequence[Tensor]:
    """Views of ``count`` equal parts of the last dimension."""
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
    """Gates i, f, g, o; c' = f * c + i * g, h' = o * tanh(c'). Hochreiter and Schmidhuber, 1997; Gers et al., 2000."""
    h, c = state
    i, f, g, o = _parts(given + linalg.linear(h, weight, bias), 4)
    c = activation.sigmoid(f) * c + activation.sigmoid(i) * activation.tanh(g)
    return activation.sigmoid(o) * activation.tanh(c), c


def gru(state: State, given: Tensor, weight: Tensor, bias: Any) -> State:
    """Gates r, z; n = tanh(x_n + r * h_n), h' = n + z * (h - n). Cho et al., arXiv:1406.1078."""
    h = state[0]
    from_input, from_state = _parts(given, 3), _parts(linalg.linear(h, weight, bias), 3)
    r, z = (activation.sigmoid(a + b) for a, b in zip(from_input[:2], from_state[:2], strict=True))
    n = activation.tanh(from_input[2] + r * from_state[2])
    # lerp keeps what other ops keep, too, but takes one dtype; in autocast's regions the state has another.
    return (pointwise.lerp(n, h, z) if n.spec.dtype == h.spec.dtype else n + z * (h - n),)


#: For each kind of layer: the number of gates, the number of tensors in a state, and the step.
STEPS: dict[str, tuple[int, int, Step]] = {
    "RNN_TANH": (1, 1, rnn_tanh), "RNN_RELU": (1, 1, rnn_relu), "LSTM": (4, 2, lstm), "GRU": (3, 1, gru)}


def run(mode: str, input: Tensor, state: State, weights: Sequence[Any], backwards: bool) -> tuple[Tensor, State]:
    """One direction of one layer along ``input`` [L, N, in]: the outputs [L, N, H] and the last state, in two launches.

    ``mode`` is a key of :data:`STEPS`. ``weights`` are weight_ih, weight_hh, bias_ih and bias_hh, where a bias may be None, and
    weight_hr of an LSTM with projections, whose outputs are [L, N, P]. ``backwards`` runs from the end. Backward keeps the
    outputs and, for gated layers, the gates' values. Second derivatives are slower: they take up to ninety launches per step.
    """
    return _along(mode, _given(mode, input, weights), state, weights, backwards)


def _given(mode: str, input: Tensor, weights: Sequence[Any]) -> Tensor:
    """What the input gives to the gates of all steps, with the biases that can be added before the state's part."""
    weight_ih, _, bias_ih, bias_hh = weights[:4]
    return linalg.linear(input, weight_ih, bias_ih if mode == "GRU" or bias_hh is None else bias_ih + bias_hh)


def _along(mode: str, given: Tensor, state: State, weights: Sequence[Any], backwards: bool) -> tuple[Tensor, State]:
    _, weight, _, bias_hh, *projection = weights
    if projection:
        return _projected(given, state, weight, projection[0], backwards)
    if mode == "LSTM":
        out, last = recurrent.lstm(given, weight, *state, backwards=backwards)
        return out, (_end(out, backwards), last)
    if mode == "GRU":
        out = recurrent.gru(given, weight, bias_hh, *state, backwards=backwards)
    else:
        out = recurrent.rnn(given, weight, *state, relu=mode == "RNN_RELU", backwards=backwards)
    return out, (_end(out, backwards),)


def _projected(given: Tensor, state: State, weight: Tensor, projection: Tensor, backwards: bool) -> tuple[Tensor, State]:
    """An LSTM whose outputs are projected before the next step reads them. Sak et al., arXiv:1402.1128.

    The product of both weights takes a step's output to the gates of the next as it is, so that all steps but the first, whose
    state is a projection, are one launch.
    """
    h, c = state
    steps = given.spec.shape[0]
    whole = linalg.matmul(weight, projection)
    first, *rest = movement.split(given, sizes=(steps,) if steps == 1 else (1, steps - 1)[::-1 if backwards else 1],
                                  dim=0)[::-1 if backwards else 1]
    outputs, wide = [], zeros_like(c)
    for part in (first + linalg.linear(h, weight, None), *rest):
        out, c = recurrent.lstm(part, whole, wide, c, backwards=backwards)
        wide = _end(out, backwards)
        outputs.append(linalg.linear(out, projection, None))
    out = outputs[0] if steps == 1 else cat(outputs[::-1] if backwards else outputs)
    return out, (_end(out, backwards), c)


def run_packed(mode: str, data: Tensor, runs: Sequence[tuple[int, int]], state: State, weights: Sequence[Any],
               backwards: bool) -> tuple[Tensor, State]:
    """:func:`run` along packed sequences: outputs [total steps, H] and each sequence's last state.

    ``runs`` are pairs (number of steps, number of sequences that have these steps), with fewer and fewer sequences; each pair
    takes one launch, after one matrix product for all.
    """
    parts = movement.split(_given(mode, data, weights), sizes=tuple(steps * n for steps, n in runs), dim=0)
    outputs: list[Any] = [None] * len(runs)
    ended: list[State] = []
    # Going backwards, sequences join where they end; going forwards, they leave there.
    now = tuple(narrow(s, 0, 0, runs[-1 if backwards else 0][1]) for s in state)
    for k in range(len(runs))[::-1 if backwards else 1]:
        steps, n = runs[k]
        had = now[0].spec.shape[0]
        if n > had:
            now = tuple(cat([s, narrow(first, 0, had, n - had)]) for s, first in zip(now, state, strict=True))
        elif n < had:
            kept, gone = zip(*(movement.split(s, sizes=(n, had - n), dim=0) for s in now), strict=True)
            now = kept
            ended.append(gone)
        given = reshape(parts[k], (steps, n, parts[k].spec.shape[1]))
        out, now = _along(mode, given, now, weights, backwards)
        outputs[k] = reshape(out, (steps * n, out.spec.shape[2]))
    last = tuple(cat(list(states)) for states in zip(now, *reversed(ended), strict=True)) if ended else now
    return cat(outputs), last


def _end(out: Tensor, backwards: bool) -> Tensor:
    return select(out, 0, 0 if backwards else -1)
