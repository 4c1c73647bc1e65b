"""Residuals: tensors that a node keeps for its rules, results of pack hooks, and recipes to recompute tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

from gradcore.devices.storage import Storage
from gradcore.engine.state import local, mark, unwatched
from gradcore.engine.value import Edge, Value, alias
from gradcore.errors import ModifiedInPlace
from gradcore.events import CONSUMED, DIED, DROP, KEEP
from gradcore.spec import TensorSpec

if TYPE_CHECKING:
    from gradcore.engine.node import Node

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


class Sources(list[Any]):
    """What a recipe reads: :class:`Saved`, :class:`Again` and Python numbers."""

    __slots__ = ("__weakref__",)


class Recipe:
    """How to recompute a tensor that is not kept: the op that made it, and what that op read.

    If several nodes need the tensor, it is computed once, and held from the first of them to the last.
    """

    __slots__ = ("plan", "op", "spec", "scope", "site", "given", "asks", "shared", "depth", "users", "value", "__weakref__")

    def __init__(self, node: Node, given: list[Any], asks: bool, depth: int) -> None:
        self.plan = node.plan
        self.op = node.call.op.name
        self.spec = node.call.specs[0]
        self.scope = node.scope
        self.site = node.site
        #: What it reads, shared with its node where that has it; and edges of what other nodes recompute or keep. These are
        #: asked for it as long as something needs the tensor: but for parameters, a recipe alone keeps nothing alive that
        #: would not be kept without it.
        self.given = given
        #: Are there such edges?
        self.asks = asks
        self.shared: ref[Sources] | None = None
        #: How many tensors are recomputed for it, one from the other, with its own.
        self.depth = depth
        #: Residuals that are not consumed yet.
        self.users = 0
        self.value: Any = None

    def sources(self) -> list[Any] | None:
        """What it reads, the same for all that need the tensor; None if a node that would recompute or keep some has let go."""
        if not self.asks:
            return self.given
        found = None if self.shared is None else self.shared()
        if found is None:
            found = Sources()
            for x in self.given:
                if type(x) is tuple and (x := _held(x)) is None:
                    return None
                found.append(x)
            self.shared = ref(found)
        return found


def _held(edge: Edge) -> Saved | Again | None:
    """What a node keeps or recomputes of its output; None if it has let go of that."""
    node, k = edge
    if node.recipe is not None and not k:
        return again(node.recipe, None, None, "x")
    return next((r for r in node.saved or () if type(r) is Saved and r.output == k), None)


def forget(remade: list[ref[Any]]) -> None:
    """Let go of the tensors that recipes, and others, still hold for nodes."""
    for made in remade:
        holder = made()
        if holder is not None:
            holder.value = None


class Again:
    """A residual that is not kept, but recomputed when the node runs."""

    __slots__ = ("recipe", "sources", "edge", "output", "name")

    def __init__(self, recipe: Recipe, sources: list[Any], edge: Edge | None, output: int | None, name: str) -> None:
        self.recipe = recipe
        self.sources = sources
        self.edge = edge
        self.output = output
        self.name = name
        recipe.users += 1

    def __del__(self) -> None:
        try:
            recipe = self.recipe
        except AttributeError:
            # An interrupt came before it.
            return
        recipe.users -= 1
        if not recipe.users:
            recipe.value = None


def again(recipe: Recipe, edge: Edge | None, output: int | None, name: str) -> Again | None:
    """A residual that is recomputed; None if what that takes is gone."""
    sources = recipe.sources()
    return None if sources is None else Again(recipe, sources, edge, output, name)


def beside(r: Any) -> Sequence[Any]:
    """What a residual or a recipe keeps alive beside itself: what recipes read, and what a checkpoint runs again on."""
    if isinstance(r, Again):
        return r.sources
    if isinstance(r, Recipe):
        return r.given
    return r.packed.keeps() if isinstance(r, Packed) and isinstance(r.packed, Deferred) else ()
