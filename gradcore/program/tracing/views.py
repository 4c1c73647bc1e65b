"""Results that are views: of one another, of arguments, or of tensors from before the run.

The engine knows a view by its base, and the results of a replay have none. They get the bases that the results of the traced
run had, among the other results, the arguments, and captured tensors, so that a write is in the history of all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gradcore.engine.views import note_view, recorded_as
from gradcore.program.tracing.templates import Output, rebuilt


class View(NamedTuple):
    """A result that is a view: its position, its base, and whether gradients were recorded when the view was taken."""

    position: int
    base: Output
    recorded: bool


def views_among(outputs: list[Any], arguments: list[Any], made: frozenset[int]) -> tuple[list[View], list[str]]:
    """The results that are views of something that a replay has too; and the reasons why a replay is not possible.

    ``made`` has the serials of the storages that the traced run made.
    """
    places = {id(t): k for k, t in reversed([*enumerate(outputs)])}
    given = {id(t.storage): k for k, t in enumerate(arguments)}
    found: list[View] = []
    apart: dict[int, list[Any]] = {}
    for k, t in enumerate(outputs):
        if t.base is None:
            continue
        recorded = recorded_as(t)
        if id(t.storage) in given:
            # Of several arguments over its bytes, the one whose history it shares.
            related = (i for i, a in enumerate(arguments) if a is t.base or a.base is t.base)
            found.append(View(k, Output(argument=next(related, given[id(t.storage)])), recorded))
        elif t.storage.serial not in made:
            found.append(View(k, Output(value=t.base), recorded))
        elif id(t.base) in places:
            found.append(View(k, Output(index=places[id(t.base)]), recorded))
        else:
            apart.setdefault(id(t.storage), []).append(t)
    overlapping = [v for v in apart.values() if len(v) > 1 and any(t.edge is not None for t in v) and _overlap(v)]
    return found, [f"results that overlap ({', '.join(str(t.spec) for t in v)}) are views of a tensor that is not returned: "
                   "return that too, or clone() them" for v in overlapping]


def _overlap(views: list[Any]) -> bool:
    """Do any two of these views of one storage have an element in common?"""
    seen = np.zeros(views[0].storage.nbytes // views[0].spec.dtype.itemsize, np.bool_)
    for t in views:
        shown = np.lib.stride_tricks.as_strided(seen[t.spec.offset:], t.spec.shape, t.spec.strides)
        if shown.any():
            return True
        shown[...] = True
    return False


def relate(views: list[View], outputs: list[Any], arguments: list[Any]) -> None:
    """Make the results of a replay views of the same bases as in the traced run."""
    for position, place, recorded in views:
        base, result = rebuilt(place, outputs, arguments), outputs[position]
        result.base = base if base.base is None else base.base
        note_view(result, recorded)
