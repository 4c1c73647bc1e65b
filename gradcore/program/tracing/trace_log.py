"""The log of a traced run, which also keeps the call and the operands of each launch."""

from __future__ import annotations

import sys
from itertools import dropwhile, takewhile
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from gradcore._random import Generator
from gradcore.devices.storage import Storage
from gradcore.engine.dispatch import next_number
from gradcore.engine.leaf import Leaf
from gradcore.engine.operands import TENSORS
from gradcore.engine.plans import Call
from gradcore.engine.sites import here, is_inside
from gradcore.engine.state import local
from gradcore.engine.tracer import Tracer
from gradcore.engine.value import Value
from gradcore.errors import TraceError
from gradcore.events import ALLOC, LAUNCH, MARK, READ, UPLOAD, Raw
from gradcore.program.guarding.frames import upwards
from gradcore.program.watching.newness import is_new
from gradcore.spec import TensorSpec

#: Why a run cannot be replayed; of the first another one may be good.
DISTURBED = "another thread used the device during the trace"
BEYOND = "continues a graph that was built before: detach it, or build it inside"
_RESHAPES = "changes the shape of a tensor from before the run in place"
#: The name of the node at which a trace ends and the graph of an argument begins.
ARGUMENT = "Argument"
#: Frames that pass a call on to a function which says more, as "run" does for an optimizer's step; and what users write for
#: special methods.
_PASSING_ON = frozenset(("call", "__call__", "call_outermost", "_module_run_forward", "_module_run_between_hooks", "forward",
                         "run", "wrapped", "_trace", "<genexpr>", "<listcomp>", "<lambda>"))
_WRITTEN = {"__bool__": "`if tensor:` or the like", "__repr__": "printing", "__str__": "printing", "__format__": "printing",
            "__getitem__": "an index with a mask", "__setitem__": "an index with a mask", "__contains__": "`in tensor`",
            "__array__": "an array of it", "__index__": "a tensor in the place of an integer"}
#: Functions that copy a tensor to another device, also for an op or an index that finds it on the CPU.
_COPYING = frozenset(("transfer", "_index_tensor"))
#: Modules whose functions call what a user types while a debugger has stopped the program: Python's, and that of editors.
_DEBUGGERS = ("bdb", "pydevd", "_pydevd_bundle")


def _calling() -> list[str]:
    """The modules of the calls that run, the innermost first."""
    return [str(frame.f_globals.get("__name__")) for frame in upwards(sys._getframe(1))]


def _bytes_of(storage: Storage) -> TensorSpec:
    return TensorSpec.of((storage.extent,), np.uint8)


def _seeds() -> bool:
    """Is a generator's seed being set?"""
    return any(frame.f_code is Generator.manual_seed.__code__ for frame in upwards(sys._getframe(2)))


def _asked() -> str:
    """What the user's line calls, or writes, that reads a value."""
    name, owner = "", ""
    for frame in takewhile(lambda frame: is_inside(frame.f_code), upwards(sys._getframe(2))):
        code = frame.f_code
        if code.co_name in _COPYING:
            return "a copy to another device"
        if code.co_name not in _PASSING_ON:
            name, owner = code.co_name, ""
            if code.co_varnames[:1] == ("self",) and not isinstance(of := frame.f_locals.get("self"), Value):
                owner = type(of).__name__
    if local.state.anomaly and name in ("backward", ""):
        return "anomaly detection, which looks for NaN in gradients"
    if owner:
        return f"{owner}()" if name == "__init__" else f"{owner}.{name}()"
    if not name:
        return "what it calls there"
    return _WRITTEN.get(name, f"{name.strip('_') if name.startswith('__') else name}()")


class TraceLog(Tracer):
    """A log that keeps the call and operands of each launch, and raises TraceError for what no replay could repeat."""

    def __init__(self) -> None:
        super().__init__()
        #: How many calls ran when the trace began, without those of gradcore itself that began it.
        self._began = len(list(dropwhile(lambda name: name.partition(".")[0] == "gradcore", _calling())))
        #: By launch: the call, and its operands, each a number or a pair (weak reference to the storage, spec).
        self.launches: list[tuple[Call, list[Any]]] = []
        #: The serials of the storages of leaves that an op read. The leaves weakly: those that the run creates itself must be
        #: freed, with their gradients, as without a log.
        self.leaves: WeakKeyDictionary[Leaf, int] = WeakKeyDictionary()
        #: Other threads' records of allocations, launches and marks, by id.
        self.foreign: dict[int, Raw] = {}
        #: Reasons against a replay: of each kind the first, with its line.
        self.reasons: dict[str, str] = {}
        #: Did the gradient of an earlier compiled call run? Its launches are those of another program.
        self.replayed = False
        #: Nodes built during the trace have larger numbers.
        self.first = next_number()
        #: By serial: storages that the library filled with values that depend on shapes and attributes only.
        self.constants: dict[int, Storage] = {}
        #: Are some of them Python numbers, which came from anywhere?
        self.numbers = False
        #: If the run from now on is to be undone: what is written to, by serial, with its version and bytes of before.
        self.undo: dict[int, tuple[Storage, int, Any]] | None = None

    def viewed(self, source: Any) -> None:
        """A view of ``source`` is taken. A program needs no record of it, since the operands of launches have their specs."""
        self._read(source)

    def reshaped(self, tensor: Any) -> None:
        """A tensor gets another shape in place. The operands of launches say so for those that the run makes."""
        if not is_new(tensor):
            self._refuse(_RESHAPES)

    def _refuse(self, why: str) -> None:
        if why not in self.reasons:
            self.reasons[why] = f"{here()} {why}"

    def _read(self, value: Any) -> None:
        if value.edge is None:
            return
        node = value.edge[0]
        if type(node) is not Leaf:
            # The trace ends at the node of an argument.
            if node.id < self.first and local.state.grad and not getattr(node.op, "boundary", False):
                self._refuse(BEYOND)
        else:
            self.leaves.setdefault(node, value.storage.serial)

    def constant(self, storage: Storage, numbers: bool) -> None:
        """The values uploaded to this storage, perhaps ``numbers`` of Python's, are the same in every run."""
        self.constants[storage.serial] = storage
        self.numbers |= numbers

    def launched(self, call: Call, args: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        """An op runs. Its outputs are not held."""
        operands: list[Any] = []
        for a in args:
            if type(a) in TENSORS:
                operands.append((ref(a.storage), a.spec))
                self._read(a)
            else:
                operands.append(a)
        for i in call.writes if self.undo is not None else ():
            self._keep(args[i].storage)
        self.launches.append((call, operands))

    def _keep(self, storage: Storage) -> None:
        assert self.undo is not None
        if storage.serial not in self.undo:
            device = storage.device
            held = None if device.type == "meta" else device.copy_out(device.array(storage.block, _bytes_of(storage)))
            self.undo[storage.serial] = storage, storage.version, held

    def undone(self) -> None:
        """Write back what was written to since :attr:`undo` was set."""
        for storage, version, held in (self.undo or {}).values():
            if held is not None:
                storage.device.copy_in(storage.device.array(storage.block, _bytes_of(storage)), held)
            storage.version = version
        self.undo = None

    def _stopped(self) -> bool:
        """Has a debugger stopped the traced run, and reads for who looks? One below that has not."""
        return any(name.partition(".")[0] in _DEBUGGERS for name in _calling()[:-self._began or None])

    def append(self, record: Raw) -> None:
        if self.is_elsewhere():
            if record[0] in (LAUNCH, READ, UPLOAD):
                self.reasons[DISTURBED] = DISTURBED
            if record[0] in (ALLOC, LAUNCH, MARK):
                self.foreign[id(record)] = record
            super().append(record)
            return
        if record[0] == LAUNCH and 0 < record[3] < self.first:
            self._refuse(BEYOND)
        if record[0] == READ and self._stopped():
            # Nothing that the function computes depends on what is shown meanwhile.
            return
        if record[0] == READ:
            raise TraceError(f"{here()} reads a value of a tensor on the host, by {_asked()}. A traced function runs "
                             "once and is replayed without its Python code, so what depends on the value would be frozen: "
                             "compute it with ops, or read it outside, from what the function returns")
        if record[0] == UPLOAD and record[1] not in self.constants:
            if _seeds():
                raise TraceError(f"{here()} sets the seed of a generator (manual_seed(), seed()), which a replay would "
                                 "not do: set it outside")
            raise TraceError(f"{here()} makes a tensor from host data. A replay would use the values of the traced run: "
                             "make it outside, and pass it as an argument or let the function refer to it")
        super().append(record)
