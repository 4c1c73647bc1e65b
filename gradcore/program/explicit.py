"""Graphs that the user traces, chains and executes explicitly: ``trace``, ``gradients`` and ``Graph.execute``.

A chain of graphs is one program in parts, planned into one arena. What a later part reads stays there until that part has
run; everything else but the results is released when a part has run.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gradcore.autograd import grad
from gradcore.devices.device import Device
from gradcore.engine.value import Value
from gradcore.errors import ModifiedInPlace, TraceError
from gradcore.functional import diagonals
from gradcore.program.arena import Arena
from gradcore.program.binding import Binding
from gradcore.program.capture import CapturedReplay
from gradcore.program.followed import Followed, NotingLog
from gradcore.program.joined import joined_trace, part_of
from gradcore.program.plan import Plan, plan
from gradcore.program.program import Program
from gradcore.program.recorder import Recorder, Trace, busy
from gradcore.program.templates import Templates, rebuilt
from gradcore.program.tracing import as_forward
from gradcore.spec import TensorSpec
from gradcore.trees import mapped


class Symbol:
    """An output of a traced graph, which can be an input of the next graph."""

    __slots__ = ("chain", "part", "index", "spec")

    def __init__(self, chain: _Chain, part: int, index: int, spec: TensorSpec) -> None:
        self.chain = chain
        self.part = part
        self.index = index
        self.spec = spec

    def __repr__(self) -> str:
        return f"<output {self.index} of {self.chain.name(self.part)}: {self.spec}>"


class Graph:
    """A traced function, one part of a chain. ``outputs`` is its result with symbols in the place of tensors."""

    def __init__(self, chain: _Chain, part: int) -> None:
        self._chain = chain
        self._part = part
        found = chain.parts[part]
        symbols = [Symbol(chain, part, k, t.spec) for k, t in enumerate(found.examples)]
        self.outputs = rebuilt(found.results, symbols, found.inputs)

    @property
    def program(self) -> Program:
        """This graph's part of the chain's program. Once it has been read, nothing can be chained to it."""
        return self._chain.ready().stages[self._part].program

    @property
    def plan(self) -> Plan:
        """The plan of the whole chain."""
        return self._chain.ready().plan

    def draw(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The plan of this part within the arena of its chain, drawn as by :meth:`Compiled.draw`."""
        from gradcore.program.drawing import drawn
        return drawn(self.program, self.plan, path)

    def execute(self, *inputs: Any, keep: Sequence[Symbol] | None = None) -> Any:
        """Run this part on tensors of the traced specs, in the order of the tensors in the example inputs.

        The graphs before it in the chain must have been executed since its last run, each once. Returns what the function
        returned, as tensors without a graph; with ``keep`` only those outputs, and None for the others. Raises TraceError for a
        wrong order or other specs, TypeError for inputs that are not tensors.
        """
        return self._chain.execute(self._part, list(inputs), keep)

    def __repr__(self) -> str:
        return self._chain.name(self._part)


@dataclass
class _Part:
    """One graph of a chain. ``examples`` are the output tensors of the traced run, until the chain is executed."""

    name: str
    recorder: Recorder
    inputs: list[Any]
    specs: list[TensorSpec]
    results: Any
    examples: list[Any]
    shared: list[int]  # for each input: the index of the first input whose example had the same memory, usually itself
    backward: bool


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
        bound.leave([b.index for b in self.program.made() if b.first < count <= b.last])
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
    #: For each part: the captured buffers that it reads.
    reads: list[set[int]]
    #: The captured storages, by buffer.
    storages: dict[int, Any]


class _Chain:
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

    def record(self, name: str, inputs: list[Any], run: Callable[[], Any], *, backward: bool = False) -> Graph:
        """Trace one more part. Raises TraceError for one that runs backward, unless ``backward`` allows it."""
        recorder = Recorder(self.device, NotingLog())
        with busy, recorder, as_forward():
            result = run()
        if not recorder.log.launches:
            raise TraceError(f"{name} ran no op on {self.device}: there is nothing to execute")
        if recorder.updates or (recorder.ran_backward() and not backward):
            raise TraceError(f"{name} runs backward or updates parameters: take gradcore.gradients(graph, wrt=...) of a graph, "
                             "or compile whole steps with gradcore.compile")
        templates = Templates(inputs)
        results, examples = templates.of(result), templates.outputs
        own = [t.storage for t in inputs]
        self.parts.append(_Part(name, recorder, inputs, [t.spec for t in inputs], results, examples, list(map(own.index, own)),
                                backward))
        return Graph(self, len(self.parts) - 1)

    def ready(self) -> _Ready:
        """The parts, ready to run. The first call plans the chain and frees the tensors of the traced runs."""
        if self._ready is None:
            parts = self.parts
            counts = [len(p.recorder.log.launches) for p in parts]
            whole, scripts = joined_trace(self.device, [p.recorder for p in parts], [p.inputs for p in parts],
                                          [p.examples for p in parts])
            if whole.obstacles:
                raise TraceError("the graphs cannot be executed: " + "; ".join(whole.obstacles))
            found = plan(whole.program)
            ready = _Ready(found, functools.cache(partial(Arena.of, self.device, found.nbytes, whole.program)),
                           Followed(whole, [p.recorder.log for p in parts]), [], [], whole.storages)
            start = given = made = 0
            for count, p, script in zip(counts, parts, scripts, strict=True):
                given += len(p.inputs)
                part = part_of(whole, slice(start, start + count), given, slice(made, made + len(p.examples)), script)
                ready.stages.append(_Stage(part, found, ready.arena))
                ready.reads.append({x.buffer for i in part.program.instructions for x in i.tensors()} & whole.storages.keys())
                start, made = start + count, made + len(p.examples)
            for p in parts:
                p.examples, p.inputs = [], []
                p.recorder.log.clear()
            self._ready = ready
        return self._ready

    def execute(self, part: int, inputs: list[Any], keep: Sequence[Symbol] | None) -> Any:
        for s in keep or ():
            if not isinstance(s, Symbol) or s.chain is not self or s.part != part:
                got = repr(s) if isinstance(s, Symbol) else type(s).__name__
                raise TypeError(f"keep expects outputs of {self.name(part)}, such as graph.outputs, but got {got}")
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
        if keep is not None:
            wanted = {s.index for s in keep}
            results = [t if k in wanted else None for k, t in enumerate(results)]
        return rebuilt(self.parts[part].results, results, inputs)

    def _check(self, part: int, inputs: list[Any], ready: _Ready) -> None:
        """Raise unless a part may run now, and on these inputs."""
        name, specs = self.name(part), self.parts[part].specs
        if len(inputs) != len(specs):
            raise TypeError(f"{name} takes {len(specs)} tensors, but got {len(inputs)}")
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
        if self.parts[part].backward and (found := self._stale & ready.reads[part]):
            raise ModifiedInPlace(f"{ready.followed.name(min(found))}, which {self.name(part)} reads, has been modified by an "
                                  "inplace operation since the graphs before it read it: execute again from the first graph on")


def trace(function: Any, example_inputs: Any = None) -> Any:
    """Trace a function on example inputs, tensors or outputs of graphs that were traced before, and return its graph.

    The function runs once, eagerly, on the examples. Raises TraceError for what a graph cannot contain (a value read on the
    host, a tensor made from host data), and for outputs of graphs in different chains. ``trace(matrix)`` is the sum of the
    matrix's diagonal, as in PyTorch.
    """
    if isinstance(function, Value) and example_inputs is None:
        return diagonals.trace(function)
    if not callable(function):
        raise TypeError(f"trace expected a function and example inputs, or a matrix, but got {type(function).__name__}")
    arguments = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    symbols: list[Symbol] = []
    tensors: list[Any] = []
    args = [_concrete(a, symbols, tensors) for a in arguments]
    chains = {id(s.chain): s.chain for s in symbols}
    if len(chains) > 1:
        raise TraceError("the inputs are outputs of graphs of different chains: " + ", ".join(map(repr, symbols)))
    if chains:
        chain, = chains.values()
    elif tensors:
        chain = _Chain(tensors[0].storage.device.compute)
    else:
        raise TypeError("trace expected example inputs with at least one tensor")
    return chain.record(getattr(function, "__name__", type(function).__name__), tensors, lambda: function(*args))


def _concrete(x: Any, symbols: list[Symbol], tensors: list[Any]) -> Any:
    """An example input with tensors in the place of symbols. Symbols and other tensors are appended to the lists."""
    if isinstance(x, Symbol):
        symbols.append(x)
        return x.chain.examples(x.part)[x.index]
    if isinstance(x, Value):
        tensors.append(x)
        return x
    return mapped(x, lambda v: _concrete(v, symbols, tensors))


def gradients(graph: Graph, wrt: Any) -> Graph:
    """The graph of the gradients of a graph's scalar outputs with respect to tensors, or outputs of graphs before it.

    Executing it takes no inputs and returns a tuple of tensors, one for each of ``wrt``. What it reads of earlier graphs
    stays in the arena until it has run. Raises RuntimeError as :func:`gradcore.autograd.grad` does.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"gradients expected a graph, as gradcore.trace returns it, but got {type(graph).__name__}")
    targets = list(wrt) if isinstance(wrt, (list, tuple)) else [wrt]
    symbols: list[Symbol] = []
    tensors = [_concrete(t, symbols, []) for t in targets]
    chain, part = graph._chain, graph._part
    roots = [t for t in chain.examples(part) if t.edge is not None]
    return chain.record(f"the gradients of {chain.parts[part].name}", [], lambda: grad(roots, tensors), backward=True)
