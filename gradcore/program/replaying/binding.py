"""Binds a program to memory: its calls to an arena, and the gradients and other ranges that stay alive in that after a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import ref

from gradcore.engine.value import value_over
from gradcore.events import Tag
from gradcore.memory.arena import Range, close_ranges, open_ranges
from gradcore.memory.resource import Block
from gradcore.program.planning.plan import Plan
from gradcore.program.program import Operand
from gradcore.program.replaying.arena import Arena, Part
from gradcore.program.replaying.bound_calls import BoundCalls
from gradcore.program.replaying.left import Left, is_any_held
from gradcore.program.replaying.narration import waiting_in
from gradcore.program.tracing.trace import Trace
from gradcore.spec import TensorSpec, round_up


class Binding:
    """An arena, the calls that a replay runs over it, and which of its ranges stay alive from run to run."""

    def __init__(self, trace: Trace, plan: Plan, arena: Arena) -> None:
        self.trace = trace
        self.program = trace.program
        self.plan = plan
        self.device = arena.device
        self.arena = arena
        #: By buffer, created when first used.
        self._parts: dict[int, Part] = {}
        self._origins: dict[int, tuple[TensorSpec, Tag, Any]] = {}
        self.calls = BoundCalls(trace, plan, self.device, self._block)
        #: Other lists have these records themselves: another reference to a gradient would look as if the user held it.
        self.gradients = {leaf: self._show(Left(leaf, x)) for leaf, x in trace.left}
        #: Those whose former gradients a run does not read; those whose it reads and finds in the places of its own perhaps;
        #: and those whose it reads and must find elsewhere.
        self.replaced, self.renewed, self.read = list[Left](), list[Left](), list[Left]()
        replaced, renewed = {*trace.replaced}, {*trace.renewed.values()}
        for leaf, left in self.gradients.items():
            (self.replaced if leaf in replaced else self.renewed if leaf in renewed else self.read).append(left)
        #: Those whose former gradients a run reads and frees, by the instruction ahead of which it does.
        self.freed: dict[int, list[Left]] = {}
        for b, at in trace.dropped.items():
            self.freed.setdefault(at, []).append(self.gradients[trace.slots[b]])
        #: Requested and allocated bytes of all that is freed, and of what is never found in the places of its own.
        self.freed_bytes = self._bytes_of(trace.dropped)
        self.freed_elsewhere = self._bytes_of(b for b in trace.dropped if trace.slots[b] not in renewed)
        #: Parts that were left to who holds a gradient in them; while one exists, the arena cannot be used again.
        self.left_to_holders: list[ref[Part]] = []
        #: Do all ranges that stay alive count as allocated?
        self.is_open = False
        own = {x.buffer for _, x in trace.left if x is not None}
        self.waiting = waiting_in(trace)
        # No program has both.
        self.set_lasting([*self.waiting, *(b.index for b in self.program.made() if b.index in own)])
        for b, holders in self.waiting.items():
            self.part(b).block.keepers = [node for node, _ in holders]

    def _bytes_of(self, buffers: Iterable[int]) -> tuple[int, int]:
        """The requested and the allocated bytes of buffers."""
        sizes = [self.program.buffers[b].nbytes for b in buffers]
        return sum(sizes), sum(map(round_up, sizes))

    def set_lasting(self, buffers: list[int]) -> None:
        """Set the buffers that stay alive after a run: gradients, or what a later part reads."""
        self.lasting: list[Range] = [self.part(b).block for b in buffers]
        #: Requested and allocated bytes.
        self.lasting_bytes = sum(b.requested for b in self.lasting), sum(b.size for b in self.lasting)

    def _show(self, left: Left) -> Left:
        """Let a record have the gradient in the present part of its buffer."""
        if left.operand is not None:
            left.gradient = self.shown(left.operand)
            left.array = left.gradient.array
        return left

    def leave_to_holder(self, left: Left) -> None:
        """Leave a gradient to who holds it, so that it is freed with its holder; another stands for its place from now on."""
        assert left.operand is not None
        buffer = left.operand.buffer
        old: Part = left.gradient.storage
        if self._parts.get(buffer) is not old:
            return
        del self._parts[buffer]
        new: Part = self._show(left).gradient.storage
        new.replay, old.replay = old.replay, None
        self.lasting[self.lasting.index(old.block)] = new.block
        self.left_to_holders = [part for part in self.left_to_holders if part() is not None] + [ref(old)]
        self.is_open = False

    def open(self, serials: Sequence[int] = ()) -> None:
        """Count the ranges that stay alive as allocated: under new serials, or those that the log has already."""
        open_ranges(self.device.ledger, self.lasting, serials)
        self.is_open = True

    def close(self, ranges: Iterable[Range] | None = None) -> None:
        """Stop counting the ranges that stay alive, or these of them."""
        close_ranges(self.device.ledger, self.lasting if ranges is None else ranges)
        self.is_open = False

    def _block(self, buffer: int) -> Block:
        """The memory of a made or captured buffer."""
        return self.trace.storages[buffer].block if buffer in self.trace.storages else self.part(buffer).block

    def part(self, buffer: int) -> Part:
        """A made buffer, as a range of the arena."""
        if buffer not in self._parts:
            b = self.program.buffers[buffer]
            self._parts[buffer] = Part(self.arena, self.plan.offsets[buffer], b.nbytes, b.tag,
                                       self.program.node_of(b))
        return self._parts[buffer]

    def shown(self, x: Operand) -> Any:
        """A tensor over a made or captured buffer, without a copy."""
        return value_over(self.trace.storages[x.buffer] if x.buffer in self.trace.storages else self.part(x.buffer), x.spec)

    def copied(self, x: Operand) -> tuple[TensorSpec, Tag, Any]:
        """For the copy of an output: the spec of its bytes, their tag and their array. Computed once for each arena."""
        found = self._origins.get(x.buffer)
        if found is None:
            buffer = self.program.buffers[x.buffer]
            spec = TensorSpec.of((buffer.nbytes,), "uint8")
            found = spec, buffer.tag, self.device.array(self._block(x.buffer), spec)
            self._origins[x.buffer] = found
        return found

    def is_held(self) -> bool:
        """Does anything but its leaf hold a gradient that a run left, or will the next run read one that lies in the arena?"""
        return is_any_held(self.gradients.values()) or (bool(self.read or self.left_to_holders) and (
            any(left.is_in_place() for left in self.read) or any(part() is not None for part in self.left_to_holders)))

