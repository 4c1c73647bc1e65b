"""The plain data that a traced run finds, to be compared with what is there when the run has ended."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from types import FrameType
from typing import Any

import numpy as np

from gradcore.engine.value import PLAIN, Value
from gradcore.program.guarding.guards import Found, Guard, Never, same_mark
from gradcore.program.guarding.reach import Reach
from gradcore.program.guarding.values import is_plain, mark_of


class Began:
    """By key of a place: a guard with the plain data there when the code that can reach it was first entered.

    ``new`` contains what the run has made.
    """

    def __init__(self, new: Container[Any]) -> None:
        self._new = new
        self._guards: dict[tuple[Any, ...], Guard] = {}

    def note(self, found: Found) -> None:
        """Keep guards with the present values of plain data. Guards on tensors would add references to them."""
        for guard, key in found:
            if key not in self and isinstance(guard, Guard) and (isinstance(guard.seen, np.ndarray) or is_plain(guard.seen)):
                if guard.same is same_mark:
                    guard.seen = mark_of(guard.look())
                self._guards[key] = guard

    def note_value(self, reach: Reach, name: str, x: Any, key: tuple[Any, ...]) -> None:
        """Keep guards for the data that can be reached from a value."""
        self.note(reach.of_value(name, lambda: x, x, key))

    def note_variables(self, frames: list[FrameType], reach: Reach) -> None:
        """Keep guards for the data that can be reached from the variables of these frames, but for what is new."""
        for frame in frames:
            found = [reach.of_code(frame.f_code, frame.f_globals)]
            for name, x in frame.f_locals.items():
                if not isinstance(x, Iterator) and self.is_older(x):
                    found.append(reach.of_value(f"the variable {name}", lambda x=x: x, x,  # type: ignore[misc]
                                                ("variable", id(x))))
            self.note(one for guards in found for one in guards if not isinstance(one[0], Never))

    def is_older(self, x: Any) -> bool:
        """Is it an object from before the run? What the run has made must be freed with its tensors."""
        return type(x) not in PLAIN and not isinstance(x, Value) and x not in self._new

    def __contains__(self, key: object) -> bool:
        return key in self._guards

    def changes(self, numbers: bool, replayed: Callable[[tuple[Any, ...]], bool]) -> Iterator[str]:
        """Reasons against a replay: what has changed since, but for the places that a replay changes, too, as ``replayed`` says
        of a key. With ``numbers`` the run made tensors of Python numbers."""
        for key, guard in self._guards.items():
            if not (guard.holds() or replayed(key)) and (numbers or not (isinstance(guard, Never) and guard.numbers)):
                yield guard.refusal()
