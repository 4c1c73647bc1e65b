"""What must hold for a replay as one expression: it is asked at every call, where a loop would cost more than the guards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gradcore.engine.node import Leaf
from gradcore.program.guards import ModuleGuard, hooks_on


def all_hold(guards: Iterable[Any], presence: dict[Leaf, bool]) -> Callable[[], bool]:
    """Do all guards hold, and do leaves have a gradient where they did?

    Modules without hooks, the many, are compared in place, each attribute once however many modules and guards name it.
    """
    names: dict[str, Any] = {}
    terms: dict[str, None] = {}

    def name(x: Any) -> str:
        found = f"x{id(x)}"
        names[found] = x
        return found

    for guard in guards:
        if type(guard) is not ModuleGuard or guard.forward is not None:
            terms[f"{name(guard)}.holds()"] = None
            continue
        own = name(guard.module.__dict__)
        for key, value, *_ in (("training", guard.training), ("forward", None), *guard.tensors, *guard.others):
            terms[f"{own}.get({key!r}) is {name(value)}"] = None
        for part, count in guard.counts:
            terms[f"len({own}[{part!r}]) == {count}"] = None
        for leaf, hooks, seen in guard.leaves:
            terms[f"{name(leaf)}.hooks is {name(hooks)}"] = None
            if hooks is not None:
                terms[f"{name(hooks_on)}({name(leaf)}) == {seen!r}"] = None
        for _, tensor, storage, edge in guard.tensors:
            terms[f"{name(tensor)}.storage is {name(storage)}"] = None
            terms[f"{name(tensor)}.edge is {name(edge)}"] = None
    for leaf, wanted in presence.items():
        terms[f"({name(leaf)}.grad is not None) is {wanted}"] = None
    check: Callable[[], bool] = eval(f"lambda: {' and '.join(terms) or 'True'}", names)
    return check
