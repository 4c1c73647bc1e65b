"""What the cache of a compiled function holds: a program with the guards for it, and the template of its result."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import ref

from gradcore._holders import BORROWERS
from gradcore.devices.storage import Storage
from gradcore.engine.value import Value
from gradcore.program.calls.keys import another, storage_of
from gradcore.program.guarding.guards import Asking, Guard, Terms, same_object, weakly
from gradcore.program.guarding.modules import ModuleGuard
from gradcore.program.guarding.optimizers import OptimizerGuard
from gradcore.program.replaying.differentiable import Differentiable
from gradcore.program.replaying.replay import Replay
from gradcore.program.tracing.views import View
from gradcore.program.watching.stored import Place


def _copied_apart(replay: Replay | Differentiable) -> frozenset[int] | None:
    """The ids of the captured storages that no argument may lie in, or None: where inputs are copied before a run, a copy would
    miss what the run writes to the captured tensor, or the tensor what it writes to the copy."""
    trace = replay.trace
    if all(storage.device.graphs is None for storage in trace.storages.values()):
        return None
    written, inputs = {*trace.program.written()}, {x.buffer for x in trace.program.inputs}
    return frozenset(id(storage) for b, storage in trace.storages.items() if b in written or written & inputs)


class Entry:
    """A program in the cache: its replay, the guards that must hold for it, and the template of its result."""

    def __init__(self, replay: Replay | Differentiable, guards: list[Asking], template: Any, kept: list[Any],
                 views: list[View], offsets: list[int] | None, carried: list[Place]) -> None:
        self.replay = replay
        self.guards = guards
        #: The function's result, with :class:`~gradcore.program.tracing.templates.Output` in the place of tensors; if anything
        #: is carried, a pair of it and what is left in each place.
        self.template = template
        self.carried = carried
        #: Arguments that the key identifies by id: weakly, where that is possible. Another object may get the id of one that
        #: no longer exists, so the program is dropped with it; see :meth:`watch`.
        self.kept = [weakly(x) for x in kept]
        self.views = views
        #: Where in their storages the arguments must begin, if the function looked at that; otherwise anywhere.
        self.offsets = offsets
        self._apart = _copied_apart(replay)
        #: The ids of the tensors that the function refers to. None is an argument in a traced run that can be replayed, so code
        #: such as ``x is w`` may do something else where one is.
        self._referred = frozenset(id(t) for guard in guards for t in guard.values())
        self.holds = Terms(guards, replay.trace.presence).all_hold()

    def fits(self, tensors: list[Any]) -> bool:
        """Does a call with these arguments, whose key is the entry's, do what was traced?"""
        return (self.holds() and self._referred.isdisjoint(map(id, tensors))
                and (self.offsets is None or self.offsets == [t.spec.offset for t in tensors])
                and (not self._apart or self._apart.isdisjoint(map(id, map(storage_of, tensors)))))

    def watch(self, lose: Callable[[Entry, str], None]) -> None:
        """Call ``lose`` with a reason when something goes without which no call can fit: an object that the key identifies, or
        one that a guard compares by identity.
        """
        me = ref(self)
        #: Weakly, by id, each with the reason: that of a guard which has a name for it comes first.
        watched: dict[int, tuple[Any, str]] = {}
        for guard in self.guards:
            if isinstance(guard, Guard) and guard.same is same_object:
                watched.setdefault(id(guard.seen()), (guard.seen, f"{guard.name} is a different object"))
        for guard in self.guards:
            if isinstance(guard, (ModuleGuard, OptimizerGuard)):
                watched.setdefault(id(guard.owner()), (guard.owner, f"a {guard.kind.__name__} no longer exists"))
        for x in self.kept:
            if isinstance(x, ref):
                watched.setdefault(id(x()), (x, another("an argument", isinstance(x(), (Value, Storage)))))

        def gone(why: str, _: Any) -> None:
            if (entry := me()) is not None:
                lose(entry, why)

        self._watches = [ref(x, partial(gone, why)) for weak, why in watched.values()
                         if (x := weak()) is not None]

    def is_lost(self) -> bool:
        """Has memory that the program is bound to been replaced, and does no tensor show it any more? Then no call will fit."""
        replaced = [storage for guard in self.guards for storage in guard.replaced()]
        # A leaf among the arguments comes with the storage that it had.
        replaced += [storage for t, storage in pairwise([x() for x in self.kept]) if isinstance(t, Value)
                     and isinstance(storage, Storage) and t.storage is not storage]
        if not replaced:
            return False
        guarded = {id(t) for guard in self.guards for t in guard.values()}
        shown = {id(t.storage) for t in gc.get_referrers(*replaced) if isinstance(t, Value) and id(t) not in guarded}
        return any(id(storage) not in shown for storage in replaced)

    def why_not(self, tensors: list[Any]) -> str:
        """The first reason why a call with these arguments does not fit, as a sentence."""
        if why := Terms(self.guards, self.replay.trace.presence).why_not():
            return why
        if self._apart and not self._apart.isdisjoint([id(t.storage) for t in tensors]):
            return "an argument lies in the memory of another tensor that the function refers to"
        if not self._referred.isdisjoint(map(id, tensors)):
            return "an argument is a tensor that the function also refers to"
        return "arguments begin elsewhere in their memory, which the function looks at"


# Its guards refer to what the function reads, which has better names.
BORROWERS.add(Entry)
