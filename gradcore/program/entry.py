"""What the cache of a compiled function holds: a program with the guards for it, and the shape of its result."""

from __future__ import annotations

from typing import Any

from gradcore.program.differentiable import Differentiable
from gradcore.program.guard_terms import all_hold
from gradcore.program.replay import Replay
from gradcore.program.shared_results import View


class Entry:
    """A program in the cache: its replay, the guards that must hold for it, and the template of its result."""

    def __init__(self, replay: Replay | Differentiable, guards: list[Any], results: Any, kept: list[Any],
                 views: list[View], offsets: list[int] | None) -> None:
        self.replay = replay
        self.guards = guards
        #: The function's result, with :class:`~gradcore.program.arguments.Output` in the place of tensors.
        self.results = results
        #: Arguments that the key identifies by id, held so that no other object gets the same id.
        self.kept = kept
        self.views = views
        #: Where in their storages the arguments must begin, if the function looked at that; otherwise anywhere.
        self.offsets = offsets
        self.holds = all_hold(guards, replay.trace.presence)

    def fits(self, tensors: list[Any]) -> bool:
        """Does a call with these arguments, whose key is the entry's, do what was traced?"""
        return self.holds() and (self.offsets is None or self.offsets == [t.spec.offset for t in tensors])

    def why_not(self) -> str:
        for guard in self.guards:
            if not all_hold([guard], {})():
                return str(guard.why_not())
        for leaf, wanted in self.replay.trace.presence.items():
            if (leaf.grad is not None) is not wanted:
                return (f"the gradient of {leaf.name or 'a leaf'}, {leaf.spec}, is "
                        + ("None and was a tensor" if wanted else "a tensor and was None"))
        return "arguments begin elsewhere in their memory, which the function looks at"
