"""Replaying a trace: its kernels, called on planned addresses of one arena. No graph, no allocation but for what is returned.

What a run returns is copied out of the arena, so that no later replay writes to it. Gradients stay in the arena, since they are
large and a step that begins by dropping them makes room for the next; should somebody hold one when the next replay begins,
that arena is left to its holder and the replay takes another.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from gradcore.devices.calls import Call, Changing
from gradcore.devices.device import Device, Storage, get_device
from gradcore.engine.node import Leaf, make_value
from gradcore.engine.state import local
from gradcore.events import TAGS
from gradcore.forking import long
from gradcore.memory.arena import Range, close_ranges, open_ranges
from gradcore.memory.resource import Block
from gradcore.program.arena import Arena, Part, moved
from gradcore.program.fusion import groups
from gradcore.program.narration import most_live, narrate
from gradcore.program.plan import Plan
from gradcore.program.program import Instruction, Number, Operand
from gradcore.program.recorder import Trace
from gradcore.program.stand_ins import Place, StandIns
from gradcore.spec import TensorSpec


class Replay:
    """A trace bound to an arena, and to the memory of what it captured. Call :meth:`run` with tensors for its inputs."""

    def __init__(self, trace: Trace, plan: Plan) -> None:
        self.trace = trace
        self.program = trace.program
        self.plan = plan
        self.device: Device = get_device(self.program.device)
        self._lock = long(threading.Lock())
        firsts = [params[0] for _, _, params in trace.updates]
        #: By update: the last one before it in the same run of the same parameters, which counts on from there.
        self._updated_before = [next((j for j in range(k - 1, -1, -1) if firsts[j] is p), None) for k, p in enumerate(firsts)]
        written = self.program.written()
        #: What a run writes to beside its arena: storage and tag of the last write, by buffer for what it is given.
        self._written = [(trace.storages[b], self._tag(k)) for b, k in written.items() if b in trace.storages]
        self._written_later = [(b, self._tag(k)) for b, k in written.items() if b not in trace.storages]
        count, split = len(self.program.instructions), self.program.split
        parts = (0, count if split is None else split), (split or 0, count)
        self._most = [most_live(self.program, plan.shared, *part) for part in parts]
        self._arena: Arena | None = None
        self._calls: list[Call] = []
        #: Where the second part of a program in two begins among the calls.
        self._split: int | None = None
        self._gradients: list[tuple[Leaf, Any]] = []
        self._lasting: list[Range] = []
        self._inputs: list[Any] = []

    def _tag(self, k: int) -> int:
        return TAGS.index(self.program.instructions[k].tag)

    # -- binding -------------------------------------------------------------------------------------------------------

    def _bind(self) -> None:
        """Take an arena, and make every call's arguments over it."""
        self._arena = self._take_arena()
        #: By buffer, as far as anybody asked for them.
        self._parts: dict[int, Part] = {}
        self._origins: dict[int, tuple[TensorSpec, int, Any]] = {}
        self._clone = self.device.kernel("clone")
        #: By buffer that a run brings: every place that takes an array of it.
        self._patches: dict[int, list[Place]] = {}
        self._stand_ins = StandIns(self.device, self.program)
        #: By update: the places of its numbers.
        self._numbers: list[list[tuple[Any, Any, int]]] = [[] for _ in self.trace.updates]
        steps: list[list[Call]] = []
        together = list(groups(self.program))
        #: What may be done at one go is not taken apart before.
        ends = {k for group in together for k in (group.first, group.first + group.length - 1)}
        for kernel, instruction in zip(self.trace.kernels, self.program.instructions, strict=True):
            args: list[Any] = []
            workspace = () if instruction.workspace is None else (instruction.workspace,)
            for x in (*instruction.operands, *instruction.outputs, *workspace):
                if isinstance(x, Number):
                    self._numbers[x.update].append((args, len(args), x.position))
                args.append(self._argument(x, args) if isinstance(x, Operand) else x)
            steps.append([(kernel, args)] if len(steps) in ends else self._written_out(instruction, kernel, args))
        for kind, first, length in together:
            fused = self.device.fused(kind, steps[first:first + length])
            if fused is None or self._stand_ins.hidden(list(chain(*fused))):
                for k in (first, first + length - 1):
                    steps[k] = self._written_out(self.program.instructions[k], *steps[k][0])
            else:
                steps[first:first + length] = fused
        #: What each call is for, as long as the device does not arrange them.
        self._callers = [i for i, step in zip(self.program.instructions, steps, strict=True) for _ in step]
        split = self.program.split
        self._calls = self.device.arranged(list(chain(*steps[:split])))
        if split is not None:
            self._split = len(self._calls)
            self._calls += self.device.arranged(list(chain(*steps[split:])))
        self._patches |= self._stand_ins.places(self._calls)
        self._gradients = [(leaf, None if x is None else self._shown(x)) for leaf, x in self.trace.left]
        read = set(self.trace.slots.values())
        # The pairs themselves: another reference to a gradient would look like a holder.
        self._replaced = [pair for pair in self._gradients if pair[0] not in read]
        left = {x.buffer for _, x in self.trace.left if x is not None}
        #: What lives on when a run has ended: gradients, or what the second part will read.
        self._lasting = [self._part(b.index).range for b in self.program.made()
                         if (b.index in left if split is None else b.first < split <= b.last)]
        self._lasting_bytes = (sum(b.requested for b in self._lasting), sum(b.size for b in self._lasting))

    def _take_arena(self) -> Arena:
        return Arena.of(self.device, self.plan.nbytes, self.program)

    def _written_out(self, instruction: Instruction, kernel: Callable[..., Any], args: list[Any]) -> list[Call]:
        """The kernel's call, or what it comes to on these arguments, where a run can reach all that changes among them."""
        numbers = {k: Changing(k) for k, x in enumerate(instruction.operands) if isinstance(x, Number)}
        calls = self.device.written_out(instruction.op, kernel, [numbers.get(k, a) for k, a in enumerate(args)])
        if calls is None or self._stand_ins.hidden(calls):
            return [(kernel, args)]
        for k, number in numbers.items():
            x = instruction.operands[k]
            places = self._numbers[x.update]
            places[:] = [p for p in places if p[0] is not args or p[2] != x.position]
            places += [(a, at, x.position) for _, a in calls for at, v in enumerate(a) if v is number]
            places += [(cell, (), x.position) for cell in number.cells]
        return calls

    def _block(self, buffer: int) -> Block:
        """The bytes of a made buffer, or of a captured one."""
        return self.trace.storages[buffer].block if buffer in self.trace.storages else self._part(buffer).block

    def _part(self, buffer: int) -> Part:
        if buffer not in self._parts:
            assert self._arena is not None
            b = self.program.buffers[buffer]
            node = self.program.instructions[b.first].node if 0 <= b.first < len(self.program.instructions) else 0
            self._parts[buffer] = Part(self._arena, self.plan.offsets[buffer], b.nbytes, TAGS.index(b.tag), node)
        return self._parts[buffer]

    def _argument(self, x: Operand, args: list[Any]) -> Any:
        if self.program.buffers[x.buffer].kind in ("input", "gradient slot"):
            found = self._stand_ins.array(x)
            if found is None:
                self._patches.setdefault(x.buffer, []).append((args, len(args), x.spec))
            return found
        return self.device.array(self._block(x.buffer), x.spec)

    def _shown(self, x: Operand) -> Any:
        """A tensor over a range of the arena, or over what was captured."""
        storage = self.trace.storages[x.buffer] if x.buffer in self.trace.storages else self._part(x.buffer)
        return make_value(storage, x.spec, self.device.array(storage.block, x.spec), None)

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on tensors of the traced specs; what the traced run returned, in its order, as tensors without a graph."""
        with self._lock:
            if self._arena is None or self._held():
                self._bind()
            self._bring(inputs)
            for leaf, g in self._replaced:
                if leaf.grad is not g:
                    # The function drops what it found there before it makes another.
                    leaf.grad = None
            updates: list[tuple[Any, dict[str, Any], list[Any]]] = []
            for places, before, (optimizer, group, params) in zip(self._numbers, self._updated_before, self.trace.updates,
                                                                  strict=True):
                numbers = {}
                if optimizer._numbers:
                    numbers = optimizer._advanced(optimizer.state[params[0]] if before is None else updates[before][1])
                operands = optimizer._operands(group, numbers)
                updates.append((optimizer, numbers, params))
                for args, at, position in places:
                    args[at] = operands[position]
            try:
                self._play(slice(None), self._calls, inputs, 0)
            except BaseException:
                # Their bytes are those of other buffers by now, and the function had dropped them.
                for leaf, g in self._gradients:
                    leaf.grad = None if leaf.grad is g else leaf.grad
                raise
            finally:
                self._note_writes(inputs)
                self.release()
            for optimizer, numbers, params in updates:
                if numbers:
                    for p in params:
                        optimizer.state[p].update(numbers)
            results = self._results(inputs)
            for leaf, g in self._gradients:
                leaf.grad = g
            return results

    def _play(self, part: slice, calls: list[Call], inputs: Sequence[Any], first: int) -> None:
        """Run calls, and account for what was live meanwhile. What lasted from the run before is gone when it begins."""
        ledger = self.device.ledger
        if ledger.log is None and (not self._lasting or (self._lasting[0].serial and self.program.split is None)):
            # The same ranges close and open again, and nobody looks.
            local.state.launch(self._run_calls, calls, first)
            asked, taken = self._lasting_bytes
            ledger.passed(self._most[first][0] - asked, self._most[first][1] - taken)
            return
        close_ranges(ledger, self._lasting)
        local.state.launch(self._run_calls, calls, first)
        if ledger.log is not None:
            assert self._arena is not None
            narrate(self.device, self.trace, self.plan, self._arena.block, self._serials(inputs), part)
        ledger.passed(*self._most[first])
        if first == 0:
            open_ranges(ledger, self._lasting)

    def _run_calls(self, calls: list[Call], part: int) -> None:
        """Run the calls of the first part, 0, or the second."""
        run_calls(calls)

    def explain(self) -> list[str]:
        """How its calls are run, a line a part, where that is not one by one as a matter of course."""
        return []

    def _serials(self, inputs: Sequence[Any]) -> dict[int, int]:
        """What the log calls the buffers that the program does not make."""
        found = {buffer: storage.serial for buffer, storage in self.trace.storages.items()}
        found |= {x.buffer: t.storage.serial
                  for x, t in zip((*self.program.inputs, *self.program.cotangents), inputs, strict=False)}
        found |= {buffer: leaf.grad.storage.serial for buffer, leaf in self.trace.slots.items()}
        return found

    def _held(self) -> bool:
        """Does anybody hold a gradient of the last run, beside the leaf whose slot it lies in?"""
        # Of what lies in something an argument is a reference of its own, of a local it is none from Python 3.14 on.
        return any(pair[1] is not None and (sys.getrefcount(pair[1]) > 2 + (pair[0].grad is pair[1])
                                            or sys.getrefcount(pair[1].storage) > 3) for pair in self._gradients)

    def _bring(self, inputs: Sequence[Any]) -> None:
        """Point the calls at what this run was given, and at the gradients that it finds."""
        if self.device.several:
            self._note_stream(inputs)
        if not self._patches:
            return
        array = self.device.array
        for x, tensor in zip(self.program.inputs, inputs, strict=True):
            for args, at, spec in self._patches.get(x.buffer, ()):
                args[at] = tensor.array if spec is tensor.spec else array(tensor.storage.block, spec)
        for buffer, leaf in self.trace.slots.items():
            for args, at, spec in self._patches.get(buffer, ()):
                args[at] = array(leaf.grad.storage.block, spec)

    def _note_stream(self, inputs: Sequence[Any]) -> None:
        """All bytes of the run are used on the current stream, behind the run before, which used the same arena."""
        assert self._arena is not None
        stream, block = self.device.current, self._arena.block
        for user in (block.stream, *(block.users or ())):
            self.device.order(user, stream)
        block.use_on(stream)
        for storage in (*[t.storage for t in inputs], *self.trace.storages.values(),
                        *[leaf.grad.storage for leaf in self.trace.slots.values()]):
            storage.block.use_on(stream)

    def forward(self, inputs: Sequence[Any]) -> list[Any]:
        """The first part of a program in two. What the second needs stays in the arena, and of the inputs, until then."""
        if self._arena is None:
            self._bind()
        self._bring(inputs)
        self._inputs = list(inputs)
        try:
            self._play(slice(0, self.program.split), self._calls[:self._split], inputs, 0)
        finally:
            self._note_writes(inputs)
        return self._results(inputs)

    def backward(self, cotangents: Sequence[Any]) -> list[Any]:
        """The second part: a gradient for each of the program's ``gradients``, None where there is none."""
        for x, g in zip(self.program.cotangents, cotangents, strict=True):
            for args, at, spec in self._patches.get(x.buffer, ()):
                args[at] = self.device.array(g.storage.block, moved(spec, g.spec))
        given = [*self._inputs, *cotangents]
        self._play(slice(self.program.split, None), self._calls[self._split:], given, 1)
        copies: dict[int, Any] = {}
        return [None if x is None else self._result(x, given, copies) for x in self.program.gradients]

    def release(self) -> None:
        """Let go of what the run was given, and of what waits for a second part. A finaliser may call this."""
        self._inputs = []
        if self.program.split is not None:
            for block in self._lasting:
                block.let_go(self.device.memory.release)
        for places in self._patches.values():
            for args, at, _ in places:
                args[at] = None

    def _note_writes(self, inputs: Sequence[Any]) -> None:
        for storage, tag in self._written:
            storage.version += 1
            storage.written_by = tag
        for buffer, tag in self._written_later:
            storage = self._given(buffer, inputs)
            storage.version += 1
            storage.written_by = tag

    def _given(self, buffer: int, inputs: Sequence[Any]) -> Storage:
        if buffer in self.trace.slots:
            found: Storage = self.trace.slots[buffer].grad.storage
            return found
        return self._tensor(buffer, inputs).storage

    def _tensor(self, buffer: int, inputs: Sequence[Any]) -> Any:
        """What a run was given for a buffer: an argument, or a cotangent behind them."""
        given = zip((*self.program.inputs, *self.program.cotangents), inputs, strict=False)
        return next(t for x, t in given if x.buffer == buffer)

    def _results(self, inputs: Sequence[Any]) -> list[Any]:
        copies: dict[int, Any] = {}
        return [self._result(x, inputs, copies) for x in self.program.outputs]

    def _result(self, x: Operand, inputs: Sequence[Any], copies: dict[int, Any]) -> Any:
        """An output: a copy of what the arena holds, or a view of what was there before."""
        buffer = self.program.buffers[x.buffer]
        if buffer.kind == "captured":
            return self._shown(x)
        if buffer.kind != "made":
            storage, spec = self._given(x.buffer, inputs), x.spec
            if buffer.index in {c.buffer for c in self.program.cotangents}:
                # A gradient that is the cotangent itself, which may lie anywhere in its bytes.
                spec = moved(spec, self._tensor(x.buffer, inputs).spec)
            return make_value(storage, spec, self.device.array(storage.block, spec), None)
        copy: Storage | None = copies.get(x.buffer)
        if copy is None:
            spec, tag, source = self._copied(x)
            copy = copies[x.buffer] = self.device.allocate(spec.nbytes, tag)
            local.state.launch(self._clone, source, self.device.array(copy.block, spec))
        return make_value(copy, x.spec, self.device.array(copy.block, x.spec), None)

    def _copied(self, x: Operand) -> tuple[TensorSpec, int, Any]:
        """The bytes of an output: their spec, for whom they are copied, and where they lie; found out once an arena."""
        found = self._origins.get(x.buffer)
        if found is None:
            buffer = self.program.buffers[x.buffer]
            spec = TensorSpec.of((buffer.nbytes,), "uint8")
            found = spec, TAGS.index(buffer.tag), self.device.array(self._block(x.buffer), spec)
            self._origins[x.buffer] = found
        return found


def run_calls(calls: list[Call]) -> None:
    for kernel, args in calls:
        kernel(*args)
