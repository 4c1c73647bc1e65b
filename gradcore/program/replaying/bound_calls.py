"""A program's calls, bound to memory: to made and captured buffers, and to places that each run fills with its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from gradcore.devices.calls import Changing, KernelCall
from gradcore.devices.device import Device
from gradcore.memory.resource import Block
from gradcore.program.planning.fusion import groups
from gradcore.program.planning.plan import Plan
from gradcore.program.program import Instruction, Number, Operand
from gradcore.program.replaying.arena import moved, shift
from gradcore.program.replaying.stand_ins import Patch, StandIns
from gradcore.program.tracing.trace import Trace


class BoundCalls:
    """The calls that a replay runs over one arena, and the places among their arguments that change from run to run.

    ``block`` gives the memory of a made or captured buffer.
    """

    def __init__(self, trace: Trace, plan: Plan, device: Device, block: Callable[[int], Block]) -> None:
        program = self._program = trace.program
        self._plan = plan
        self._device = device
        self._stand_ins = StandIns(device, program)
        #: By buffer of an input, cotangent or gradient slot: the places that take its array.
        self.patches: dict[int, list[Patch]] = {}
        #: By update: the places of its numbers, as (list, index in the list, position among the update's operands).
        self.numbers: list[list[tuple[Any, Any, int]]] = [[] for _ in trace.updates]
        steps = self._steps(trace.kernels, block)
        parts = [slice(*span) for span in program.spans]
        #: By part: its calls, and the instruction of each.
        self.parts: list[list[KernelCall]] = [list(chain(*steps[part])) for part in parts]
        self.callers = [[i for i, step in zip(program.instructions[part], steps[part], strict=True) for _ in step]
                        for part in parts]
        #: The instructions of calls, by the id of their arguments.
        self._places = {id(args): k for k, step in enumerate(steps) for _, args in step}
        self.patches |= self._stand_ins.patches(list(chain(*self.parts)))

    def _steps(self, kernels: Sequence[Callable[..., Any]], block: Callable[[int], Block]) -> list[list[KernelCall]]:
        """The calls of each instruction."""
        steps: list[list[KernelCall]] = []
        together = list(groups(self._program))
        #: Calls that may be fused are not written out into smaller ones before.
        ends = {k for group in together for k in (group.first, group.first + group.length - 1)}
        for kernel, instruction in zip(kernels, self._program.instructions, strict=True):
            if instruction.outputs and instruction.outputs[0].buffer in self._plan.wholes:
                steps.append([])
                continue
            args: list[Any] = []
            for x in (*instruction.operands, *instruction.made()):
                if isinstance(x, Number):
                    self.numbers[x.update].append((args, len(args), x.position))
                args.append(self._argument(x, args, block) if isinstance(x, Operand) else x)
            steps.append([(kernel, args)] if len(steps) in ends else self._written_out(instruction, kernel, args))
        for kind, first, length in together:
            fused = self._device.fused(kind, steps[first:first + length])
            if fused is None or self._stand_ins.hidden(list(chain(*fused))):
                for k in (first, first + length - 1):
                    steps[k] = self._written_out(self._program.instructions[k], *steps[k][0])
            else:
                steps[first:first + length] = fused
        return steps

    def _argument(self, x: Operand, args: list[Any], block: Callable[[int], Block]) -> Any:
        if self._program.buffers[x.buffer].kind in ("input", "gradient slot"):
            found = self._stand_ins.array(x)
            if found is None:
                self.patches.setdefault(x.buffer, []).append((args, len(args), x.spec))
            return found
        x = self._plan.seen(x)
        return self._device.array(block(x.buffer), x.spec)

    def _written_out(self, instruction: Instruction, kernel: Callable[..., Any], args: list[Any]) -> list[KernelCall]:
        """The smaller calls that a kernel makes on these arguments, or its own if a run could not change all that it must."""
        numbers = {k: Changing(k) for k, x in enumerate(instruction.operands) if isinstance(x, Number)}
        calls = self._device.written_out(instruction.op, kernel, [numbers.get(k, a) for k, a in enumerate(args)])
        if calls is None or self._stand_ins.hidden(calls):
            return [(kernel, args)]
        for k, number in numbers.items():
            x = instruction.operands[k]
            places = self.numbers[x.update]
            places[:] = [p for p in places if p[0] is not args or p[2] != x.position]
            places += [(a, at, x.position) for _, a in calls for at, v in enumerate(a) if v is number]
            places += [(cell, (), x.position) for cell in number.cells]
        return calls

    def fill_in(self, traced: Sequence[Operand], given: Sequence[Any]) -> None:
        """Put the arrays of tensors that are given for the ``traced`` ones into their places.

        Those that are not needed any more are given by their serials.
        """
        array, patches = self._device.array, self.patches
        for x, tensor in zip(traced, given, strict=True):
            if type(tensor) is int:
                continue
            by = 0 if tensor.spec is x.spec else shift(tensor.spec, x.spec)
            for args, at, spec in patches.get(x.buffer, ()):
                spec = moved(spec, by) if by else spec
                args[at] = tensor.array if spec is tensor.spec else array(tensor.storage.block, spec)

    def fill_in_slots(self, gradients: dict[int, Any]) -> None:
        """Put the arrays of gradients, by the buffers of their slots, into their places."""
        for buffer, gradient in gradients.items():
            for args, at, spec in self.patches.get(buffer, ()):
                args[at] = self._device.array(gradient.storage.block, spec)

    def clear(self) -> None:
        """Take out what the last run was given."""
        for places in self.patches.values():
            for args, at, _ in places:
                args[at] = None

    def updated_before(self, call: KernelCall | None) -> list[int]:
        """The updates whose instructions come before that of a call; none if it is not known."""
        end = 0 if call is None else self._places.get(id(call[1]), 0)
        return [*{x.update: None for i in self._program.instructions[:end] for x in i.operands if isinstance(x, Number)}]


def run_calls(calls: Iterable[KernelCall]) -> None:
    for kernel, args in calls:
        kernel(*args)
