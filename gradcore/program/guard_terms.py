"""Compiles the guards of a program into one Python expression, since they run at every call and a loop would cost more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gradcore.engine.node import Leaf
from gradcore.events import WRITTEN


def all_hold(guards: Iterable[Any], presence: dict[Leaf, bool]) -> Callable[[], bool]:
    """A function that says whether all guards hold and every leaf in ``presence`` has a gradient, or none, as it says there.

    A term that several guards state is asked once.
    """
    names: dict[str, Any] = {}

    def name(x: Any) -> str:
        found = f"x{id(x)}"
        names[found] = x
        return found

    terms = dict.fromkeys(term for guard in guards for term in guard.terms(name))
    terms |= dict.fromkeys(f"({name(leaf)}.grad is not None) is {wanted}" for leaf, wanted in presence.items())
    # A value that cannot be read any more has changed.
    source = f"def check():\n try: return {' and '.join(terms) or 'True'}\n except Exception: return False"
    exec(compile(source, WRITTEN, "exec"), names)
    # Out of its own globals, so that there is no reference cycle and reference counts free it.
    check: Callable[[], bool] = names.pop("check")
    return check
