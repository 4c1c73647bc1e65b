"""Makes the trace of a recorded run, with the reasons why it cannot be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

from gradcore.devices.storage import Storage
from gradcore.engine.leaf import Leaf
from gradcore.engine.plans import Call
from gradcore.errors import TraceError
from gradcore.events import ALLOC, BORROW, DROP, FREE, KEEP, LAUNCH, MARK, RETAG, Raw
from gradcore.memory.ledger import opening
from gradcore.program.program import Buffer, Instruction, Number, Operand, Program, Update, with_lifetimes
from gradcore.program.tracing.escapes import escaped, gradient_serial
from gradcore.program.tracing.recorder import Recorded
from gradcore.program.tracing.trace import Second, Trace
from gradcore.program.tracing.trace_log import DISTURBED

#: Why a function that does both is not replayed.
TWICE = ("its result has a graph, although it computes gradients or updates parameters itself: return the result detached, or "
         "do one of the two outside")
#: Said of a buffer that was there before the run, and that nothing holds at its end.
FREED = "was read and then freed"


class Builder:
    """Makes a trace of what was recorded, with buffers numbered in order of appearance."""

    def __init__(self, recorded: Recorded, inputs: list[Any], outputs: list[Any], second: Second | None) -> None:
        self._recorded = recorded
        self._second = second
        self._buffers: list[Buffer] = []
        self._index: dict[int, int] = {}
        self._storages: dict[int, Storage] = {}
        self._slots: dict[int, Leaf] = {}
        self._made = {r[1]: r for r in recorded.records if r[0] == ALLOC and r[1] not in recorded.constants}
        self._known = {r[1]: r for r in (*recorded.opening, *recorded.records) if r[0] == ALLOC}
        self._obstacles = [*(() if second is None else second.obstacles), *recorded.reasons.values()]
        self._leaves = recorded.slots
        self._slot_serials = {serial: leaf for leaf, serial in self._leaves.items() if serial}
        self._inputs = tuple(map(self._input, inputs))
        self._results = outputs
        self._cotangents = () if second is None else tuple(map(self._input, second.cotangents))

    def trace(self, parts: tuple[int, ...] = (), results: Sequence[int] = ()) -> Trace:
        """The trace. For a chain, ``parts`` and ``results`` are the numbers of launches and of results of each graph."""
        recorded = self._recorded
        launches = [r for r in recorded.records if r[0] == LAUNCH]
        updates = {at: k for k, (at, *_) in enumerate(recorded.updates)}
        instructions, kernels = [], []
        if len(launches) != len(recorded.launches):
            raise TraceError("a traced function opened and closed a step (gradcore.step) or another recording, or ran a graph "
                             "or a loaded program: do that around the call")
        for k, (record, (call, operands)) in enumerate(zip(launches, recorded.launches, strict=True)):
            instructions.append(self._instruction(record, call, operands, updates.get(k)))
            kernels.append(call.kernel)
        outputs = tuple(map(self._operand, self._results))
        left, presence = self._gradients()
        second = self._second
        gradients = () if second is None else tuple(None if g is None else self._operand(g) for g in second.gradients)
        survivors = {o.buffer for _, o in left if o is not None} | {o.buffer for o in gradients if o is not None}
        if second is None:
            survivors |= {o.buffer for o in outputs}
        program = Program(
            recorded.device.name, tuple(self._buffers), tuple(instructions), self._inputs, outputs,
            tuple(Update.of(optimizer, group, kept) for _, optimizer, group, _, kept in recorded.updates),
            None if second is None else second.split, self._cotangents, gradients)
        if second is not None:
            # The program describes them; the tensors of this run are freed.
            second.cotangents, second.gradients = [], []
            written = {self._buffers[x.buffer].kind for i in instructions for x in i.targets()}
            if "input" in written:
                self._obstacles.append("it writes to an argument whose gradient will be needed")
            if "gradient slot" in written or recorded.updates or any(o is not None for _, o in left):
                self._obstacles.append(TWICE)
        if parts:
            # The tensors of the traced runs stay alive for the next graph of the chain.
            survivors = set()
        else:
            self._obstacles += self._escaped(survivors | {o.buffer for o in (*outputs, *self._cotangents)})
        return Trace(
            with_lifetimes(program, survivors, parts, results), kernels, self._storages, self._slots, left, presence,
            [(ref(o), g, p) for _, o, g, p, _ in recorded.updates], self._obstacles, second,
            invocations=[call.invocation for call, _ in recorded.launches], script=self.script(recorded.records),
            leaves={leaf: self._index[serial] for leaf, serial in recorded.leaves.items() if serial in self._index},
            dropped={} if second is not None else self._dropped({leaf for leaf, _ in left}))

    def _dropped(self, leaves: set[Leaf]) -> dict[int, int]:
        """The gradients of before that these leaves lost, as far as they were freed: see :attr:`Trace.dropped`."""
        found, launches = {}, 0
        for r in self._recorded.records:
            launches += r[0] == LAUNCH
            b = self._index.get(r[1]) if r[0] == FREE else None
            # Memory of another library does not count.
            if b is not None and self._slots.get(b) in leaves and self._buffers[b].tag.op != BORROW:
                found[b] = launches
        return found

    def script(self, records: list[Raw]) -> list[tuple[Any, ...]]:
        """The records beyond launches and lifetimes: marks, and what is kept for backward; with launches as mere positions."""
        found: list[tuple[Any, ...]] = []
        for r in records:
            if r[0] == LAUNCH:
                found.append((LAUNCH,))
            elif r[0] == MARK and r[2] != "step":
                found.append((MARK, r[1], r[2]))
            elif r[0] in (KEEP, DROP) and r[1] in self._index:
                found.append((r[0], self._index[r[1]], *r[2:]))
        return found

    def _gradients(self) -> tuple[list[tuple[Leaf, Operand | None]], dict[Leaf, bool]]:
        """The gradients that the run left in the slots of leaves, and which leaves must have a gradient, or none, before it."""
        left: list[tuple[Leaf, Operand | None]] = []
        presence: dict[Leaf, bool] = {}
        for leaf, before in self._leaves.items():
            now = gradient_serial(leaf)
            if now and now != before:
                left.append((leaf, self._operand(leaf.grad)))
            elif before and not now:
                left.append((leaf, None))
            if before in self._index:
                presence[leaf] = True
                if self._slot_serials[before] is not leaf:
                    self._obstacles.append("gradients of several parameters lie in the same memory")
            elif not before and now:
                # If there were a gradient, the run would have added to it.
                presence[leaf] = False
        given = [x.buffer for _, x in left if x is not None]
        if len({*given}) < len(given):
            self._obstacles.append("it gives several parameters gradients in the same memory: clone() them")
        for r in self._recorded.records:
            # What was allocated under another tag, and became a gradient, or a parameter of a module made inside, later.
            if r[0] == RETAG and r[1] in self._index and self._buffers[self._index[r[1]]].kind == "made":
                self._buffers[self._index[r[1]]] = replace(self._buffers[self._index[r[1]]], tag=r[2])
        return left, presence

    def _escaped(self, survivors: set[int]) -> list[str]:
        recorded = self._recorded
        if DISTURBED in recorded.reasons:
            # What the other thread has made is among what is live.
            return []
        kept = {s for s, index in self._index.items() if index in survivors}
        return escaped(recorded.device, recorded.leaves, recorded.slots, self._made, kept, self._results)

    def _add(self, serial: int, kind: str, storage: Storage | None) -> int:
        if serial in self._index:
            return self._index[serial]
        index = self._index[serial] = len(self._buffers)
        record = self._known.get(serial)
        if record is None:
            # Pinned memory has a ledger of its own.
            if storage is None:
                raise TraceError("a traced function allocates pinned memory: allocate it outside, and pass it as an argument "
                                 "or let the function refer to it")
            record = opening(storage.block)
        nbytes = record[4] if storage is None else storage.extent
        self._buffers.append(Buffer(index, kind, nbytes, record[7]))
        if kind == "gradient slot":
            self._slots[index] = self._slot_serials[serial]
        elif kind == "captured":
            if storage is None:
                self._obstacles.append(f"{record[7].site}: the result of {record[7].op} from before the run {FREED}")
            else:
                self._storages[index] = storage
                # Its tag may have changed since the log began.
                self._buffers[index] = Buffer(index, kind, nbytes, storage.block.tag)
        return index

    def _input(self, tensor: Any) -> Operand:
        return Operand(self._add(tensor.storage.serial, "input", tensor.storage), tensor.spec)

    def _operand(self, tensor: Any) -> Operand:
        return Operand(self._buffer(tensor.storage.serial, tensor.storage), tensor.spec)

    def _buffer(self, serial: int, storage: Storage | None) -> int:
        """The index of the buffer with this serial, which is added if it is new."""
        kind = "made" if serial in self._made else "gradient slot" if serial in self._slot_serials else "captured"
        return self._add(serial, kind, storage)

    def _instruction(self, record: Raw, call: Call, operands: list[Any], update: int | None) -> Instruction:
        _, _, tag, number, serials, outputs, _ = record
        found: list[Any] = []
        # An update's operands after its lists of tensors, of which some may be tensors: a learning rate, say.
        single = [i for k, group in enumerate(call.positions) if k not in call.op.lists for i in group]
        for i, (operand, serial) in enumerate(zip(operands, serials, strict=True)):
            if type(operand) is tuple:
                storage = operand[0]()
                # A gradient may have taken the place of the operand since.
                there = storage if storage is not None and storage.serial == serial else None
                found.append(Operand(self._buffer(serial, there), operand[1]))
            elif update is not None and operand is not None:
                found.append(Number(update, single.index(i)))
            else:
                found.append(operand)
        made = tuple(Operand(self._buffer(serial, None), spec)
                     for serial, spec in zip(outputs, (*call.specs, *(s for _, s in call.aux)), strict=False))
        workspace = None
        if call.workspace is not None:
            index = len(self._buffers)
            self._buffers.append(Buffer(index, "made", call.workspace.nbytes,
                                        tag._replace(role="workspace", spec=None)))
            workspace = Operand(index, call.workspace)
        return Instruction(call.op.name, tuple(found), tuple(map(len, call.positions)), tuple(call.attrs.items()), made,
                           tuple(call.writes), workspace, tag, number)
