"""Compiled calls that the caller differentiates: programs in two parts, one for the results and one for their gradient.

The first part leaves what the second needs in its arena. A call whose gradient has not run yet holds its arena, and the next
call takes another one.
"""

from __future__ import annotations

from typing import Any

from gradcore.engine.custom import custom_node
from gradcore.engine.leaf import Leaf
from gradcore.engine.state import local
from gradcore.engine.tracer import tracer_of
from gradcore.engine.value import value_over
from gradcore.errors import AlreadyReleased, NoSecondDerivative
from gradcore.functional import zeros
from gradcore.memory.arena import Range
from gradcore.program.planning.plan import Plan
from gradcore.program.program import Program
from gradcore.program.replaying.capture import replay_of
from gradcore.program.replaying.replay import Replay
from gradcore.program.tracing.trace import Trace, read_afresh
from gradcore.program.tracing.trace_log import TraceLog

#: The name of the nodes of compiled calls.
COMPILED = "Compiled"


class Differentiable:
    """The replays of a program in two parts: one for each call that waits for its gradient at the same time."""

    def __init__(self, trace: Trace, plan: Plan, capture: bool = True) -> None:
        assert trace.second is not None
        self.trace = trace
        self.program = trace.program
        self.plan = plan
        self._second = trace.second
        self._free: list[Replay] = []
        self._capture = capture
        self.needed = needed_cotangents(self.program)
        specs = self.program.read_later
        present = read_afresh(self.program.instructions[self.program.split:], trace.storages)
        #: The positions of the inputs that the second part reads as they were in the first.
        self._read = [k for k, x in enumerate(self.program.inputs) if x.buffer in specs.keys() - present]
        #: The captured buffers that it reads so.
        self._later = [(b, specs[b]) for b in trace.storages if b in specs.keys() - present]

    def run(self, inputs: list[Any]) -> list[Any]:
        """The results; those that had a graph in the traced run have one, if gradients are recorded."""
        try:
            replay = self._free.pop()
        except IndexError:
            replay = replay_of(self.trace, self.plan, self._capture)
        results = replay.run(inputs)
        second = self._second
        edges = [(x, 0) if isinstance(x, Leaf) else inputs[x].edge for x in second.targets]
        call = _Call(self, replay)
        differentiable = [results[k] for k in second.roots]
        # The captured tensors must not be written to in between either.
        captured = (value_over(self.trace.storages[b], spec) for b, spec in self._later)
        kept = [*(inputs[k] for k in self._read), *captured, *replay.in_slots(1).values()]
        node = custom_node(COMPILED, edges, differentiable, kept, call.rule)
        for k, result in enumerate(differentiable):
            result.edge = (node, k)
        return results

    def give_back(self, replay: Replay) -> None:
        replay.release()
        self._free.append(replay)

    def let_go(self) -> None:
        """Nothing to do: its calls leave no gradients in leaves."""

    def explain(self) -> list[str]:
        """How calls are run, in the words of a replay that waits for no gradient."""
        return self._free[-1].explain() if self._free else []


def needed_cotangents(program: Program) -> list[set[int]]:
    """For each gradient that the second part of a program computes: the positions of the cotangents that it depends on."""
    reached: dict[int, set[int]] = {}
    for k, x in enumerate(program.cotangents):
        reached.setdefault(x.buffer, set()).add(k)
    for i in program.instructions[program.split:]:
        found = set().union(*(reached.get(x.buffer, ()) for x in i.tensors()))
        for x in (*i.outputs, *i.targets()):
            reached[x.buffer] = found
    # A gradient that depends on no cotangent is 0, and is returned if any cotangent is there.
    return [set() if x is None else reached.get(x.buffer) or set(range(len(program.cotangents))) for x in program.gradients]


class _Call:
    """The node of one call, whose gradient can run once. When its graph dies, its arena is free again."""

    __slots__ = ("owner", "replay")

    def __init__(self, owner: Differentiable, replay: Replay) -> None:
        #: None when the gradient has run: who holds a result then, as a list of losses does, holds no program.
        self.owner: Differentiable | None = owner
        self.replay: Replay | None = replay

    @property
    def in_arena(self) -> list[Range]:
        """The ranges of the arena that are kept until the gradient has run, which :func:`gradcore.graph` shows."""
        return [] if self.replay is None else self.replay.lasting()

    def rule(self, gs: list[Any], values: list[Any]) -> list[Any]:
        if local.state.grad:
            raise NoSecondDerivative("a compiled function has no second derivative (create_graph=True): call it uncompiled")
        if self.replay is None:
            raise AlreadyReleased("Trying to backward through the graph a second time: a compiled function releases its "
                                  "residuals after one backward, also with retain_graph=True. Call it again, or uncompiled")
        owner, replay, self.replay = self.owner, self.replay, None
        assert owner is not None
        if isinstance(log := tracer_of(replay.device.ledger.log), TraceLog):
            log.replayed = True
        try:
            specs = [x.spec for x in replay.program.cotangents]
            cotangents = [zeros(spec.shape, dtype=spec.dtype, device=replay.device) if g is None
                          else g if g.spec.contiguous else g.contiguous() for g, spec in zip(gs, specs, strict=False)]
            found = replay.backward(cotangents)
            # An input that contributes only to results without a cotangent has no gradient (None), rather than one of 0.
            return [g if any(gs[k] is not None for k in needed) else None
                    for g, needed in zip(found, owner.needed, strict=True)]
        finally:
            self.owner = None
            owner.give_back(replay)

    def __del__(self) -> None:
        if self.replay is not None and self.owner is not None:
            self.owner.give_back(self.replay)
