"""A call that is traced: what it returns and leaves behind, what speaks against a replay, and the entry of the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradcore.engine.autocast import resumed
from gradcore.engine.state import local
from gradcore.program.calls.entry import Entry
from gradcore.program.calls.keys import Keys, contents, modes_left, unknown_among
from gradcore.program.planning.plan import plan
from gradcore.program.replaying.capture import replay_of
from gradcore.program.replaying.differentiable import Differentiable
from gradcore.program.tracing.carried import Carried, Exchange, parted
from gradcore.program.tracing.escapes import made_anew, stored
from gradcore.program.tracing.second import Entered
from gradcore.program.tracing.templates import kept_as_they_are, rebuilt
from gradcore.program.tracing.trace import Trace
from gradcore.program.tracing.tracing import Tracing
from gradcore.program.tracing.views import View, views_among


class TracedCall:
    """One call of a function that is traced, with what made its key: :meth:`run` it, and end with :meth:`result`, also after
    an error."""

    def __init__(self, function: Callable[..., Any], carried: Carried, keys: Keys, args: Any, kwargs: Any) -> None:
        self._function = function
        self._keys = keys
        self._arguments = args, kwargs
        self._before = contents(self._arguments, keys.leaves)
        self._exchange = Exchange([*carried.places])
        self._carried = carried.keys()
        self.tracing: Tracing
        #: None if nothing was launched, or the run was :meth:`Tracing.replayed`.
        self.trace: Trace | None = None
        self._ended = False
        self._reasons: list[str] = []
        self._views: list[View] = []

    def run(self) -> None:
        """Run the function, and look at what it has done."""
        args, kwargs = self._arguments
        tensors = self._keys.tensors
        local.state.placed = False
        # In this order, by which the nodes of arguments count as older than the run.
        with Entered(tensors if local.state.grad else []) as entered, Tracing(self._function, self._carried) as tracing:
            self.tracing = tracing
            # With an empty cache of casts: a replay would not repeat casts that the region had made before.
            with resumed(local.state.autocast):
                result = self._function(*args, **kwargs)
            # What is carried is a result, and no change, as long as the run is looked at.
            templates = tracing.templates(tensors)
            pair = self._exchange.take(result)
            self._template, self._outputs = templates.of(pair), templates.outputs
            self._ended = True
            if not tracing.replayed():
                tracing.differentiate(tensors, self._outputs)
                self.trace = tracing.finish(tensors, self._outputs)
        # From here on references tell what the user has stored.
        del result, pair
        made = tracing.made()
        self._reasons += [*entered.obstacles, *templates.let_go(), *self._exchange.obstacles]
        if entered.hooked and tracing.ran_backward():
            self._reasons.append("it runs a backward, and an argument has hooks, which that may call")
        self._reasons += stored(self._outputs, made, [] if self.trace is None else [leaf for leaf, _ in self.trace.left])
        self._views, apart = views_among(self._outputs, tensors, made)
        self._reasons += apart

    def obstacles(self, key: Any) -> list[str]:
        """Reasons why no replay can do the same; ``key`` is that of the call."""
        assert self.trace is not None
        known = [*self._keys.kept, self._function, getattr(self._function, "__self__", None)]
        found = [*self.trace.obstacles, *self._reasons, *unknown_among(self._keys.kept, self.tracing.made_of_numbers()),
                 *made_anew(self._template, known, self.tracing.guards), *modes_left(key)]
        if self._before != contents(self._arguments, self._keys.leaves):
            found.append("the function modifies an argument, which a replay would not do")
        return found

    def entry(self, capture: bool) -> Entry:
        """What the cache keeps of a run without obstacles."""
        trace, guards = self.trace, self.tracing.guards
        assert trace is not None
        kept_as_they_are(self._template, self._outputs, (t for guard in guards for t in guard.values()))
        replay = (replay_of if trace.second is None else Differentiable)(trace, plan(trace.program, trace.renewed), capture)
        offsets = [t.spec.offset for t in self._keys.tensors] if local.state.placed else None
        return Entry(replay, guards, self._template, self._keys.kept, self._views, offsets, self._exchange.changed)

    def result(self) -> Any:
        """What the function returned; what it left in places that are carried is put there again."""
        if not self._ended:
            return None
        return parted(self._exchange.changed, rebuilt(self._template, self._outputs, self._keys.tensors))
