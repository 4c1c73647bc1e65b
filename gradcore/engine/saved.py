"""Residuals that are kept: tensors that a node keeps for its rules, and results of pack hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradcore.devices.storage import Storage
from gradcore.engine.state import local, mark, unwatched
from gradcore.engine.value import Edge, Value, alias
from gradcore.errors import ModifiedInPlace
from gradcore.events import CONSUMED, DIED, DROP, KEEP
from gradcore.spec import TensorSpec

if TYPE_CHECKING:
    from gradcore.engine.recipes import Again

_new = object.__new__


class Saved:
    """A kept tensor: its storage and spec. ``edge`` is what double backward follows."""

    __slots__ = ("storage", "spec", "array", "edge", "output", "version", "node", "name")

    storage: Storage
    spec: TensorSpec
    array: Any
    edge: Edge | None
    #: Which output of its own node this is, None for an input. The edge to it is made when the node runs.
    output: int | None
    #: The storage's version when it was kept.
    version: int
    #: The node's number, and the name that its rules use.
    node: int
    name: str

    def __del__(self) -> None:
        try:
            storage = self.storage
        except AttributeError:
            # An interrupt came before it.
            return
        block = storage.block
        block.keeps -= 1
        log = storage.device.ledger.log
        if log is not None:
            # If it goes while backward runs its node, it was consumed; otherwise the graph died.
            log.append((DROP, block.serial, self.node, CONSUMED if local.state.node == self.node else DIED))

    def modified(self, op_name: str) -> ModifiedInPlace:
        """The error for a write since the tensor was kept."""
        storage = self.storage
        return ModifiedInPlace(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{self.name!r}, {self.spec}, kept by {op_name}, is at version {storage.version}; expected version "
            f"{self.version} instead. It was last written at {storage.written_by.site} by {storage.written_by.op}")


class Deferred:
    """What a pack hook of the library's own returns if the tensor will be computed again."""

    __slots__ = ()

    def keeps(self) -> list[Saved | Packed | Again]:
        """What it keeps alive for that."""
        raise NotImplementedError


class Packed:
    """The result of a pack hook; the unpack hook turns it into a tensor when the node runs."""

    __slots__ = ("packed", "unpack", "spec", "edge", "output", "node", "name", "kept")

    def __init__(self, hooks: tuple[Any, Any], value: Value, edge: Edge | None, output: int | None, node: int,
                 name: str) -> None:
        pack, self.unpack = hooks
        self.spec = value.spec
        self.edge = edge
        self.output = output
        self.node = node
        self.name = name
        plain = alias(value, None)
        mark("pack", f"{name} of node {node}")
        before = value.storage.version
        self.packed = answer(pack, plain)
        if value.storage.version != before:
            raise RuntimeError("A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack "
                               "hook cannot be modified by in-place operations as this can lead to unexpected side-effects.")
        parts = self.packed if isinstance(self.packed, (tuple, list)) else (self.packed,)
        #: The tensors in it, which the graph keeps instead of the packed one.
        self.kept = [kept(x, None, None, node, name) for x in parts if isinstance(x, Value)]


@dataclass(eq=False, slots=True)
class Rerun:
    """Stands for pack hooks while the residuals that hooks packed are made again.

    Nodes keep what they would without hooks, recipes among it, and ``take`` is called with each of these residuals in the order
    in which the tensors were packed.
    """

    take: Callable[[Saved | Again], None]
    #: Was the result of the op whose node is built next there, so that it is not to be recomputed?
    found: bool = False


def answer(hook: Callable[[Any], Any], given: Any) -> Any:
    """What a pack or unpack hook returns: its ops keep nothing, are not watched, and have the hook's own lines as sites."""
    state = local.state
    before = (state.grad, state.packing, state.site, state.scope)
    try:
        state.grad, state.packing, state.site, state.scope = False, None, None, unwatched(state.scope)
        return hook(given)
    finally:
        state.grad, state.packing, state.site, state.scope = before


def keep(value: Value, edge: Edge | None, output: int | None, node: int, name: str) -> Saved | Packed:
    """Keep a tensor for a node's rules, or pass it to the present pack hook if there is one."""
    hooks = local.state.packing
    if hooks is None:
        return kept(value, edge, output, node, name)
    if type(hooks) is not Rerun:
        return Packed(hooks, value, edge, output, node, name)
    saved = kept(value, edge, output, node, name)
    hooks.take(saved)
    return saved


def kept(value: Value, edge: Edge | None, output: int | None, node: int, name: str) -> Saved:
    """Keep a tensor for a node's rules, and log it."""
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
