"""Replays as CUDA graphs: a program's calls as one launch, over memory with fixed addresses.

The first run over an arena calls the kernels one by one, which compiles and loads them, and then captures the same calls;
later runs launch the captured graph. What differs from run to run is put where the captured launches read it: the first of them
copies inputs into memory that the program owns, and the numbers of optimizers into a table behind them (``gpu_mailbox.py``).
A gradient in a slot that a run adds to is not copied: its address is captured, and the calls are captured again when it has
moved.

Where something cannot be captured, the kernels are called one by one as on other devices, and ``explain()`` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gradcore.devices.calls import KernelCall
from gradcore.devices.device import get_device
from gradcore.devices.gpu_numbers import ROOM, Numbers
from gradcore.devices.precision import rounded
from gradcore.devices.storage import Storage
from gradcore.errors import CaptureError, DeviceFault, OutOfMemory
from gradcore.events import Tag
from gradcore.program.arena import moved, shift
from gradcore.program.binding import Binding, Patch
from gradcore.program.building import Trace
from gradcore.program.keys import ALIGNED
from gradcore.program.plan import Plan
from gradcore.program.program import Instruction, Number, Operand
from gradcore.program.replay import Replay, run_calls
from gradcore.spec import TensorSpec, round_up

#: After so many captures in succession that were never launched, a program is not captured any more.
_MOST_UNUSED = 3


@dataclass
class Captured:
    """The graph of one part of a program, with what it was captured with: the addresses of the gradients in slots, and the
    precision of products."""

    graph: Any
    given: list[Any]
    launched: bool = False


class CapturedReplay(Replay):
    """A replay that launches each part of its program as one graph, or calls kernels one by one if the device has no graphs."""

    def __init__(self, trace: Trace, plan: Plan) -> None:
        super().__init__(trace, plan)
        #: Why the kernels are called one by one; "" if they are captured.
        self.reason = "" if self.device.graphs is not None else "the device has no graphs"
        self._captured: dict[int, Captured] = {}
        self._unused = 0
        if self.device.graphs is not None:
            # A launch of gradcore's own copy kernel would cost the host several times as much.
            self._clone = self.device.graphs.copy_array
        #: The places that take arrays of a run if nothing is captured, and those of numbers: see :class:`Binding`.
        self._brought: dict[int, list[Patch]] = {}
        self._plain: list[list[tuple[Any, Any, int]]] = []
        #: Memory that the program owns: copies of inputs, and behind them the table of numbers.
        self._own: Storage | None = None
        self._table: Numbers | None = None
        #: The copies that each part begins with: position of the input, or of the cotangent; address of the copy; offset of the
        #: first byte that is copied; and number of bytes. And of the run that goes on, the addresses of those bytes.
        self._copies: tuple[list[tuple[int, int, int, int]], ...] = ([], [])
        self._sources: list[int] = []
        #: By part, None for one that copies nothing.
        self._boxes: list[Any] = [None, None]
        #: What a launch copies out of the arena: a buffer, where it is, and bytes and tag of the copy; and bytes of all.
        self._out: list[tuple[int, int, int, Tag]] = []
        self._out_bytes = 0, 0
        #: By input buffer that the program writes to: address that this run copied it from, address of the copy, and bytes.
        self._back: dict[int, tuple[int, int, int]] = {}
        #: By part, the input buffers that it writes to.
        self._returned = [{x.buffer for i in self.program.instructions[slice(*span)] for x in i.targets()
                           if self.program.buffers[x.buffer].kind == "input"} for span in self.program.spans]

    # -- binding -------------------------------------------------------------------------------------------------------

    def _bind(self) -> Binding:
        self._forget()
        bound = super()._bind()
        if self.reason:
            return bound
        try:
            self._settle(bound)
        except BaseException:
            # Some calls have no place for the inputs of a run any more: the next run binds again.
            self._bound = None
            raise
        return bound

    def _settle(self, bound: Binding) -> None:
        """Give everything that changes from run to run a fixed address."""
        self._brought = {x.buffer: bound.patches.pop(x.buffer) for x in (*self.program.inputs, *self.program.cotangents)
                         if x.buffer in bound.patches}
        self._plain = bound.numbers
        homes, at = {}, 0
        for buffer, places in self._brought.items():
            low, high = _span([spec for _, _, spec in places])
            # As well aligned as the bytes that are copied.
            beyond = low % ALIGNED
            homes[buffer] = at + beyond, low, high - low
            at += round_up(beyond + high - low)
        count = sum(any(isinstance(x, Number) for x in i.operands) for i in self.program.instructions)
        if not at + count:
            return
        graphs, turns = self.device.graphs, at + count * ROOM
        spec, first = TensorSpec.of((turns + 2 * graphs.turn,), "uint8"), self.program.instructions[0].tag
        tag = Tag("program", "", first.phase, "input", first.site, None, spec)
        self._own = self.device.allocate(spec.nbytes, tag)
        for buffer, places in self._brought.items():
            home, low, _ = homes[buffer]
            for args, k, spec in places:
                args[k] = self.device.array(self._own.block, moved(spec, home - low))
        start = self._own.block.address

        def copies(given: Sequence[Operand]) -> list[tuple[int, int, int, int]]:
            # Of tensors over the same bytes, the first is copied.
            firsts = {x.buffer: k for k, x in reversed([*enumerate(given)])}
            return [(k, start + homes[b][0], *homes[b][1:]) for b, k in firsts.items() if b in homes and homes[b][2]]

        self._copies = copies(self.program.inputs), copies(self.program.cotangents)
        self._table = graphs.numbers(count, start + at) if count else None
        whole = {x.buffer: x for x in self.program.outputs if self.program.buffers[x.buffer].kind == "made"
                 and self.program.buffers[x.buffer].nbytes and self.program.split is None}
        self._out = [(b, array.data.ptr, spec.nbytes, tag) for b, x in whole.items() for spec, tag, array in [bound.copied(x)]]
        self._out_bytes = sum(nbytes for _, _, nbytes, _ in self._out), sum(round_up(nbytes) for _, _, nbytes, _ in self._out)
        try:
            self._boxes = [graphs.mailbox([(home, nbytes) for _, home, _, nbytes in self._copies[k]],
                                          [] if k else [(home, nbytes) for _, home, nbytes, _ in self._out],
                                          None if k else self._table, start + turns + k * graphs.turn, tag) for k in range(2)]
        except OutOfMemory as error:
            # Of pinned memory. Not the error itself, whose traceback would keep the frames alive.
            reason = str(error)
        else:
            reason = ""
        if reason:
            self._give_up(reason)
            return
        bound.numbers = [[self._moving(args, k, position) for args, k, position in places] for places in self._plain]

    def _moving(self, args: list[Any], k: int, position: int) -> tuple[list[Any], int, int]:
        """Let a call read a number from the table, and return the place of its value there."""
        assert self._table is not None
        args[k] = number = self._table.number()
        return self._table.values, number.at, position

    def _forget(self) -> None:
        """Drop the graphs, and count those that were never launched."""
        for captured in self._captured.values():
            self._unused = 0 if captured.launched else self._unused + 1
        self._captured.clear()

    def _give_up(self, reason: str) -> None:
        """Undo :meth:`_settle`: from here on kernels are called one by one, on the inputs of each run."""
        self.reason = reason
        self._captured.clear()
        bound = self._bound
        assert bound is not None
        bound.patches |= self._brought
        for ours, places in zip(bound.numbers, self._plain, strict=True):
            for (values, at, _), (args, k, _) in zip(ours, places, strict=True):
                args[k] = values[at]
        bound.numbers, self._table, self._own = self._plain, None, None
        self._copies, self._boxes, self._out = ([], []), [None, None], []
        if self._inputs:
            # The second part is still to run, and reads these inputs.
            super()._bring(bound, self._inputs)

    # -- running -------------------------------------------------------------------------------------------------------

    def _bring(self, bound: Binding, inputs: Sequence[Any]) -> None:
        super()._bring(bound, inputs)
        self._look_for(0, self.program.inputs, inputs)
        if any(self._returned):
            self._back = {self.program.inputs[k].buffer: (source, home, nbytes)
                          for source, (k, home, _, nbytes) in zip(self._sources, self._copies[0], strict=True)}

    def _look_for(self, part: int, traced: Sequence[Operand], given: Sequence[Any]) -> None:
        """Find the bytes that the part copies."""
        self._sources = [given[k].storage.block.address + low
                         + (0 if given[k].spec is traced[k].spec else shift(given[k].spec, traced[k].spec))
                         for k, _, low, _ in self._copies[part]]

    def backward(self, cotangents: Sequence[Any]) -> list[Any]:
        self._look_for(1, self.program.cotangents, cotangents)
        return super().backward(cotangents)

    def _note_stream(self, bound: Binding, inputs: Sequence[Any]) -> None:
        super()._note_stream(bound, inputs)
        if self._own is not None:
            self._own.block.use_on(self.device.current)
            for box in self._boxes:
                if box is not None:
                    box.note_stream()

    def _make_results(self, bound: Binding) -> tuple[int, int]:
        if self._boxes[0] is None or bound.freed:
            return 0, 0
        allocate = self.device.allocate
        self._made = {b: allocate(nbytes, tag) for b, _, nbytes, tag in self._out}
        return self._out_bytes

    def _run_calls(self, calls: list[KernelCall], part: int) -> None:
        if self.reason:
            run_calls(calls)
            return
        box = self._boxes[part]
        if box is not None:
            box.post(self._sources, [made.block.address for made in self._made.values()])
        if not calls:
            # A second part may read what the first was given.
            self._run_alone(calls, box)
            return
        given = [*[leaf.grad.storage.block.address for leaf in self.trace.slots.values()], rounded()]
        captured = self._captured.get(part)
        if captured is not None and captured.given == given:
            captured.launched = True
            captured.graph.launch(self.device.current)
            if box is not None:
                box.sent()
            self._copy_back(part)
            return
        self._run_alone(calls, box)
        self._copy_back(part)
        if captured is not None:
            self._forget()
        if self._unused < _MOST_UNUSED:
            self._capture(calls, part, given)
        else:
            self._give_up(f"the memory that it uses moved {_MOST_UNUSED} times before it was launched: a gradient that is "
                          "referenced after a run keeps its memory, and a new tensor as a gradient has other memory")

    def _run_alone(self, calls: list[KernelCall], box: Any) -> None:
        """Make the posted copies, and run the calls between, one by one."""
        if box is not None:
            box.bring_alone()
        run_calls(calls)
        for buffer, home, nbytes, _ in self._out:
            if buffer in self._made:
                self.device.graphs.copy(self._made[buffer].block.address, home, nbytes)

    def _copy_back(self, part: int) -> None:
        """Copy what the program wrote to its copies of inputs back to the inputs."""
        for buffer in self._returned[part]:
            if buffer in self._back:
                self.device.graphs.copy(*self._back[buffer])

    def _capture(self, calls: list[KernelCall], part: int, given: list[Any]) -> None:
        if self._table is not None:
            self._table.frozen = True
        try:
            bound = self._bound
            assert bound is not None
            callers, box = bound.callers[part], self._boxes[part]

            def run() -> None:
                if box is not None:
                    box.bring()
                _run_named(calls, callers)
                if box is not None:
                    box.deliver()

            self._captured[part] = Captured(self.device.graphs.capture(run), given)
        except DeviceFault:
            raise
        except Exception as error:
            # Libraries raise errors of their own types when they cannot be captured.
            self._give_up(str(error))
        finally:
            if self._table is not None:
                self._table.frozen = False

    def explain(self) -> list[str]:
        if self.reason:
            return [f"its kernels are launched one by one: {self.reason}"]
        calls = [] if self._bound is None else self._bound.calls
        return [f"{len(calls[part])} kernel calls are captured in one graph" + (", of the second part" if part else "")
                for part in sorted(self._captured)]


def replay_of(trace: Trace, plan: Plan, capture: bool = True) -> Replay:
    """The replay of a trace: by graphs if its device has them and ``capture`` is true."""
    graphs = get_device(trace.program.device).graphs
    return Replay(trace, plan) if graphs is None or not capture else CapturedReplay(trace, plan)


def _run_named(calls: list[KernelCall], instructions: Sequence[Instruction]) -> None:
    """Run calls during a capture. Raises CaptureError naming op, layer and line for what a kernel raises."""
    for (kernel, args), instruction in zip(calls, instructions, strict=True):
        try:
            kernel(*args)
        except DeviceFault:
            raise
        except Exception as error:
            tag = instruction.tag
            where = f"{instruction.op} in layer {tag.layer or '(root)'}, {tag.phase}, {tag.site}"
            raise CaptureError(f"{where}: {error}") from error


def _span(specs: Iterable[TensorSpec]) -> tuple[int, int]:
    """The offset of the first byte that any of the specs covers, and that of the byte behind the last."""
    spans = [spec.span for spec in specs if spec.numel]
    return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else (0, 0)
