"""Residuals that are recomputed: recipes of tensors that nobody keeps, from what is kept anyway.

The output of a norm or an activation, of a view, copy or product of such an output, need not be kept for backward: the op is
run again on what its node keeps for its own rules, when the first node that wants the output runs. An op declares it with
``again=``; :func:`~gradcore.engine.node.build_node` says when a node gets a recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from gradcore.devices.storage import Storage
from gradcore.engine.saved import Deferred, Packed, Saved, kept
from gradcore.engine.state import unwatching
from gradcore.engine.value import Edge, alias
from gradcore.ops.movement import clone
from gradcore.spec import TensorSpec

if TYPE_CHECKING:
    from gradcore.engine.node import Node

_new = object.__new__


#: All recipes that keep inputs themselves, of which there are none between most steps.
gathering: WeakSet[Recipe] = WeakSet()


class Sources(list[Any]):
    """What a recipe reads: :class:`Saved`, :class:`Again` and Python numbers."""

    __slots__ = ("__weakref__",)


class Recipe:
    """How to recompute what is not kept of an op's results: the op, and what it read.

    If several nodes need it, it is computed once, and held from the first of them to the last. What is computed for a recipe
    that keeps inputs is computed once more for these, and held then: it is not beside what they are inputs of.
    """

    __slots__ = ("plan", "call", "scope", "site", "given", "asks", "shared", "depth", "users", "value", "made_in", "result",
                 "__weakref__")

    def __init__(self, node: Node, given: list[Any], asks: bool, depth: int) -> None:
        self.plan = node.plan
        self.call = node.call
        self.scope = node.scope
        self.site = node.site
        #: What it reads, shared with its node where that has it; and edges of what other nodes recompute or keep. These are
        #: asked for it as long as something needs the tensor: but for parameters, and for inputs that are kept in the place of
        #: the output, a recipe alone keeps nothing alive that would not be kept without it.
        self.given = given
        #: Are there such edges?
        self.asks = asks
        self.shared: ref[Sources] | None = None
        #: How many tensors are recomputed for it, one from the other, with its own, counted as for ``DEEPEST``.
        self.depth = depth
        #: Residuals that are not consumed yet.
        self.users = 0
        #: What the op has given, while nodes still wait for it.
        self.value: Any = None
        #: The list of what the last backward held for nodes, if the op has run in it for what gathers its result.
        self.made_in: Any = None
        #: Of one that inputs are kept for: a weak reference to the result, whose end drops a recipe that nobody asked for.
        self.result: Any = None

    def sources(self) -> list[Any] | None:
        """What a recipe that asks for some of it reads, the same for all that need it; None if a node that would recompute or
        keep some has let go."""
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
    if node.recipe is not None and k < node.recipe.plan.makes:
        return again(node.recipe, k, None, None, "x")
    return next((r for r in node.saved or () if type(r) is Saved and r.output == k), None)


def forget(remade: list[ref[Any]]) -> None:
    """Let go of the tensors that recipes, and others, still hold for nodes."""
    for made in remade:
        holder = made()
        if holder is not None:
            holder.value = None


class Again:
    """A residual that is not kept, but recomputed when the node runs."""

    __slots__ = ("recipe", "index", "sources", "edge", "output", "name")

    recipe: Recipe
    #: Which of the op's outputs it is.
    index: int
    sources: list[Any]
    #: As those of :class:`~gradcore.engine.saved.Saved`.
    edge: Edge | None
    output: int | None
    name: str

    @property
    def spec(self) -> TensorSpec:
        found: TensorSpec = self.recipe.call.specs[self.index]
        return found

    def __del__(self) -> None:
        try:
            recipe = self.recipe
        except AttributeError:
            # An interrupt came before it.
            return
        recipe.users -= 1
        if not recipe.users:
            recipe.value = None


def again(recipe: Recipe, index: int, edge: Edge | None, output: int | None, name: str) -> Again | None:
    """A residual that is recomputed, the output ``index`` of a recipe's op; None if what that takes is gone."""
    sources = recipe.sources() if recipe.asks else recipe.given
    if not sources:
        return None
    made: Again = _new(Again)
    recipe.users += 1
    made.recipe = recipe
    made.index = index
    made.sources = sources
    made.edge = edge
    made.output = output
    made.name = name
    return made


def spare(storage: Storage) -> None:
    """Before a write to bytes, or before an array of another library shows them: recipes that gather them go on with a copy,
    since programs may write to what nobody but a recipe keeps; or with nothing, if nobody has asked for the result yet."""
    for weak in getattr(storage, "gathered", ()) if storage.block.keeps else ():
        recipe = weak()
        for k, r in enumerate(() if recipe is None else recipe.given):
            if type(r) is Saved and r.storage is storage and r.version == storage.version:
                if not recipe.users:
                    recipe.given.clear()
                    break
                # A selective checkpoint, in which the write is, counts no ops that another graph takes.
                with unwatching():
                    recipe.given[k] = kept(clone(alias(r, None)), None, None, r.node, r.name)


def beside(r: Any) -> Sequence[Any]:
    """What a residual or a recipe keeps alive beside itself: what recipes read, and what a checkpoint runs again on."""
    if isinstance(r, Again):
        return r.sources
    if isinstance(r, Recipe):
        return r.given
    return r.packed.keeps() if isinstance(r, Packed) and isinstance(r.packed, Deferred) else ()
