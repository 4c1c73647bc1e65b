"""The log of a traced run: it keeps the call and the operands of each launch."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary, ref

from gradcore.devices.storage import Storage
from gradcore.engine.dispatch import next_number
from gradcore.engine.node import Leaf
from gradcore.engine.operands import TENSORS
from gradcore.engine.plans import Call
from gradcore.engine.state import SITES, here, local
from gradcore.errors import TraceError
from gradcore.events import LAUNCH, READ, UPLOAD, Raw

#: The op behind which an argument's own graph lies.
ARGUMENT = "Argument"


class TraceLog(list[Raw]):
    """A log that keeps with each launch its call and operands, and refuses what no replay could do again."""

    def __init__(self) -> None:
        super().__init__()
        #: A launch each: the call, and for an operand its number, or the weakly held storage with the spec.
        self.launches: list[tuple[Call, list[Any]]] = []
        #: Leaves that an op read, weakly: those that the run itself makes go when it lets them go, with their gradients.
        self.leaves: WeakKeyDictionary[Leaf, None] = WeakKeyDictionary()
        #: The thread that is traced, whether another one used the device meanwhile, and its launches, by id of their record.
        self._thread = threading.get_ident()
        self.disturbed = False
        self.foreign: dict[int, Raw] = {}
        #: The serials of the bytes that leaves stand for.
        self.bytes_of: WeakKeyDictionary[Leaf, int] = WeakKeyDictionary()
        #: The line that read a tensor with a graph that was built before, which no replay could follow.
        self.beyond = ""
        #: Nodes that are built from here on have larger numbers.
        self.first = next_number()
        #: By serial, what the library filled with values that only shapes and attributes decide.
        self.constants: dict[int, Storage] = {}

    def viewed(self, source: Any) -> None:
        """A view of ``source`` is taken. The operands of launches say all else that a program needs to know of it."""
        self._read(source)

    def _read(self, value: Any) -> None:
        if value.edge is None:
            return
        node = value.edge[0]
        if type(node) is not Leaf:
            # Where an argument's graph ends, the trace ends, too.
            if node.id < self.first and local.state.grad and node.op.name != ARGUMENT:
                self.beyond = self.beyond or str(SITES[here()])
        elif node not in self.leaves:
            self.leaves[node] = None
            self.bytes_of[node] = value.storage.serial

    def constant(self, storage: Storage) -> None:
        """What is uploaded to this storage will be the same in every run."""
        self.constants[storage.serial] = storage

    def launched(self, call: Call, args: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """An op runs. What it makes is not held."""
        if threading.get_ident() != self._thread:
            return
        operands: list[Any] = []
        for a in args:
            if type(a) in TENSORS:
                operands.append((ref(a.storage), a.spec))
                self._read(a)
            else:
                operands.append(a)
        self.launches.append((call, operands))

    def append(self, record: Raw) -> None:
        if threading.get_ident() != self._thread:
            self.disturbed = self.disturbed or record[0] in (LAUNCH, READ, UPLOAD)
            if record[0] == LAUNCH:
                self.foreign[id(record)] = record
            super().append(record)
            return
        if record[0] == LAUNCH and 0 < record[3] < self.first:
            self.beyond = self.beyond or str(SITES[here()])
        if record[0] == READ:
            raise TraceError(f"{SITES[here()]} reads a value of a tensor on the host (item(), tolist(), printing, "
                             "`if tensor:`, an op whose shape depends on values). A traced function runs once and is "
                             "replayed without its Python code, so what depends on the value would be frozen: compute it with "
                             "ops, or read it outside, from what the function returns")
        if record[0] == UPLOAD and record[1] not in self.constants:
            raise TraceError(f"{SITES[here()]} makes a tensor from host data. A replay would go on with the values of the "
                             "traced run: make it outside, and pass it as an argument or let the function refer to it")
        super().append(record)
