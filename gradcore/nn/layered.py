"""Recurrent layers in a row, of weights that are given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradcore.functional import cat, split, squeeze, stack
from gradcore.functional.recurrent import State, run, run_packed
from gradcore.nn import functional as F

Tensor = Any


def apart(states: State) -> list[State]:
    """The state of each layer and direction, of tensors [layers * directions, N, H]."""
    columns = [[squeeze(part, 0) for part in split(h, 1, 0)] for h in states]
    return list(zip(*columns, strict=True))


def through(mode: str, x: Tensor, runs: Sequence[tuple[int, int]] | None, states: Sequence[State],
            weights: Iterable[Sequence[Any]], bias: bool, directions: int, drop: float) -> tuple[Tensor, State]:
    """Run layers in a row along [L, N, in], or along packed sequences [total steps, in] with their ``runs``.

    There are a state and weights for each direction of each layer. ``drop`` is the probability of dropping an element between
    layers. Returns the last layer's outputs, and the last states [layers * directions, N, H].
    """
    ends: list[State] = []
    outputs: list[Any] = []
    for k, (state, given) in enumerate(zip(states, weights, strict=True)):
        backwards = bool(k % directions)
        if k and not backwards:
            x = outputs[0] if directions == 1 else cat(outputs, -1)
            outputs = []
            if drop:
                x = F.dropout(x, drop)
        own = [*given] if bias else [*given[:2], None, None, *given[2:]]
        out, end = run(mode, x, state, own, backwards) if runs is None else run_packed(mode, x, runs, state, own, backwards)
        outputs.append(out)
        ends.append(end)
    x = outputs[0] if directions == 1 else cat(outputs, -1)
    return x, tuple(stack(list(parts)) for parts in zip(*ends, strict=True))
