"""Which optimizers run while a function is traced: what they tell of their options, and what they count in their state."""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import Any
from weakref import ref

from gradcore.engine.sites import is_inside
from gradcore.optim import Optimizer
from gradcore.program.guarding.frames import is_method
from gradcore.program.guarding.names import Names
from gradcore.program.guarding.optimizers import changed_numbers, is_optimizer, numbers_of

_CLEARS: CodeType = Optimizer.zero_grad.__code__
#: What tells a caller the options of an optimizer, which only the library's own code names then.
_TELL = frozenset((Optimizer.state_dict.__code__, Optimizer.__repr__.__code__))


class OptimizerRuns:
    """Records them. ``objects`` is filled meanwhile: by id an object, and the code that ran with it as an argument."""

    def __init__(self, objects: Mapping[int, tuple[Any, set[CodeType]]]) -> None:
        self._objects = objects
        #: Those that the run has made, or copied, which must be gone when it has ended.
        self._made: list[ref[Optimizer]] = []
        #: By id of an optimizer and of a parameter: the plain data in the state when one of its methods first ran.
        self._counted: dict[int, dict[int, dict[str, Any]]] = {}
        #: Ids of those that ran ops of updates, of which the learning rate is an operand.
        self._updated: set[int] = set()

    def begins(self, optimizer: Optimizer) -> None:
        """Take note of one that the run makes."""
        self._made.append(ref(optimizer))

    def enters(self, optimizer: Optimizer) -> None:
        """Take note of one that was there before, of which a method begins."""
        if id(optimizer) not in self._counted:
            self._counted[id(optimizer)] = numbers_of(optimizer)

    def updates(self, optimizer: Optimizer) -> None:
        """Take note of an update's op."""
        self._updated.add(id(optimizer))

    # -- once the run has ended ----------------------------------------------------------------------------------------

    def found(self) -> list[Optimizer]:
        """Those whose methods ran."""
        return [owner for owner, _ in self._objects.values() if is_optimizer(owner)]

    def _ran_with(self, optimizer: Optimizer) -> set[CodeType]:
        return self._objects.get(id(optimizer), (optimizer, set[CodeType]()))[1]

    def only_clears(self, optimizer: Optimizer) -> bool:
        """Did no method of an optimizer run but ``zero_grad``?"""
        return all(code is _CLEARS for code in self._ran_with(optimizer) if is_method(code, optimizer))

    def _is_extended(self, optimizer: Optimizer) -> bool:
        """Did the optimizer run methods that are defined outside the library?"""
        return any(not is_inside(code) and is_method(code, optimizer) for code in self._ran_with(optimizer))

    def tells(self, optimizer: Optimizer) -> bool:
        """Did the optimizer run a method that tells its options, and what is in its state?"""
        return not _TELL.isdisjoint(self._ran_with(optimizer))

    def reads_rates(self, optimizer: Optimizer, names: Names) -> bool:
        """May code with these names read the learning rates of an optimizer, besides by ops of updates?"""
        return (names.options or self.tells(optimizer) or self._is_extended(optimizer)
                or not (id(optimizer) in self._updated or self.only_clears(optimizer)))

    def kept(self) -> list[str]:
        """Reasons against a replay: optimizers that the run has made, and that exist after it."""
        return [f"it makes an optimizer, {type(o).__name__}, that exists after the run" for made in self._made
                for o in [made()] if o is not None]

    def changes(self) -> list[str]:
        """Reasons against a replay: what optimizers of the user's have changed in their state."""
        return changed_numbers([o for o in self.found() if self._is_extended(o)], self._counted)
