"""Fixed addresses for what differs from run to run, where captured launches find it.

Inputs are copied into memory that the program owns, and the numbers of optimizers into a table behind them; results are copied
out of the arena. A mailbox (``gpu.mailbox``) tells the launches of a graph from where and to where. What a run has written to
its copies of inputs is copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from gradcore.devices.device import get_device
from gradcore.devices.gpu.numbers import ROOM, Numbers
from gradcore.devices.storage import Storage
from gradcore.errors import OutOfMemory
from gradcore.events import OUTSIDE, PROGRAM, Tag
from gradcore.memory.resource import Block
from gradcore.program.program import Number, Operand
from gradcore.program.replaying.arena import ALIGNED, moved, shift
from gradcore.program.replaying.binding import Binding
from gradcore.program.replaying.stand_ins import Patch
from gradcore.spec import TensorSpec, round_up


class In(NamedTuple):
    """A copy of an input, or of a cotangent, at this position: where its first byte lies in the traced run's storage, the
    address of the copy, and its bytes."""

    position: int
    low: int
    home: int
    nbytes: int


class Out(NamedTuple):
    """A copy of a result: its buffer, the address in the arena, and bytes and tag of the copy."""

    buffer: int
    home: int
    nbytes: int
    tag: Tag


class Fixed:
    """The fixed addresses of one binding, whose calls it makes read them.

    ``reason`` says why there was no room for them, or is ""; ``lacking`` then are the ledger of the memory, the device's or
    pinned, and the bytes of a free block in which there would be.
    """

    def __init__(self, bound: Binding) -> None:
        program, calls = bound.program, bound.calls
        self._device, self._calls = bound.device, calls
        #: What each part is given.
        self._traced = program.inputs, program.cotangents
        self.reason = ""
        self.lacking: tuple[Any, int] | None = None
        #: The places that take arrays of a run, and those of numbers, as the binding had them.
        self._patches = {x.buffer: calls.patches.pop(x.buffer) for x in chain(*self._traced) if x.buffer in calls.patches}
        self._numbers = self._ours = calls.numbers
        #: What the calls read instead: arrays over copies, and numbers of the table.
        self._instead: list[tuple[Any, Any, Any]] = []
        #: The memory that the program owns, and the numbers in it.
        self.own: Storage | None = None
        self.table: Numbers | None = None
        #: What each part begins by copying, and the addresses that the present run copies from.
        self._copies: list[list[In]] = [[], []]
        self.sources: list[int] = []
        #: What the first part copies at its end, and requested and allocated bytes of that.
        self.out: list[Out] = []
        self.out_bytes = 0, 0
        #: By part, None for one that copies nothing.
        self.boxes: list[Any] = [None, None]
        #: By part: by input buffer, what it writes there, with the functions that copy that back.
        self._written = [_writes(bound, *span) for span in program.spans]
        self._writes = any(self._written)
        #: By input buffer, for this run: the copy and the memory that it was made of, each with how many bytes further on an
        #: element lies there than in the traced run.
        self._back: dict[int, tuple[Block, int, Block, int]] = {}
        written = program.written()
        #: The captured memory of which an input that is copied may be no part.
        self._beside = [s.block for b, s in bound.trace.storages.items() if b in written or self._writes]
        count = sum(any(isinstance(x, Number) for x in i.operands) for i in program.instructions)
        homes, end = _homes(self._patches)
        if end + count:
            self._make(bound, homes, end, count)

    def _make(self, bound: Binding, homes: dict[int, tuple[int, int, int]], end: int, count: int) -> None:
        """Make copies with these ``homes``, before ``end``, and a table for the numbers of ``count`` ops behind them."""
        program, graphs, device = bound.program, self._device.graphs, self._device
        turns, first = end + count * ROOM, program.instructions[0].tag
        spec = TensorSpec.of((turns + 2 * graphs.turn,), "uint8")
        tag = Tag(PROGRAM, "", first.phase, "input", first.site, None, spec)
        try:
            own = self.own = device.allocate(spec.nbytes, tag)
            start = own.block.address
            self._copies = [_copies(x, homes, start) for x in self._traced]
            self.table = graphs.numbers(count, start + end) if count else None
            whole = {x.buffer: x for x in program.outputs if program.buffers[x.buffer].kind == "made"
                     and program.buffers[x.buffer].nbytes and program.split is None}
            self.out = [Out(b, array.data.ptr, shown.nbytes, of) for b, x in whole.items()
                        for shown, of, array in [bound.copied(x)]]
            self.out_bytes = sum(x.nbytes for x in self.out), sum(round_up(x.nbytes) for x in self.out)
            device = get_device("pinned")
            self.boxes = [graphs.mailbox([(x.home, x.nbytes) for x in self._copies[k]],
                                         [] if k else [(x.home, x.nbytes) for x in self.out],
                                         None if k else self.table, start + turns + k * graphs.turn, tag) for k in range(2)]
        except OutOfMemory as error:
            # Not the error itself, whose traceback would keep the frames alive.
            text, *_ = str(error).splitlines()
            self.reason = f"there is no room for copies of what differs from run to run: {text}"
            self.lacking = device.ledger, max(error.asked, device.ledger.pool.largest_free + 1)
            self._calls.patches |= self._patches
            return
        for buffer, places in self._patches.items():
            home, low, _ = homes[buffer]
            self._instead += [(args, k, self._device.array(own.block, moved(spec, home - low))) for args, k, spec in places]
        self._ours = [[self._moving(args, k, position) for args, k, position in places] for places in self._numbers]
        self.redo()

    def _moving(self, args: list[Any], k: int, position: int) -> tuple[list[Any], int, int]:
        """Let a call read a number from the table, and return the place of its value there."""
        assert self.table is not None
        number = self.table.number()
        self._instead.append((args, k, number))
        return self.table.values, number.at, position

    def undo(self) -> None:
        """Let the calls take the inputs and the numbers of each run again."""
        self._calls.patches |= self._patches
        for ours, places in zip(self._ours, self._numbers, strict=True):
            for (values, at, _), (args, k, _) in zip(ours, places, strict=True):
                args[k] = values[at]
        self._calls.numbers = self._numbers

    def redo(self) -> None:
        """Let the calls read the fixed addresses, also after :meth:`undo`."""
        for buffer in self._patches:
            self._calls.patches.pop(buffer, None)
        for args, k, x in self._instead:
            args[k] = x
        self._calls.numbers = self._ours

    # -- of a run ------------------------------------------------------------------------------------------------------

    def refusal(self, inputs: Sequence[Any]) -> str:
        """Why copies of these inputs cannot stand for them, or "": some are other libraries' memory, which may lie anywhere."""
        foreign = [block for copy in self._copies[0]
                   if (block := inputs[copy.position].storage.block).segment.index == OUTSIDE]
        if not foreign:
            return ""
        if any(block.address % ALIGNED for block in foreign):
            return f"the memory of an argument, another library's, does not begin at a multiple of {ALIGNED} bytes"
        copied = [inputs[copy.position].storage.block for copy in self._copies[0]] if self._writes else []
        beside = [*self._beside, *copied]
        if any(a is not b and _overlap(a, b) for a in foreign for b in beside):
            return "an argument is another library's memory, another tensor lies there, too, and one of them is written to"
        return ""

    def bring(self, inputs: Sequence[Any]) -> None:
        """Note where the first part, or the only one, is to copy these inputs from, and back to."""
        traced, own = self._traced[0], self.own
        self.find(0, inputs)
        if own is not None and self._writes:
            self._back = {traced[k].buffer: (own.block, home - own.block.address - low, inputs[k].storage.block,
                                             shift(inputs[k].spec, traced[k].spec)) for k, low, home, _ in self._copies[0]}

    def find(self, part: int, given: Sequence[Any]) -> None:
        """Note the addresses that a part is to copy from."""
        traced = self._traced[part]
        self.sources = [given[k].storage.block.address + low
                        + (0 if given[k].spec is traced[k].spec else shift(given[k].spec, traced[k].spec))
                        for k, low, _, _ in self._copies[part]]

    def copy_back(self, part: int) -> None:
        """Copy what a part wrote to its copies of inputs back to the inputs."""
        array = self._device.array
        for buffer, written in self._written[part].items():
            if buffer in self._back:
                own, home, block, by = self._back[buffer]
                for spec, copy in written:
                    copy(array(own, moved(spec, home)), array(block, moved(spec, by)))

    def note_stream(self) -> None:
        """Note that a run uses the memory on the current stream."""
        if self.own is not None:
            self.own.block.use_on(self._device.current)
            for box in self.boxes:
                if box is not None:
                    box.note_stream()


def _homes(patches: dict[int, list[Patch]]) -> tuple[dict[int, tuple[int, int, int]], int]:
    """By buffer: where in the program's memory its copy begins, where its first byte lies in the traced run's storage, and its
    bytes; and where all of them end."""
    homes, at = {}, 0
    for buffer, places in patches.items():
        low, high = _span([spec for _, _, spec in places])
        # As well aligned as the bytes that are copied.
        beyond = low % ALIGNED
        homes[buffer] = at + beyond, low, high - low
        at += round_up(beyond + high - low)
    return homes, at


def _copies(given: Sequence[Operand], homes: dict[int, tuple[int, int, int]], start: int) -> list[In]:
    """What is copied of tensors that are given: of those over the same bytes, the first."""
    firsts = {x.buffer: k for k, x in reversed([*enumerate(given)])}
    return [In(k, low, start + home, nbytes) for b, k in firsts.items() if b in homes
            for home, low, nbytes in [homes[b]] if nbytes]


def _writes(bound: Binding, first: int, last: int) -> dict[int, list[tuple[TensorSpec, Callable[..., Any]]]]:
    """By input buffer, what instructions write there: neighboring bytes as one, and views of elements with others between,
    which may be another stream's."""
    device, views = bound.device, dict[int, dict[TensorSpec, None]]()
    for x in chain(*(i.targets() for i in bound.program.instructions[first:last])):
        if bound.program.buffers[x.buffer].kind == "input":
            views.setdefault(x.buffer, {})[x.spec] = None
    found: dict[int, list[tuple[TensorSpec, Callable[..., Any]]]] = {}
    for buffer, specs in views.items():
        ends: list[list[int]] = []
        for low, high in sorted(spec.span for spec in specs if spec.contiguous):
            if ends and low <= ends[-1][1]:
                ends[-1][1] = max(ends[-1][1], high)
            else:
                ends.append([low, high])
        found[buffer] = [(TensorSpec.strided((high - low,), "uint8", (1,), low), device.graphs.copy_array)
                         for low, high in ends]
        found[buffer] += [(spec, device.bind(device.kernel("clone"), "clone")) for spec in specs if not spec.contiguous]
    return found


def _overlap(a: Block, b: Block) -> bool:
    """Do two blocks share bytes? The pool's books have none for other libraries' memory."""
    first, second = ((x.address, x.address + (x.segment.nbytes if x.segment.index == OUTSIDE else x.size)) for x in (a, b))
    return first[0] < second[1] and second[0] < first[1]


def _span(specs: Iterable[TensorSpec]) -> tuple[int, int]:
    """The offset of the first byte that any of the specs covers, and that of the byte behind the last."""
    spans = [spec.span for spec in specs if spec.numel]
    return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else (0, 0)
