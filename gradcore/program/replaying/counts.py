"""The numbers of optimizers in replays: what the updates of a run take, and the counts that they leave in the state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradcore.program.tracing.trace import Trace

#: The state of an optimizer, the new numbers of one update, and the parameters whose numbers they become.
Count = tuple[Any, dict[str, Any], list[Any]]


class Counts:
    """Computes the numbers of each update in a trace from the present state of its optimizer."""

    def __init__(self, trace: Trace) -> None:
        #: By update: what computes its operands, and what has its counts, without the optimizer, which a program does not keep.
        self._updates = [(type(o), o.state, group, params) for optimizer, group, params in trace.updates for o in [optimizer()]]
        whose = [(id(state), id(params[0])) for _, state, _, params in self._updates]
        #: By update: the last earlier update of the same parameters by the same optimizer in the same run, whose counts it
        #: continues from; or None.
        self._before = [next((j for j in range(k - 1, -1, -1) if whose[j] == own), None) for k, own in enumerate(whose)]

    def brought(self, numbers: list[list[tuple[Any, Any, int]]]) -> list[Count]:
        """Put the operands of the next run into their places, and return what :func:`put` takes when it has run."""
        found: list[Count] = []
        for places, before, (kind, state, group, params) in zip(numbers, self._before, self._updates, strict=True):
            count = {} if not kind._optim_numbers else kind._optim_advanced(
                state[params[0]] if before is None else found[before][1])
            operands = kind._optim_operands(group, count)
            found.append((state, count, params))
            for args, at, position in places:
                args[at] = operands[position]
        return found


def put(counts: Iterable[Count]) -> None:
    """Put the new numbers of updates that have run into the state of their parameters."""
    for state, count, params in counts:
        if count:
            for p in params:
                state[p].update(count)
