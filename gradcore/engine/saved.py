"""What a node keeps for its rules: tensors, what a hook made of them, and recipes of those that are made again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ref

from gradcore.devices.storage import Storage
from gradcore.engine.state import local, mark
from gradcore.engine.value import Edge, Value, make_value
from gradcore.errors import ModifiedInPlace
from gradcore.events import CONSUMED, DIED, DROP, KEEP, TAGS
from gradcore.spec import TensorSpec

if TYPE_CHECKING:
    from gradcore.engine.node import Node

_new = object.__new__


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


class Packed:
    """A residual as a pack hook left it; the unpack hook makes a tensor of it when the node runs."""

    __slots__ = ("packed", "unpack", "edge", "output", "node", "name", "kept")

    def __init__(self, hooks: tuple[Any, Any], value: Value, edge: Edge | None, output: int | None, node: int,
                 name: str) -> None:
        pack, self.unpack = hooks
        self.edge = edge
        self.output = output
        self.node = node
        self.name = name
        plain = make_value(value.storage, value.spec, value.array, None)
        mark("pack", f"{name} of node {node}")
        with unpacked():
            self.packed = pack(plain)
        parts = self.packed if isinstance(self.packed, (tuple, list)) else (self.packed,)
        #: Tensors that it is, or consists of: the graph keeps those instead.
        self.kept = [kept(x, None, None, node, name) for x in parts if isinstance(x, Value)]


@contextmanager
def unpacked() -> Iterator[None]:
    """Run a hook: its own ops keep nothing, and are put down to its own lines."""
    state = local.state
    before = (state.grad, state.packing, state.site)
    state.grad, state.packing, state.site = False, None, None
    try:
        yield
    finally:
        state.grad, state.packing, state.site = before


def keep(value: Value, edge: Edge | None, output: int | None, node: int, name: str) -> Saved | Packed:
    """Keep a tensor for a node's rules, or hand it to the pack hook that is in force."""
    hooks = local.state.packing
    if hooks is not None:
        return Packed(hooks, value, edge, output, node, name)
    return kept(value, edge, output, node, name)


def kept(value: Value, edge: Edge | None, output: int | None, node: int, name: str) -> Saved:
    """Note that a node keeps a tensor."""
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


class Recipe:
    """How a tensor that nobody keeps is made again: the run that made it, and what that run read.

    A tensor that several nodes ask for is made once, and held from the first of them to the last.
    """

    __slots__ = ("plan", "op", "spec", "scope", "site", "sources", "users", "value", "__weakref__")

    def __init__(self, node: Node, sources: list[Any]) -> None:
        self.plan = node.plan
        self.op = node.call.op.name
        self.spec = node.call.specs[0]
        self.scope = node.scope
        self.site = node.site
        #: :class:`Saved`, :class:`Again` and Python numbers. They are the node's own where it has them: a recipe holds
        #: nothing that would not be held without it, but for parameters.
        self.sources = sources
        #: Residuals that are not consumed yet.
        self.users = 0
        self.value: Any = None


def forget(remade: list[ref[Recipe]]) -> None:
    """Let go of the tensors that were made again and still wait for nodes."""
    for made in remade:
        recipe = made()
        if recipe is not None:
            recipe.value = None


class Again:
    """A residual that is not kept: it is made again when the node runs."""

    __slots__ = ("recipe", "edge", "output", "node", "name")

    def __init__(self, recipe: Recipe, edge: Edge | None, output: int | None, node: int, name: str) -> None:
        self.recipe = recipe
        self.edge = edge
        self.output = output
        self.node = node
        self.name = name
        recipe.users += 1

    def __del__(self) -> None:
        self.recipe.users -= 1
        if not self.recipe.users:
            self.recipe.value = None
