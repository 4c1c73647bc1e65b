"""The graph: nodes hold what their rules will need, leaves hold gradients, and neither holds its own output."""

from __future__ import annotations

from typing import Any

from gradcore.devices.device import Storage
from gradcore.engine.plans import INPUT, OUTPUT, OVERWRITTEN, Call, KeepPlan
from gradcore.engine.state import local
from gradcore.errors import ModifiedInPlace
from gradcore.events import CONSUMED, DIED, DROP, KEEP, TAGS
from gradcore.spec import TensorSpec

#: What an operand may be besides a tensor, by type.
PLAIN = frozenset((int, float, bool, type(None)))

_new = object.__new__

#: (node or leaf, index of the output): where a tensor came from.
Edge = tuple[Any, int]


class Value:
    """A tensor as the engine sees it: a storage shown under a spec, and the edge to what made it.

    ``array`` is the device's array object over the storage, for kernels alone; whoever keeps it must keep the storage.
    """

    __slots__ = ("storage", "spec", "array", "edge", "base")

    storage: Storage
    spec: TensorSpec
    array: Any
    edge: Edge | None
    #: The tensor that this one is a view of, or None.
    base: Value | None


class Saved:
    """A residual: the storage and spec of a tensor, kept for a node's rules. ``edge`` is what double backward follows."""

    __slots__ = ("storage", "spec", "array", "edge", "output", "version", "node", "name")

    storage: Storage
    spec: TensorSpec
    array: Any
    edge: Edge | None
    #: Which output of its own node this is, None for an input. The edge to it is made when the node runs.
    output: int | None
    #: Of the storage, when it was kept.
    version: int
    #: The node's number, and the name that its rules use.
    node: int
    name: str

    def __del__(self) -> None:
        storage = self.storage
        block = storage.block
        block.keeps -= 1
        log = storage.device.ledger.log
        if log is not None:
            # It was consumed if it goes while backward runs its own node; else the graph died.
            log.append((DROP, block.serial, self.node, CONSUMED if local.state.node == self.node else DIED))

    def modified(self, op_name: str) -> ModifiedInPlace:
        """The error for bytes that were written to since they were kept."""
        storage = self.storage
        return ModifiedInPlace(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{self.name!r}, {self.spec}, kept by {op_name}, is at version {storage.version}; expected version "
            f"{self.version} instead. It was last written at {TAGS[storage.written_by].site} by "
            f"{TAGS[storage.written_by].op}")


def keep(value: Value, edge: Edge | None, output: int | None, node: int, name: str) -> Saved:
    """Keep a tensor for a node's rules."""
    saved: Saved = _new(Saved)
    storage = saved.storage = value.storage
    saved.spec = value.spec
    saved.array = value.array
    saved.edge = edge
    saved.output = output
    saved.version = storage.version
    saved.node = node
    saved.name = name
    block = storage.block
    block.keeps += 1
    log = storage.device.ledger.log
    if log is not None:
        log.append((KEEP, block.serial, node, name))
    return saved


class Node:
    """One run of an op that gradients flow through. ``dispatch`` fills it in: a constructor would cost a call an op."""

    __slots__ = ("id", "plan", "edges", "saved", "call", "scope", "site", "__weakref__")

    id: int
    plan: Any
    edges: list[Edge | None]
    call: Any
    #: Index of the scope, and of the line of source, that the op ran in.
    scope: int
    site: int
    #: Residuals in the order of ``plan.slots``; None where there are none, and once backward has run the node: letting
    #: them go is all it takes to give them back.
    saved: list[Any] | None

    @property
    def op(self) -> Any:
        return self.call.op

    def name(self) -> str:
        """``MulBackward0``."""
        return str(self.call.op.node_name)

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        return tuple((None, 0) if e is None else e for e in self.edges)

    def __repr__(self) -> str:
        return f"<{self.name()}>"


def build_node(call: Call, plan: KeepPlan, args: tuple[Any, ...], outputs: Any, aux: Any, edges: list[Any],
               number: int, site: int, scope: int, overwritten: Saved | None = None) -> Node:
    """The node of one run, with the residuals that its rules name."""
    node: Node = _new(Node)
    node.id = number
    node.plan = plan
    node.edges = edges
    node.call = call
    node.scope = scope
    node.site = site
    node.saved = None
    if plan.slots:
        saved: list[Any] = []
        node.saved = saved
        for kind, index, name in plan.slots:
            if kind == INPUT:
                value = args[index]
                if type(value) not in PLAIN:
                    value = keep(value, edges[index], None, number, name)
            elif kind == OVERWRITTEN:
                value = overwritten
            else:
                made = outputs[index] if kind == OUTPUT else aux[index]
                value = keep(made, None, index if kind == OUTPUT else len(outputs) + index, number, name)
            saved.append(value)
    return node


class Leaf:
    """Where a gradient ends up: the slot of a tensor that was made with ``requires_grad``."""

    __slots__ = ("grad", "spec", "device", "name", "__weakref__")

    def __init__(self, value: Value) -> None:
        self.grad: Any = None
        self.spec = value.spec
        self.device = value.storage.device
        self.name = ""

    next_functions: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return "<AccumulateGrad>"
