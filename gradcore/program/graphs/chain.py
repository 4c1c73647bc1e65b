"""A chain of traced graphs: one program in parts, planned into one arena.

What a later part reads stays there until that part has run; everything else but the results is released when a part has run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gradcore.devices.device import Device
from gradcore.engine.value import Value
from gradcore.errors import ModifiedInPlace, TraceError
from gradcore.program.graphs.followed import Followed, NotingLog
from gradcore.program.planning.plan import Plan, plan
from gradcore.program.replaying.arena import Arena
from gradcore.program.replaying.binding import Binding
from gradcore.program.replaying.capture import CapturedReplay
from gradcore.program.tracing.building import Builder
from gradcore.program.tracing.recorder import Recorded, Recorder, busy
from gradcore.program.tracing.templates import Templates, rebuilt
from gradcore.program.tracing.trace import Trace, read_afresh
from gradcore.program.tracing.trace_log import BEYOND
from gradcore.program.tracing.tracing import as_forward
from gradcore.spec import TensorSpec
from gradcore.units import count_of


@dataclass
class _Part:
    """One graph of a chain. Until the chain is executed, ``examples`` are the output tensors of the traced run, and ``held`` is
    the memory that tensors which exist after it had then: they may be given other memory."""

    name: str
    recorder: Recorder
    inputs: list[Any]
    specs: list[TensorSpec]
    template: Any
    examples: list[Any]
    shared: list[int]  # for each input: the index of the first input whose example had the same memory, usually itself
    backward: bool
    held: list[Any]


class _Stage(CapturedReplay):
    """The replay of one part of a chain, in the ``arena`` of all. Its inputs are those of the parts before it and its own."""

    def __init__(self, trace: Trace, plan: Plan, arena: Callable[[], Arena]) -> None:
        super().__init__(trace, plan)
        self._arena = arena

    def _take_arena(self) -> Arena:
        return self._arena()

    def _bind(self) -> Binding:
        bound = super()._bind()
        count = len(self.program.instructions)
        bound.set_lasting([b.index for b in self.program.made() if b.first < count <= b.last])
        return bound

    def close(self) -> None:
        """Release what it left in the arena for the next part."""
        if self._bound is not None:
            self._bound.close()


@dataclass
class _Ready:
    """The parts of a chain, planned and ready to run in one arena, which is allocated when the first of them runs."""

    plan: Plan
    arena: Callable[[], Arena]
    followed: Followed
    stages: list[_Stage]
    #: For each part: the captured buffers that it reads; and those that it reads as the parts before it did.
    reads: list[set[int]]
    rereads: list[set[int]]
    #: The captured storages, by buffer.
    storages: dict[int, Any]


class Chain:
    """Graphs that read each other's outputs, in the order in which they were traced."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.parts: list[_Part] = []
        self._ready: _Ready | None = None
        #: The part that was executed last, the inputs of it and of the parts before it, and their versions.
        self._last = -1
        self._given: list[Any] = []
        self._versions: list[int] = []
        #: By captured buffer: its version after the last part; and those that were written to after a part had read them.
        self._held: dict[int, int] = {}
        self._stale: set[int] = set()

    def name(self, part: int) -> str:
        return f"<graph of {self.parts[part].name}, part {part + 1} of {len(self.parts)}>"

    def examples(self, part: int) -> list[Any]:
        """The tensors that the traced run of a part returned. Raises TraceError once the chain has been executed."""
        if self._ready is not None:
            raise TraceError(f"{self.name(part)} has been executed: chain and take gradients before the first execute()")
        return self.parts[part].examples

    def record(self, name: str, inputs: list[Any], run: Callable[[], Any], *, backward: bool = False) -> int:
        """Trace one more part, and return its number. Raises TraceError for a backward, unless ``backward`` allows it."""
        log = NotingLog()
        recorder = Recorder(self.device, log)
        with busy, recorder, as_forward():
            result = run()
        if not recorder.log.launches:
            raise TraceError(f"{name} ran no op on {self.device}: there is nothing to execute")
        if recorder.updates or (recorder.ran_backward() and not backward):
            raise TraceError(f"{name} runs backward or updates parameters: take gradcore.gradients(graph, wrt=...) of a graph, "
                             "or compile whole steps with gradcore.compile")
        # They refer to every leaf there was, and so to gradients of networks that the chain has nothing to do with.
        recorder.before, recorder.specs = {}, {}
        templates = Templates(inputs)
        template, examples = templates.of(result), templates.outputs
        own = [t.storage for t in inputs]
        self.parts.append(_Part(name, recorder, inputs, [t.spec for t in inputs], template, examples, list(map(own.index, own)),
                                backward, log.storages()))
        return len(self.parts) - 1

    def ready(self) -> _Ready:
        """The parts, ready to run. The first call plans the chain and frees the tensors of the traced runs."""
        if self._ready is None:
            parts = self.parts
            counts = [len(p.recorder.log.launches) for p in parts]
            whole, scripts = _joined_trace(self.device, parts)
            if whole.obstacles:
                raise TraceError("the graphs cannot be executed: " + "; ".join(whole.obstacles))
            found = plan(whole.program)
            ready = _Ready(found, functools.cache(partial(Arena.of, self.device, found.nbytes, whole.program)),
                           Followed(whole, [p.recorder.log for p in parts]), [], [], [], whole.storages)
            start = given = made = 0
            for count, p, script in zip(counts, parts, scripts, strict=True):
                given += len(p.inputs)
                part = _part_of(whole, slice(start, start + count), given, slice(made, made + len(p.examples)), script)
                ready.stages.append(_Stage(part, found, ready.arena))
                ready.reads.append({x.buffer for i in part.program.instructions for x in i.tensors()} & whole.storages.keys())
                ready.rereads.append(ready.reads[-1] - read_afresh(part.program.instructions, whole.storages))
                start, made = start + count, made + len(p.examples)
            for p in parts:
                p.examples, p.inputs, p.held = [], [], []
                p.recorder.log.clear()
            self._ready = ready
        return self._ready

    def execute(self, part: int, inputs: list[Any], wanted: set[int] | None) -> Any:
        """Run a part: what its function returned, or of its outputs only those that are ``wanted``."""
        ready = self.ready()
        stages = ready.stages
        self._check(part, inputs, ready)
        if self._last >= 0:
            stages[self._last].close()
        if part == 0:
            self._given, self._versions = [], []
            if ready.followed.follow(self.name(0)):
                # The old stages are bound to the memory of before.
                stages[:] = [_Stage(stage.trace, ready.plan, ready.arena) for stage in stages]
        self._last = -1
        results = stages[part].run(self._given + inputs)
        self._last = part
        self._given += inputs
        self._versions = [t.storage.version for t in self._given]
        self._held = {b: storage.version for b, storage in ready.storages.items()}
        if part == len(stages) - 1:
            self._given, self._versions = [], []
        if wanted is not None:
            results = [t if k in wanted else None for k, t in enumerate(results)]
        return rebuilt(self.parts[part].template, results, inputs)

    def _check(self, part: int, inputs: list[Any], ready: _Ready) -> None:
        """Raise unless a part may run now, and on these inputs."""
        name, specs = self.name(part), self.parts[part].specs
        if len(inputs) != len(specs):
            raise TypeError(f"{name} takes {count_of(len(specs), 'tensor')}, but got {len(inputs)}")
        for k, (x, spec) in enumerate(zip(inputs, specs, strict=True)):
            if not isinstance(x, Value):
                raise TypeError(f"{name} takes tensors, but input {k} is {type(x).__name__}")
            if x.spec is not spec:
                raise TraceError(f"{name} was traced with {spec} as input {k}, but got {x.spec}: trace it again")
            if x.storage.device.compute is not self.device:
                raise TraceError(f"{name} was traced on {self.device}, but input {k} is on {x.storage.device}")
            if x.storage is not inputs[self.parts[part].shared[k]].storage:
                raise TraceError(f"{name} was traced with input {k} sharing another input's memory, but got separate ones: "
                                 "trace it again")
        if part and self._last != part - 1:
            raise TraceError(f"{name} reads results of {self.name(part - 1)}: execute that first, once for each execution")
        moved = ready.followed.moved() if part else []
        if moved:
            raise TraceError(f"the memory of {moved[0]}, which the graphs read, was replaced (p.data = other) after "
                             f"{self.name(0)} was executed, so {name} would mix old and new values: execute again from the "
                             "first graph on")
        for tensor, version in zip(self._given if part else (), self._versions, strict=False):
            if tensor.storage.version != version:
                raise ModifiedInPlace("one of the inputs has been modified by an inplace operation since its graph was "
                                      f"executed, and {name} may read it: {tensor.spec}")
        self._check_captured(part, ready)

    def _check_captured(self, part: int, ready: _Ready) -> None:
        """Raise if gradients would read what was written to since an earlier part read it, for which eager mode raises."""
        if not part:
            self._stale = set()
            return
        earlier = set().union(*ready.reads[:part])
        self._stale |= {b for b in earlier if ready.storages[b].version != self._held[b]}
        if self.parts[part].backward and (found := self._stale & ready.rereads[part]):
            raise ModifiedInPlace(f"{ready.followed.name(min(found))}, which {self.name(part)} reads, has been modified by an "
                                  "inplace operation since the graphs before it read it: execute again from the first graph on")


# -- one program of several recordings, and its parts ------------------------------------------------------------------


def _all(lists: Iterable[list[Any]]) -> list[Any]:
    return [x for some in lists for x in some]


def _union(maps: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    return {key: value for some in maps for key, value in some.items()}


#: The records of one graph of a chain, as in :attr:`Trace.script`.
Script = list[tuple[Any, ...]]


def _joined_trace(device: Device, parts: list[_Part]) -> tuple[Trace, list[Script]]:
    """The trace of all parts, and the script of each."""
    each = [p.recorder.recorded() for p in parts]
    reasons = _union(r.reasons for r in each)
    # A graph may continue those before it.
    reasons.pop(BEYOND, None)
    # Gradients are results here, so that no leaf gets one.
    joined = Recorded(
        device, opening=_all(r.opening for r in each), records=_all(r.records for r in each),
        launches=_all(r.launches for r in each), leaves=_union(r.leaves for r in each),
        constants=_union(r.constants for r in each), reasons=reasons, slots={}, updates=[])
    builder = Builder(joined, _all(p.inputs for p in parts), _all(p.examples for p in parts), None)
    whole = builder.trace(tuple(len(r.launches) for r in each), [len(p.examples) for p in parts])
    return whole, [builder.script(r.records) for r in each]


def _part_of(trace: Trace, span: slice, given: int, made: slice, script: Script) -> Trace:
    """The instructions in ``span`` as a trace of their own, with lifetimes relative to the first of them.

    Its inputs are the first ``given`` inputs of the whole, its outputs those in ``made``.
    """
    program = trace.program
    buffers = tuple(replace(b, first=b.first - span.start, last=b.last - span.start) if b.kind == "made" else b
                    for b in program.buffers)
    part = replace(program, buffers=buffers, instructions=program.instructions[span], inputs=program.inputs[:given],
                   outputs=program.outputs[made])
    return replace(trace, program=part, kernels=trace.kernels[span], invocations=trace.invocations[span], script=script)
