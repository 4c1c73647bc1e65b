"""Traces a call: records its launches on every device in use, and what its code reads besides its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Self
from weakref import ref

from gradcore.autograd.inspection import is_held
from gradcore.devices.device import devices
from gradcore.engine.leaf import Leaf, leaf_of
from gradcore.engine.state import local, scoped
from gradcore.errors import TraceError
from gradcore.events import ALLOC, LAUNCH, VIEW
from gradcore.forking import held
from gradcore.nn.parameter import is_lazy
from gradcore.program.guarding.gradients import GradientGuard, is_gradient_held
from gradcore.program.guarding.guards import Asking, Guard, TensorGuard, identical
from gradcore.program.guarding.modules import ModuleGuard, hooks_on
from gradcore.program.guarding.optimizers import OptimizerGuard, counts_guard, has_counts
from gradcore.program.guarding.readers import Attribute
from gradcore.program.guarding.values import equal
from gradcore.program.tracing.building import TWICE, Builder
from gradcore.program.tracing.recorder import Recorder, busy
from gradcore.program.tracing.second import hooked, second_of
from gradcore.program.tracing.templates import Templates, gradients_of
from gradcore.program.tracing.trace import Second, Trace
from gradcore.program.watching.stored import Place, carried_of
from gradcore.program.watching.watch import Watcher


def as_forward() -> AbstractContextManager[None]:
    """A scope of the phase ``forward``, unless there is a phase already, so that bytes are labelled as in a training step."""
    return scoped(phase="forward") if local.state.scope.plain.phase == "setup" else nullcontext()


@contextmanager
def each(contexts: Sequence[AbstractContextManager[Any]]) -> Iterator[None]:
    """Several contexts, one inside the other. In an ExitStack, an interrupt between two of its calls would leave one open."""
    with contexts[0], each(contexts[1:]) if contexts[1:] else nullcontext():
        yield


class Noting:
    """Base of context managers that note by others, one inside the other, what runs in them.

    The thread compiles nothing meanwhile.
    """

    _open: AbstractContextManager[None] = nullcontext()

    def _contexts(self) -> Sequence[AbstractContextManager[Any]]:
        """The others, from the outermost on."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._open, self._locks = each(self._contexts()), held()
        # A statement, which no interrupt leaves half done: else the thread would compile nothing any more.
        busy.depth += 1
        try:
            self._open.__enter__()
        except BaseException:
            busy.depth -= 1
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._open.__exit__(None, None, None)
        finally:
            busy.depth -= 1
            # A profiler, as the watcher is, may be interrupted where a block is about to give its lock back.
            for lock in held() - self._locks:
                while lock._is_owned():
                    lock.release()


class Tracing(Noting):
    """A context manager that records what a function does while it runs in it, on every device in use.

    ``carried`` are the keys of places outside of the function that are treated as arguments and results of it.
    """

    def __init__(self, function: Any, carried: frozenset[tuple[Any, ...]] = frozenset()) -> None:
        self._carried = carried
        self._watcher = Watcher(getattr(function, "forward", function), carried)
        self._second: Second | None = None
        #: Why the gradient of the results cannot be recorded.
        self._refused: list[str] = []
        #: The guards of the trace, set when it is finished.
        self.guards: list[Asking] = []
        #: Places that could be carried, without which the trace cannot be replayed. Set when it is finished.
        self.carriable: list[Place] = []
        #: The keys of those carried places that its code could reach. Set when it is finished.
        self.reached: set[tuple[Any, ...]] = set()
        recorders = self._recorders = [Recorder(device, fresh=self._watcher.fresh) for device in devices()]
        #: The leaves whose gradients something else refers to when the run begins.
        self._held = {leaf for r in recorders for leaf in r.specs if is_gradient_held(leaf)}

    def _contexts(self) -> Sequence[AbstractContextManager[Any]]:
        # The watcher last: it looks at objects of the user's, whose code may raise.
        return *self._recorders, as_forward(), self._watcher

    def templates(self, arguments: list[Any]) -> Templates:
        """What makes the template of the result. Ask for it, and use it, before the run ends."""
        # Of leaves that existed when the run began.
        return Templates(arguments, gradients_of(leaf for r in self._recorders for leaf in r.before), self._watcher.new)

    def ran_backward(self) -> bool:
        """Did a backward run?"""
        return any(recorder.ran_backward() for recorder in self._recorders)

    def replayed(self) -> bool:
        """Did the gradient of an earlier compiled call run?"""
        return any(r.log.replayed for r in self._recorders)

    def differentiate(self, arguments: list[Any], outputs: list[Any]) -> None:
        """Record the gradient of those results that have a graph which no backward in the function has consumed."""
        roots = [k for k, t in enumerate(outputs) if t.edge is not None and not self._is_older(t)]
        ran = [r for r in self._recorders if r.log.launches]
        if len(ran) == 1 and ran[0].ran_backward():
            swept = {r[3] for r in ran[0].log if r[0] in (LAUNCH, VIEW) and r[2].phase == "backward"}
            roots = [k for k in roots if is_held(outputs[k], swept)]
        if not roots or len(ran) != 1:
            return
        if not {*filter(None, map(leaf_of, arguments))} <= ran[0].before.keys():
            self._refused.append("it makes an argument require a gradient: call x = x.detach().requires_grad_() inside")
            return
        if hooked([outputs[k] for k in roots], ran[0].log.first) or any(
                t.edge is not None and t.edge[0].hooks is not None for t in arguments):
            # They may do anything, and with placeholders for cotangents it would be wrong.
            self._refused.append("its result has hooks in its graph, which its caller's backward calls")
            return
        if ran[0].updates:
            self._refused.append(TWICE)
            return
        if local.state.anomaly:
            self._refused.append("its caller's backward looks for NaN (detect_anomaly), which a replay's would not do")
            return
        seen = self._watcher.gradients
        without, found = set(seen.without), set(seen.found)
        try:
            self._second = second_of(ran[0], arguments, outputs, roots)
            if any(leaf.grad is not None for leaf in {*set(seen.without) - without, *set(seen.found) - found}):
                # The slots of leaves that the run read are empty while it is recorded.
                self._refused.append("its caller's backward runs code that asks for a gradient")
        except TraceError:
            raise
        except Exception as error:
            # The caller may never ask for the gradient.
            self._refused.append(f"its result has a graph, of which a backward raises {type(error).__name__}: {error}")

    def made_of_numbers(self) -> bool:
        """Did the run make tensors of Python numbers?"""
        return any(r.log.numbers for r in self._recorders)

    def _is_older(self, tensor: Any) -> bool:
        """Was the graph of a tensor built before the run?"""
        return any(tensor.edge[0].id < r.log.first for r in self._recorders if r.device is tensor.storage.device.compute)

    def made(self) -> frozenset[int]:
        """The serials of the storages that were allocated in the run."""
        return frozenset(r[1] for recorder in self._recorders for r in recorder.records() if r[0] == ALLOC)

    def finish(self, inputs: list[Any], outputs: list[Any]) -> Trace | None:
        """The trace, or None if nothing was launched. Call it when the function has returned."""
        self._watcher.__exit__()
        ran = [r for r in self._recorders if any(record[0] == LAUNCH for record in r.records())]
        if len(ran) > 1:
            raise TraceError("a traced function runs on one device, but this one ran ops on "
                             + ", ".join(r.device.name for r in ran))
        if not ran:
            return None
        recorder, = ran
        trace = Builder(recorder.recorded(), inputs, outputs, self._second).trace()
        trace.obstacles = [*self._refused, *trace.obstacles, *self._watcher.changes(recorder.log.numbers),
                           *self._unseen(trace)]
        self.carriable = self._watcher.stored.carriable()
        self._watcher.steps.forget()
        trace.modes = [(ref(module), module.training) for module, _ in self._watcher.modes.values()]
        trace.schedules = [*map(ref, self._watcher.schedules.stepped)]
        # Code that found a gradient may do something else if there is none.
        trace.presence |= {leaf: True for leaf, serial in self._watcher.gradients.found.items()
                           if recorder.before.get(leaf) == serial}
        # If there were a gradient, the run would have added to it what it made and dropped.
        trace.presence |= {leaf: False for leaf in self._watcher.gradients.emptied if recorder.before.get(leaf) == 0}
        self.guards = self._all_guards(trace, recorder)
        trace.obstacles += self._unguarded(trace, recorder, inputs, outputs)
        return trace

    def _unseen(self, trace: Trace) -> Iterator[str]:
        """Reasons against a replay: what neither the log nor a guard can see."""
        for d in devices():
            if d.compute is d and all(d is not r.device for r in self._recorders):
                # What ran there was not recorded, so its results would be those of the traced run.
                yield f"it is the first to use {d.name}, whose ops were not recorded"
        yield from [f"it removes the state of the optimizer {type(o).__name__}, with the counts of an update"
                    for at, _, params in trace.updates for o in [at()] if not has_counts(o, params)][:1]
        by_name = "state" in self._watcher.names.read
        yield from [f"it reads {name!r} in the state of the optimizer {type(o).__name__}, which each run changes"
                    for at, _, _ in trace.updates for o in [at()] if by_name or self._watcher.optimizers.tells(o)
                    for name in o._optim_numbers if name in self._watcher.names.texts][:1]

    def _unguarded(self, trace: Trace, ran: Recorder, inputs: list[Any], outputs: list[Any]) -> Iterator[str]:
        """Reasons against a replay: what the tensors are to each other that it was given, that it refers to and returns."""
        referred = [t for guard in self.guards for t in guard.values()]
        known, read = {id(t) for t in referred}, {t.storage.serial for t in (*inputs, *referred)}
        if read & {ran.before.get(leaf) for leaf in (*trace.slots.values(), *trace.presence)}:
            yield "a gradient that it reads lies in the memory of an argument, or of another tensor"
        if any(t.edge is not None and self._is_older(t) and id(t) not in known for t in outputs):
            yield "it returns a tensor with a graph that was built before and that no guard checks: detach it"
        if any(_has_graph_since(ran.log.first, t) for t in referred):
            yield "it leaves a graph in a tensor that it refers to: store it detached, or return it"
        if {id(t.storage) for t in inputs} & {id(t.storage) for t in referred}:
            yield "the function also refers to an argument in another way"

    def _all_guards(self, trace: Trace, ran: Recorder) -> list[Asking]:
        """All guards of the trace, except on the presence of gradients that the program itself reads or makes."""
        updated = {id(o): o for at, _, _ in trace.updates for o in [at()]}
        optimizers = updated | {id(o): o for o in self._watcher.optimizers.found()}
        found = [*self._watcher.guards(), *(self._guard_of(o) for o in optimizers.values())]
        self.reached |= self._watcher.reached
        modules = [guard for guard in found if isinstance(guard, ModuleGuard)]
        for guard in modules:
            self._adapt(guard)
        found += [counts_guard(o, params) for at, _, params in trace.updates for o in [at()]
                  if o._optim_numbers and len(params) > 1 and has_counts(o, params)]
        found += [*self._of_params(trace, found)]
        known = {leaf for guard in modules for leaf, _, _ in guard.leaves}
        found += [Guard(f"the hooks on {leaf.described()}", partial(hooks_on, leaf), hooks_on(leaf), equal)
                  for leaf in ran.before if leaf in ran.log.leaves and leaf not in known]
        params = [p for o in optimizers.values() for group in o.param_groups for p in group["params"]]
        return [*found, *self._of_gradients(trace, ran, params)]

    @staticmethod
    def _of_params(trace: Trace, found: list[Asking]) -> Iterator[Asking]:
        """Guards for the parameters that the program takes from optimizers alone, by an update's op or by any other."""
        covered = {id(t) for guard in found for t in guard.values()}
        read = {*map(id, trace.storages.values())}
        for p in (p for guard in found if isinstance(guard, OptimizerGuard) for p in guard.params()):
            if id(p) not in covered and not is_lazy(p) and id(p.storage) in read:
                yield TensorGuard(f"a parameter, {p.spec}, that is updated", lambda p=p: p, p)  # type: ignore[misc]

    def _guard_of(self, optimizer: Any) -> OptimizerGuard:
        # If only the library's own update reads the learning rate, it is an operand of the program and may change.
        return OptimizerGuard(optimizer, self._watcher.reads_rates(optimizer), self._watcher.optimizers.only_clears(optimizer))

    def _adapt(self, guard: ModuleGuard) -> None:
        """Let a guard ask for the mode in which the run began, and not for what is carried."""
        if (module := guard.owner()) is not None:
            _, guard.training = self._watcher.modes.get(id(module), (module, guard.training))
            buffers = carried_of(module, self._carried)
            guard.leave_out(buffers)
            self.reached |= {("attribute", id(module), name) for name in buffers}

    def _of_gradients(self, trace: Trace, ran: Recorder, params: list[Any]) -> Iterator[Asking]:
        """Guards for the gradients that the program reads, and for those that must stay away, some of them of ``params``."""
        seen = self._watcher.gradients
        for leaf in dict.fromkeys(trace.slots.values()):
            yield GradientGuard(leaf, ran.specs[leaf], leaf in self._held)
        # An update skips parameters without a gradient, and code that asks for a gradient may depend on whether there is one.
        for leaf in dict.fromkeys((*filter(None, map(leaf_of, params)), *seen.without)):
            if leaf.grad is None and not ran.before.get(leaf, 0) and leaf not in trace.presence:
                yield GradientGuard(leaf, None)
        # A parameter that requires no gradient can be given one too.
        frozen = {id(p): p for p in (*params, *seen.frozen_without.values()) if p.edge is None and p.grad is None}
        for p in frozen.values():
            yield Guard(f"the gradient of a parameter, {'uninitialized' if is_lazy(p) else p.spec}, that needs none",
                        Attribute(p, "grad"), None, identical)


def _has_graph_since(first: int, tensor: Any) -> bool:
    """Have a tensor or its base a graph whose newest node has number ``first`` or a later one?"""
    edges = [t.edge for t in (tensor, tensor.base) if t is not None and t.edge is not None]
    return any(type(node) is not Leaf and node.id >= first for node, _ in edges)
