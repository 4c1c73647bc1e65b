"""Replays a trace: its kernels are called on planned addresses of one arena, and only results are allocated.

What a run returns is copied out of the arena, so that no later replay writes to it. Gradients stay in the arena, since they
are large, and a step that begins by dropping them makes room for the next. If something still holds one when the next replay
begins, that arena is left to its holder and the replay takes another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import length_hint
from typing import Any
from weakref import ref

from gradcore.devices.calls import KernelCall
from gradcore.devices.device import Device, get_device
from gradcore.devices.storage import Storage
from gradcore.devices.turns import is_shared, turn, use_again
from gradcore.engine.leaf import Leaf
from gradcore.engine.recipes import gathering, spare
from gradcore.engine.state import local
from gradcore.engine.value import value_over
from gradcore.events import Tag
from gradcore.forking import long
from gradcore.memory.arena import Range
from gradcore.memory.resource import Stream
from gradcore.program.planning.plan import Plan
from gradcore.program.program import Operand
from gradcore.program.replaying.arena import Arena, Part, moved, shift
from gradcore.program.replaying.binding import Binding
from gradcore.program.replaying.bound_calls import run_calls
from gradcore.program.replaying.counts import Counts, put
from gradcore.program.replaying.left import Left, is_any_held
from gradcore.program.replaying.narration import Narration
from gradcore.program.tracing.trace import Trace


class Replay:
    """A trace that can be run again, in an arena that the first run allocates. Call :meth:`run` with tensors for its inputs."""

    def __init__(self, trace: Trace, plan: Plan) -> None:
        self.trace = trace
        self.program = trace.program
        self.plan = plan
        self.device: Device = get_device(self.program.device)
        self._lock = long()
        self._clone = self.device.kernel("clone")
        self._counts = Counts(trace)
        #: States of generators that the calls draw from.
        self._in_turn = list(filter(is_shared, trace.storages.values()))
        written = {b: self.program.instructions[k].tag for b, k in self.program.written().items()}
        #: What a run writes to outside its arena, each with the tag of the last write: captured storages, then buffers
        #: of inputs and slots.
        self._written = [(trace.storages[b], tag) for b, tag in written.items() if b in trace.storages]
        self._written_later = [(b, tag) for b, tag in written.items() if b not in {*trace.storages, *trace.dropped}]
        self._most = [plan.most_live(self.program, *span, trace.dropped) for span in self.program.spans]
        self._bound: Binding | None = None
        #: The stream that all captured storages were last noted to be used on.
        self._noted: Stream | None = None
        #: The call that has raised, if one has in the present run.
        self._failed: KernelCall | None = None
        #: By buffer, the copies of results that the present run has allocated.
        self._made: dict[int, Storage] = {}
        #: Does the caller differentiate the results, which is a part of its own?
        self._in_two = self.program.split is not None
        #: Of a first part whose second has not run: the inputs that this reads, and the serials of the others; and by buffer
        #: the gradients in slots that this reads, in which there may be others by then.
        self._inputs: list[Any] = []
        self._found: dict[int, Any] = {}
        self._read_later = {*self.program.read_later, *(x.buffer for x in self.program.gradients if x is not None)}

    # -- binding -------------------------------------------------------------------------------------------------------

    def _bind(self) -> Binding:
        """Allocate an arena, and bind the calls to it."""
        # Frees what nothing holds of the old arena, and gradients that a run replaces: the new one may be the same memory.
        self._bound = None
        self._drop([*map(Left, self.trace.replaced)])
        self._bound = Binding(self.trace, self.plan, self._take_arena())
        for left in self._bound.gradients.values():
            if left.lies_in_arena():
                left.gradient.storage.replay = ref(self)
        return self._bound

    def _take_arena(self) -> Arena:
        return Arena.of(self.device, self.plan.nbytes, self.program)

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run on tensors of the traced specs, and return the outputs, in the order of the traced run, without a graph.

        Of a program in two parts the first; what the second reads of the arena and of the inputs is held until it has run.
        """
        with self._lock:
            try:
                if not self._in_turn:
                    return self._run(inputs)
                with turn(*self._in_turn):
                    return self._run(inputs)
            finally:
                # An interrupt may have come before they were returned.
                self._made = {}

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        bound = self._bind() if self._bound is None or self._bound.is_held() else self._bound
        if gathering:
            for storage, _ in self._written_to(inputs):
                spare(storage)
        if self._in_two:
            self._found = {b: leaf.grad for b, leaf in self.trace.slots.items() if b in self._read_later}
            self._inputs = [t if x.buffer in self._read_later else t.storage.serial
                            for x, t in zip(self.program.inputs, inputs, strict=True)]
        self._bring(bound, inputs)
        self._drop(bound.replaced)
        counts = self._counts.brought(bound.calls.numbers)
        try:
            self._play(bound, 0, inputs)
        except BaseException:
            # Other buffers may have overwritten them by now, and the function had dropped them.
            for leaf, left in bound.gradients.items():
                leaf.grad = None if leaf.grad is left.gradient else leaf.grad
            bound.close()
            # What was updated before is updated.
            put(counts[k] for k in bound.calls.updated_before(self._failed))
            raise
        finally:
            self._failed = None
            for storage, tag in self._written_to(inputs):
                storage.version += 1
                storage.written_by = tag
            if not self._in_two:
                self.release()
        put(counts)
        results = [self._result(bound, x, inputs, self._made) for x in self.program.outputs]
        self._drop(bound.read)
        for leaf, left in bound.gradients.items():
            leaf.grad = left.gradient
        return results

    def _drop(self, entries: Sequence[Left]) -> None:
        """Drop the gradients that this run replaces, as the traced function did. Replays that had left them let them go."""
        if not entries:
            return
        lenders = set()
        for left in entries:
            leaf = left.leaf
            if leaf.grad is not left.gradient:
                if leaf.grad is not None:
                    lenders.add(leaf.grad.storage.lender)
                leaf.grad = None
        for lender in lenders:
            if lender is not None and lender is not self:
                lender.let_go()

    def let_go(self, leaf: Leaf | None = None) -> None:
        """Stop counting the gradients that the last run left, or that of one leaf: at once, or when their holders go."""
        if self._in_two or not self._lock.acquire(False):
            return
        try:
            if (bound := self._bound) is not None:
                found = bound.gradients.values() if leaf is None else [bound.gradients[leaf]] if leaf in bound.gradients else []
                # The user may have given the gradient to another leaf.
                gone = [left for left in found if left.lies_in_arena() and not left.is_in_place()]
                held = [left for left in gone if is_any_held([left])]
                bound.close([left.gradient.storage.block for left in gone if left not in held])
                for left in held:
                    bound.leave_to_holder(left)
        finally:
            self._lock.release()

    def lends(self, part: Part) -> bool:
        """Will the next run leave a gradient in this part of the arena?"""
        return self._bound is not None and self._bound.arena is part.arena

    def _play(self, bound: Binding, part: int, inputs: Sequence[Any]) -> None:
        """Run the calls of ``part`` 0, the first or only one, or 1, and account for the bytes live during them."""
        ledger = self.device.ledger
        # Gradients of before the run that lie in the arena count until the run frees them.
        found_here = {left.gradient.storage.block for left in bound.renewed if left.is_in_place()}
        if ledger.log is not None or (bound.lasting and (not bound.is_open or self._in_two
                                                         or len(found_here) < len(bound.renewed))):
            self._play_by_ranges(bound, part, inputs, found_here)
            return
        # The same ranges would close and open again, and no log would show it; nor that results are allocated already.
        made_asked, made_taken = self._make_results(bound)
        local.state.launch(self._run_calls, bound.calls.parts[part], part)
        (asked, taken), (freed_asked, freed_taken) = self._most[part], bound.freed_elsewhere
        lasting_asked, lasting_taken = bound.lasting_bytes
        ledger.passed(asked - freed_asked - lasting_asked - made_asked, taken - freed_taken - lasting_taken - made_taken)
        self._free(bound)

    def _play_by_ranges(self, bound: Binding, part: int, inputs: Sequence[Any], found_here: set[Range]) -> None:
        """The same, range by range: those that the last run left open are closed first, but for those ``found_here``."""
        ledger = self.device.ledger
        # The log of the second part closes the ranges that the first has left, each in its place.
        carried = part == 1 and ledger.log is not None
        if not carried:
            bound.close([x for x in bound.lasting if x not in found_here])
        try:
            local.state.launch(self._run_calls, bound.calls.parts[part], part)
        except BaseException:
            bound.close()
            raise
        # In one piece, or a step that another thread begins or ends meanwhile would see a part of it.
        with ledger.lock:
            (asked, taken), (freed_asked, freed_taken) = self._most[part], bound.freed_bytes
            left_asked, left_taken = bound.lasting_bytes if carried else (0, 0)
            ledger.passed(asked - freed_asked - left_asked, taken - freed_taken - left_taken)
            found = dict(zip(bound.waiting, bound.lasting, strict=True)) if carried else {}
            narration = None if ledger.log is None else Narration(bound, self._serials(part, inputs), found)
            serials: list[int] = []
            try:
                if narration is not None:
                    serials = narration.write(*self.program.spans[part], partial(self._free_ahead_of, bound))
                self._free(bound)
                ledger.drain()
                if part == 0:
                    bound.close(found_here)
                    bound.open(serials)
            except BaseException:
                if narration is not None:
                    narration.give_up()
                raise

    def _free(self, bound: Binding) -> None:
        """Free all gradients of before the run that it frees."""
        for entries in bound.freed.values():
            self._drop(entries)

    def _free_ahead_of(self, bound: Binding, k: int) -> None:
        """Free those that it frees ahead of instruction ``k``, and record that."""
        if entries := bound.freed.get(k):
            self._drop(entries)
            bound.close([left.gradient.storage.block for left in entries if left.is_in_place()])

    def _make_results(self, bound: Binding) -> tuple[int, int]:
        """Allocate results that the calls themselves copy out of the arena: their requested and allocated bytes."""
        return 0, 0

    def _run_calls(self, calls: list[KernelCall], part: int) -> None:
        left = iter(calls)
        try:
            run_calls(left)
        except BaseException:
            if begun := len(calls) - length_hint(left):
                self._failed = calls[begun - 1]
            raise

    def explain(self) -> list[str]:
        """How the calls of each part are run, a line for each; none if they are simply called one by one."""
        return []

    def _serials(self, part: int, inputs: Sequence[Any]) -> dict[int, int]:
        """The serials in the log of the buffers that a part reads, and that the program does not make."""
        found = {buffer: storage.serial for buffer, storage in self.trace.storages.items()}
        found |= {x.buffer: t if type(t) is int else t.storage.serial
                  for x, t in zip((*self.program.inputs, *self.program.cotangents), inputs, strict=False)}
        found |= {buffer: g.storage.serial for buffer, g in self.in_slots(part).items()}
        return found

    def in_slots(self, part: int) -> dict[int, Any]:
        """By buffer, the gradients in slots that a part reads: a second one those that the first has found there."""
        slots = self.trace.slots
        # Most programs have none, and each run asks twice.
        return self._found if part or not slots else {b: leaf.grad for b, leaf in slots.items()}

    def _bring(self, bound: Binding, inputs: Sequence[Any]) -> None:
        """Put the arrays of this run's inputs, and of the gradients in slots, into the arguments of the calls."""
        if self.device.several:
            self._note_stream(bound, [*inputs, *self.in_slots(0).values()])
        if bound.calls.patches:
            bound.calls.fill_in(self.program.inputs, inputs)
            bound.calls.fill_in_slots(self.in_slots(0))

    def _note_stream(self, bound: Binding, given: Sequence[Any]) -> None:
        """Note that the run uses all its memory on the current stream, that of tensors that it is ``given`` too, after the last
        run, which used the same arena."""
        stream = use_again(bound.arena)
        # As long as the trace holds them, the blocks of captured storages forget no stream.
        captured = () if stream is self._noted else self.trace.storages.values()
        for storage in (*[t.storage for t in given], *captured):
            storage.block.use_on(stream)
        self._noted = stream

    def backward(self, cotangents: Sequence[Any]) -> list[Any]:
        """Run the second part, on any stream; a tensor for each of the program's ``gradients``, None where there is none."""
        bound = self._bound
        assert bound is not None
        with turn(*self._in_turn):
            given = [*self._inputs, *cotangents]
            if self.device.several:
                self._note_stream(bound, [*(t for t in given if type(t) is not int), *self._found.values()])
            bound.calls.fill_in(self.program.cotangents, cotangents)
            self._play(bound, 1, given)
            copies: dict[int, Any] = {}
            return [None if x is None else self._result(bound, x, given, copies) for x in self.program.gradients]

    def lasting(self) -> list[Range]:
        """The ranges that the last run, or the first part of one, left open in the arena."""
        return [] if self._bound is None else self._bound.lasting

    def release(self) -> None:
        """Drop the inputs of the run, and release what waits for a second part. A finalizer may call this."""
        self._inputs, self._found = [], {}
        if (bound := self._bound) is None:
            return
        if self._in_two:
            for block in bound.lasting:
                block.let_go(self.device.memory.release)
        bound.calls.clear()

    def _written_to(self, inputs: Sequence[Any]) -> list[tuple[Storage, Tag]]:
        """The storages from before a run that it writes to, with what writes last."""
        if not self._written_later:
            return self._written
        slots = self.trace.slots
        return [*self._written, *(((slots[b].grad if b in slots else self._tensor(b, inputs)[1]).storage, tag)
                                  for b, tag in self._written_later)]

    def _tensor(self, buffer: int, inputs: Sequence[Any]) -> tuple[Operand, Any]:
        """An input or a cotangent over a buffer, and the tensor that a run got for it."""
        given = zip((*self.program.inputs, *self.program.cotangents), inputs, strict=False)
        return next((x, t) for x, t in given if x.buffer == buffer)

    def _result(self, bound: Binding, x: Operand, inputs: Sequence[Any], copies: dict[int, Any]) -> Any:
        """An output: a copy of bytes in the arena, or a tensor over storage from before the run."""
        kind = self.program.buffers[x.buffer].kind
        if kind == "captured":
            return bound.shown(x)
        if kind == "gradient slot":
            found = self._found[x.buffer] if x.buffer in self._found else self.trace.slots[x.buffer].grad
            return value_over(found.storage, x.spec)
        if kind == "input":
            # A view of an argument, or a gradient that is the cotangent itself, may lie elsewhere in its storage.
            traced, tensor = self._tensor(x.buffer, inputs)
            return value_over(tensor.storage, moved(x.spec, shift(tensor.spec, traced.spec)))
        copy: Storage | None = copies.get(x.buffer)
        if copy is None:
            spec, tag, source = bound.copied(x)
            copy = copies[x.buffer] = self.device.allocate(spec.nbytes, tag)
            local.state.launch(self._clone, source, self.device.array(copy.block, spec))
        return value_over(copy, x.spec)
