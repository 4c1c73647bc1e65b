"""``record`` and ``forward()``: ops are recorded while they run, and ``y.forward()`` runs those behind ``y`` again.

Tensors from before the recording are read with the values that they have by then, so new values go in by ``a.copy_(new)`` or
``a.data = new``. So are leaves that were created inside, which are parameters: their gradients go to those same tensors.
Each run builds the graph that ``y.backward()`` consumes; nothing has to be retained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from gradcore._random import default_generator
from gradcore._tensor import Tensor
from gradcore.devices.device import Device, devices, get_default_device
from gradcore.devices.storage import Storage
from gradcore.engine.below import reachable
from gradcore.engine.custom import CustomCall
from gradcore.engine.leaf import leaf_of
from gradcore.engine.modes import set_grad_enabled
from gradcore.engine.operands import TENSORS, grouped
from gradcore.engine.plans import Call
from gradcore.engine.sites import here
from gradcore.engine.state import local
from gradcore.events import VIEW, Raw
from gradcore.ops.op import get_op
from gradcore.program.calls.compiled import Compiled
from gradcore.program.replaying.differentiable import COMPILED
from gradcore.program.tracing.trace_log import TraceLog
from gradcore.program.tracing.tracing import Noting

#: A tensor as the record identifies it: the serial of its bytes, and its spec.
Name = tuple[int, Any]


@dataclass
class _Step:
    """One op. An operand is a number, or a pair (name, had it a graph?); ``counts`` has the lengths of list inputs."""

    op: str
    operands: list[Any]
    counts: list[int] | None
    attrs: dict[str, Any]
    outputs: list[Name]
    #: The serials of the operands that it writes to.
    writes: list[int]
    grad: bool
    #: The line of source.
    site: str

    def reads(self) -> list[int]:
        """The serials of the tensor operands."""
        return [x[0][0] for x in self.operands if type(x) is tuple]


class _OpLog(TraceLog):
    """A log that records the ops, views included, and the tensors from before the recording that they read."""

    rereads = True

    def __init__(self) -> None:
        super().__init__()
        self.record = _Record(self.first)
        self._made: set[int] = set()
        self._viewed: set[Name] = set()

    def viewed(self, source: Any) -> None:
        self._name(source)

    detached = viewed

    def launched(self, call: Call, args: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        operands = [(self._name(a), a.edge is not None) if type(a) in TENSORS else a for a in args]
        counts = [len(p) for p in call.positions] if call.op.lists else None
        names, writes = [(v.storage.serial, v.spec) for v in outputs], [args[k].storage.serial for k in call.writes]
        for v in outputs:
            _records[v.storage] = self.record, v.storage.serial, None
            self._made.add(v.storage.serial)
        self.record.steps.append(_Step(call.op.name, operands, counts, dict(call.attrs), names, writes,
                                       local.state.grad, str(here())))

    def append(self, record: Raw) -> None:
        super().append(record)
        if record[0] == VIEW and not self.is_elsewhere():
            invocation, serial = record[1], record[4]
            if len(invocation.inputs) > 1:
                # The engine records here that a part was written to, and will do so again when the write itself is run again.
                return
            names = [(serial, spec) for spec in invocation.outputs]
            self._viewed.update(names)
            self.record.steps.append(_Step(invocation.op, [((serial, invocation.inputs[0]), True)], None,
                                           dict(invocation.attrs), names, [], local.state.grad, str(here())))

    def _name(self, tensor: Any) -> Name:
        """The name of a tensor. One from before the recording, or a leaf, is held, to be read again."""
        name = tensor.storage.serial, tensor.spec
        made = name[0] in self._made
        if made and leaf_of(tensor) is not None:
            self.record.leaves.add(name[0])
            # The record holds it from here on, so it must not hold the record: they would keep each other alive.
            _records.pop(tensor.storage, None)
        elif made or name in self._viewed:
            return name
        held = self.record.roots.get(name)
        if held is None or (held.edge is None and tensor.edge is not None):
            # A detached tensor has the same name as its source, and only the source has the gradient.
            self.record.roots[name] = tensor
        return name


@dataclass
class _Record:
    """The ops that ran, and the tensors that they ran on. Nodes have numbers from ``first`` on."""

    first: int
    steps: list[_Step] = field(default_factory=list)
    roots: dict[Name, Any] = field(default_factory=dict)
    #: The serials of those roots that were created inside the recording.
    leaves: set[int] = field(default_factory=set)
    compiled: dict[tuple[Name, bool], Compiled] = field(default_factory=dict)

    def needed(self, target: Name) -> list[_Step]:
        """The steps that compute a result, in order, with those that write to it in place."""
        wanted, found = {target[0]}, []
        for step in reversed(self.steps):
            if not wanted.isdisjoint((*step.writes, *(serial for serial, _ in step.outputs))) and not self._fills_leaf(step):
                found.append(step)
                wanted.update(step.reads())
        for leaf in self.leaves & wanted:
            self._check_leaf(leaf)
        return found[::-1]

    def _fills_leaf(self, step: _Step) -> bool:
        """Does a step set the values of a leaf, which are not computed again, rather than take a view of it?"""
        if step.writes:
            return not self.leaves.isdisjoint(step.writes)
        return any(serial in self.leaves and serial not in step.reads() for serial, _ in step.outputs)

    def _check_leaf(self, leaf: int) -> None:
        """Raise RuntimeError if a leaf was computed from tensors of before: each run would make another leaf."""
        before, wanted, site = {serial for serial, _ in self.roots}, {leaf}, ""
        for step in reversed(self.steps):
            if any(serial in wanted for serial, _ in step.outputs):
                wanted.update(step.reads())
                site = site or step.site
        if len(wanted & before) > 1:
            raise RuntimeError(f"forward() cannot recompute the leaf that was made at {site} from other tensors and then got "
                               "requires_grad_(): make it before `with gradcore.record():`")

    def run(self, target: tuple[Name, bool]) -> Any:
        """The result, with its graph if it had one, computed again from the present values of the roots."""
        compiled = self.compiled.get(target)
        if compiled is None:
            steps, names = self.needed(target[0]), list(self.roots)
            compiled = self.compiled[target] = Compiled(
                lambda *tensors: _again(steps, dict(zip(names, tensors, strict=True)), target), leaves=True)
        return compiled(*self.roots.values())


def _again(steps: list[_Step], known: dict[Name, Any], target: tuple[Name, bool]) -> Any:
    for step in steps:
        op: Any = get_op(step.op)
        with set_grad_enabled(step.grad):
            args = [_operand(x, known) for x in step.operands]
            made = op(*(args if step.counts is None else grouped(op, args, step.counts)), **step.attrs)
        for name, value in zip(step.outputs, made if isinstance(made, tuple) else (made,), strict=False):
            known[name] = value
    return _operand(target, known)


def _operand(x: Any, known: dict[Name, Any]) -> Any:
    if type(x) is not tuple:
        return x
    name, graph = x
    found = known[name]
    return found if graph or found.edge is None else found.detach()


#: By storage, the record that made it; its serial then, as a gradient may have taken its place since; and if ``forward()`` made
#: the storage since, the name of its tensor in the record and whether that had a graph.
_records: WeakKeyDictionary[Storage, tuple[_Record, int, tuple[Name, bool] | None]] = WeakKeyDictionary()


class record(Noting):
    """A context manager: ``forward()`` of a tensor that is computed inside runs the ops that it comes from again.

    Raises TraceError for values that are read on the host, and for tensors that are made from host data inside.
    """

    def _contexts(self) -> Sequence[AbstractContextManager[Any]]:
        get_default_device()
        found = devices()[:]
        for device in found:
            # Made from host data, which a log refuses.
            default_generator(device)
        return [_noted(device) for device in found]


@contextmanager
def _noted(device: Device) -> Iterator[None]:
    log = _OpLog()
    try:
        device.ledger.begin_log(log)
        yield
    finally:
        device.ledger.end_log(log)


def forward(self: Any) -> Any:
    """Compute this tensor again from the present values of what it was computed from, with a new graph for ``backward()``.

    Returns the tensor itself, which then has other memory. Raises RuntimeError for one that was not made under
    :class:`gradcore.record`.
    """
    found, serial, target = _records.get(self.storage, (None, 0, None))
    if found is None or serial != self.storage.serial or leaf_of(self) is not None:
        raise RuntimeError("forward() needs a recorded graph, but this tensor was not computed under `with gradcore.record():`")
    if target is None:
        _refuse_what_is_lost(self, found.first)
        target = (self.storage.serial, self.spec), self.edge is not None
    result = found.run(target)
    self.storage, self.spec, self.array, self.edge, self.base = result.storage, result.spec, result.array, result.edge, None
    _records[self.storage] = found, self.storage.serial, target
    return self


def _refuse_what_is_lost(tensor: Any, first: int) -> None:
    """Raise RuntimeError for what another run would leave out of the graph's nodes from number ``first`` on: gradients that are
    no op's own, and hooks."""
    for node in reachable([tensor]).values() if tensor.edge is not None else ():
        if node.id < first:
            continue
        name, hooks = node.name(), node.hooks
        if type(node.call) is CustomCall and node.call.op.name != COMPILED:
            raise RuntimeError(f"forward() cannot run {name} again: the gradient of an autograd.Function is not recorded. "
                               "Write it with ops, or apply it outside of the record")
        if hooks is not None and (hooks.tensor or hooks.before or hooks.after or hooks.retained):
            raise RuntimeError(f"forward() would lose a hook or a retained gradient on the result of {name} inside of the "
                               "record: hang hooks on leaves, or on what forward() returns")


Tensor.forward = forward  # type: ignore[attr-defined]
