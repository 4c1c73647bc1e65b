"""Fixed addresses for what differs from run to run, where captured launches find it.

Inputs are copied into memory that the program owns, and the numbers of optimizers into a table behind them; results are copied
out of the arena. A mailbox (``gpu.mailbox``) tells the launches of a graph from where and to where.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gradcore.devices.device import get_device
from gradcore.devices.gpu.numbers import ROOM, Numbers
from gradcore.devices.storage import Storage
from gradcore.errors import OutOfMemory
from gradcore.events import PROGRAM, Tag
from gradcore.program.program import Number, Operand
from gradcore.program.replaying.arena import ALIGNED, moved, shift
from gradcore.program.replaying.binding import Binding
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
        self._device, program = bound.device, bound.program
        self.reason = ""
        self.lacking: tuple[Any, int] | None = None
        #: The places that take arrays of a run, and those of numbers, as the binding had them: see :class:`BoundCalls`.
        self._patches = {x.buffer: bound.calls.patches.pop(x.buffer) for x in (*program.inputs, *program.cotangents)
                         if x.buffer in bound.calls.patches}
        self._numbers = self._ours = bound.calls.numbers
        #: What the calls read instead: arrays over copies, and numbers of the table.
        self._instead: list[tuple[Any, Any, Any]] = []
        #: The memory that the program owns, and the numbers in it.
        self.own: Storage | None = None
        self.table: Numbers | None = None
        #: What each part begins by copying, what the first copies at its end, and requested and allocated bytes of that.
        self.copies: tuple[list[In], list[In]] = ([], [])
        self.out: list[Out] = []
        self.out_bytes = 0, 0
        #: By part, None for one that copies nothing.
        self.boxes: list[Any] = [None, None]
        homes, at = {}, 0
        for buffer, places in self._patches.items():
            low, high = _span([spec for _, _, spec in places])
            # As well aligned as the bytes that are copied.
            beyond = low % ALIGNED
            homes[buffer] = at + beyond, low, high - low
            at += round_up(beyond + high - low)
        count = sum(any(isinstance(x, Number) for x in i.operands) for i in program.instructions)
        if not at + count:
            return
        graphs, turns = self._device.graphs, at + count * ROOM
        spec, first = TensorSpec.of((turns + 2 * graphs.turn,), "uint8"), program.instructions[0].tag
        tag = Tag(PROGRAM, "", first.phase, "input", first.site, None, spec)
        try:
            self.own = self._device.allocate(spec.nbytes, tag)
        except OutOfMemory as error:
            self._lack(bound, self._device, spec.nbytes, error)
            return
        for buffer, places in self._patches.items():
            home, low, _ = homes[buffer]
            self._instead += [(args, k, self._device.array(self.own.block, moved(spec, home - low)))
                              for args, k, spec in places]
        start = self.own.block.address

        def copies(given: Sequence[Operand]) -> list[In]:
            # Of tensors over the same bytes, the first is copied.
            firsts = {x.buffer: k for k, x in reversed([*enumerate(given)])}
            return [In(k, low, start + home, nbytes) for b, k in firsts.items() if b in homes
                    for home, low, nbytes in [homes[b]] if nbytes]

        self.copies = copies(program.inputs), copies(program.cotangents)
        self.table = graphs.numbers(count, start + at) if count else None
        whole = {x.buffer: x for x in program.outputs if program.buffers[x.buffer].kind == "made"
                 and program.buffers[x.buffer].nbytes and program.split is None}
        self.out = [Out(b, array.data.ptr, spec.nbytes, of) for b, x in whole.items() for spec, of, array in [bound.copied(x)]]
        self.out_bytes = sum(x.nbytes for x in self.out), sum(round_up(x.nbytes) for x in self.out)
        try:
            self.boxes = [graphs.mailbox([(x.home, x.nbytes) for x in self.copies[k]],
                                         [] if k else [(x.home, x.nbytes) for x in self.out],
                                         None if k else self.table, start + turns + k * graphs.turn, tag) for k in range(2)]
        except OutOfMemory as error:
            self._lack(bound, get_device("pinned"), error.asked, error)
            return
        self._ours = [[self._moving(args, k, position) for args, k, position in places] for places in self._numbers]
        self.redo(bound)

    def _lack(self, bound: Binding, device: Any, nbytes: int, error: OutOfMemory) -> None:
        """Note that there is no room on a device, and let the calls take the inputs of each run."""
        # Not the error itself, whose traceback would keep the frames alive.
        text, *_ = str(error).splitlines()
        self.reason = f"there is no room for copies of what differs from run to run: {text}"
        self.lacking = device.ledger, max(nbytes, device.ledger.pool.largest_free + 1)
        bound.calls.patches |= self._patches

    def _moving(self, args: list[Any], k: int, position: int) -> tuple[list[Any], int, int]:
        """Let a call read a number from the table, and return the place of its value there."""
        assert self.table is not None
        number = self.table.number()
        self._instead.append((args, k, number))
        return self.table.values, number.at, position

    def undo(self, bound: Binding) -> None:
        """Let the calls take the inputs and the numbers of each run again."""
        bound.calls.patches |= self._patches
        for ours, places in zip(self._ours, self._numbers, strict=True):
            for (values, at, _), (args, k, _) in zip(ours, places, strict=True):
                args[k] = values[at]
        bound.calls.numbers = self._numbers

    def redo(self, bound: Binding) -> None:
        """Let the calls read the fixed addresses, also after :meth:`undo`."""
        for buffer in self._patches:
            bound.calls.patches.pop(buffer, None)
        for args, k, x in self._instead:
            args[k] = x
        bound.calls.numbers = self._ours

    def sources(self, part: int, traced: Sequence[Operand], given: Sequence[Any]) -> list[int]:
        """The addresses that a run of the part copies from."""
        return [given[k].storage.block.address + low
                + (0 if given[k].spec is traced[k].spec else shift(given[k].spec, traced[k].spec))
                for k, low, _, _ in self.copies[part]]

    def note_stream(self) -> None:
        """Note that a run uses the memory on the current stream."""
        if self.own is not None:
            self.own.block.use_on(self._device.current)
            for box in self.boxes:
                if box is not None:
                    box.note_stream()


def _span(specs: Iterable[TensorSpec]) -> tuple[int, int]:
    """The offset of the first byte that any of the specs covers, and that of the byte behind the last."""
    spans = [spec.span for spec in specs if spec.numel]
    return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else (0, 0)
