"""Binds a program's calls to memory: to an arena, to captured storages, and to places that each run fills with its own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from gradcore.devices.calls import Changing, KernelCall
from gradcore.devices.device import Device
from gradcore.engine.node import Leaf
from gradcore.engine.value import make_value
from gradcore.events import TAGS
from gradcore.memory.arena import Range
from gradcore.memory.resource import Block
from gradcore.program.arena import Arena, Part
from gradcore.program.fusion import groups
from gradcore.program.narration import waiting_in
from gradcore.program.plan import Plan
from gradcore.program.program import Instruction, Number, Operand
from gradcore.program.recorder import Trace
from gradcore.program.stand_ins import Place, StandIns
from gradcore.spec import TensorSpec


class Binding:
    """The calls that a replay runs over one arena, and the places among their arguments that change from run to run."""

    def __init__(self, trace: Trace, plan: Plan, device: Device, arena: Arena) -> None:
        self.trace = trace
        self.program = trace.program
        self.plan = plan
        self.device = device
        self.arena = arena
        #: By buffer, created when first used.
        self._parts: dict[int, Part] = {}
        self._origins: dict[int, tuple[TensorSpec, int, Any]] = {}
        #: By buffer of an input, cotangent or gradient slot: the places that take its array.
        self.patches: dict[int, list[Place]] = {}
        self._stand_ins = StandIns(device, self.program)
        #: By update: the places of its numbers, as (list, index in the list, position among the update's operands).
        self.numbers: list[list[tuple[Any, Any, int]]] = [[] for _ in trace.updates]
        steps = self._steps()
        parts = [slice(*span) for span in self.program.spans]
        #: By part: its calls, and the instruction of each, valid if the device does not rearrange them.
        self.calls: list[list[KernelCall]] = [device.arranged(list(chain(*steps[part]))) for part in parts]
        self.callers = [[i for i, step in zip(self.program.instructions[part], steps[part], strict=True) for _ in step]
                        for part in parts]
        self.patches |= self._stand_ins.places(list(chain(*self.calls)))
        self.gradients: list[tuple[Leaf, Any]] = [(leaf, None if x is None else self.shown(x)) for leaf, x in trace.left]
        read = set(trace.slots.values())
        # The pairs themselves: another reference to a gradient would look as if the user held it.
        self.replaced = [pair for pair in self.gradients if pair[0] not in read]
        left = {x.buffer for _, x in trace.left if x is not None}
        self.waiting = waiting_in(trace)
        self.leave(list(self.waiting) if len(parts) > 1 else [b.index for b in self.program.made() if b.index in left])
        for b, holders in self.waiting.items():
            self.part(b).range.keepers = [node for node, _ in holders]

    def leave(self, buffers: list[int]) -> None:
        """Set the buffers that stay alive after a run: gradients, or what a later part reads."""
        self.lasting: list[Range] = [self.part(b).range for b in buffers]
        #: Requested and allocated bytes.
        self.lasting_bytes = sum(b.requested for b in self.lasting), sum(b.size for b in self.lasting)

    def _steps(self) -> list[list[KernelCall]]:
        """The calls of each instruction."""
        steps: list[list[KernelCall]] = []
        together = list(groups(self.program))
        #: Calls that may be fused are not written out into smaller ones before.
        ends = {k for group in together for k in (group.first, group.first + group.length - 1)}
        for kernel, instruction in zip(self.trace.kernels, self.program.instructions, strict=True):
            args: list[Any] = []
            workspace = () if instruction.workspace is None else (instruction.workspace,)
            for x in (*instruction.operands, *instruction.outputs, *workspace):
                if isinstance(x, Number):
                    self.numbers[x.update].append((args, len(args), x.position))
                args.append(self._argument(x, args) if isinstance(x, Operand) else x)
            steps.append([(kernel, args)] if len(steps) in ends else self._written_out(instruction, kernel, args))
        for kind, first, length in together:
            fused = self.device.fused(kind, steps[first:first + length])
            if fused is None or self._stand_ins.hidden(list(chain(*fused))):
                for k in (first, first + length - 1):
                    steps[k] = self._written_out(self.program.instructions[k], *steps[k][0])
            else:
                steps[first:first + length] = fused
        return steps

    def _argument(self, x: Operand, args: list[Any]) -> Any:
        if self.program.buffers[x.buffer].kind in ("input", "gradient slot"):
            found = self._stand_ins.array(x)
            if found is None:
                self.patches.setdefault(x.buffer, []).append((args, len(args), x.spec))
            return found
        return self.device.array(self._block(x.buffer), x.spec)

    def _written_out(self, instruction: Instruction, kernel: Callable[..., Any], args: list[Any]) -> list[KernelCall]:
        """The smaller calls that a kernel makes on these arguments, or its own if a run could not change all that it must."""
        numbers = {k: Changing(k) for k, x in enumerate(instruction.operands) if isinstance(x, Number)}
        calls = self.device.written_out(instruction.op, kernel, [numbers.get(k, a) for k, a in enumerate(args)])
        if calls is None or self._stand_ins.hidden(calls):
            return [(kernel, args)]
        for k, number in numbers.items():
            x = instruction.operands[k]
            places = self.numbers[x.update]
            places[:] = [p for p in places if p[0] is not args or p[2] != x.position]
            places += [(a, at, x.position) for _, a in calls for at, v in enumerate(a) if v is number]
            places += [(cell, (), x.position) for cell in number.cells]
        return calls

    def _block(self, buffer: int) -> Block:
        """The memory of a made or captured buffer."""
        return self.trace.storages[buffer].block if buffer in self.trace.storages else self.part(buffer).block

    def part(self, buffer: int) -> Part:
        """A made buffer, as a range of the arena."""
        if buffer not in self._parts:
            b = self.program.buffers[buffer]
            node = self.program.instructions[b.first].node if 0 <= b.first < len(self.program.instructions) else 0
            self._parts[buffer] = Part(self.arena, self.plan.offsets[buffer], b.nbytes, TAGS.index(b.tag), node)
        return self._parts[buffer]

    def shown(self, x: Operand) -> Any:
        """A tensor over a made or captured buffer, without a copy."""
        storage = self.trace.storages[x.buffer] if x.buffer in self.trace.storages else self.part(x.buffer)
        return make_value(storage, x.spec, self.device.array(storage.block, x.spec), None)

    def copied(self, x: Operand) -> tuple[TensorSpec, int, Any]:
        """For the copy of an output: the spec of its bytes, their tag and their array. Computed once for each arena."""
        found = self._origins.get(x.buffer)
        if found is None:
            buffer = self.program.buffers[x.buffer]
            spec = TensorSpec.of((buffer.nbytes,), "uint8")
            found = spec, TAGS.index(buffer.tag), self.device.array(self._block(x.buffer), spec)
            self._origins[x.buffer] = found
        return found
