"""The graph's nodes: they hold what their rules will need, and never their own output."""

from __future__ import annotations

from typing import Any

from gradcore.engine.hooks import Hookable
from gradcore.engine.plans import INPUT, OVERWRITTEN, Call, KeepPlan
from gradcore.engine.recipes import Again, Recipe
from gradcore.engine.recomputing import depth_of, gather, recipe_of, recompute_output, residual_of
from gradcore.engine.saved import Packed, Rerun, Saved, kept
from gradcore.engine.state import Where, local
from gradcore.engine.value import PLAIN, Edge, alias
from gradcore.errors import AlreadyReleased
from gradcore.events import Site

_new = object.__new__


class Node(Hookable):
    """One run of an op that gradients flow through. Its fields are set by :func:`build_node`, to save a constructor call."""

    __slots__ = ("id", "plan", "edges", "saved", "recipe", "hooks", "call", "scope", "site", "ran", "__weakref__")

    id: int
    plan: Any
    edges: list[Edge | None]
    call: Any
    #: The scope that the op ran in, and the line of source.
    scope: Where
    site: Site
    #: Residuals in the order of ``plan.slots``; None if there are none, and after backward has run the node: dropping
    #: the references is all that it takes to release them.
    saved: list[Any] | None
    #: How the first output of a cheap op, or all views of one, are recomputed; dropped with the residuals.
    recipe: Recipe | None
    #: :class:`~gradcore.engine.hooks.Hooks`, or None.
    hooks: Any
    #: Set once backward has run the node and left its residuals; unset before, so that building a node is cheap.
    ran: bool

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The residuals as tensors without a graph. Raises RuntimeError after they were released."""
        if self.saved is None and self.plan.slots:
            raise AlreadyReleased("Trying to backward through the graph a second time (or directly access saved tensors after "
                                  f"they have already been freed): {self.name()} released its residuals when it ran")
        return tuple(alias(r, None) for r in self.saved or () if type(r) is Saved)

    @property
    def op(self) -> Any:
        """The op whose gradient the node computes."""
        return self.call.op

    def name(self) -> str:
        """``MulBackward0``."""
        return str(self.call.op.node_name)

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """For each input the node that made it, or None, and the number of that node's output."""
        return tuple((None, 0) if e is None else e for e in self.edges)

    def __repr__(self) -> str:
        return f"<{self.name()}>"


def build_node(call: Call, plan: KeepPlan, args: tuple[Any, ...], outputs: Any, aux: Any, edges: list[Any],
               number: int, site: Site, scope: Where, overwritten: Saved | Packed | None = None) -> Node:
    """The node of one run, with the residuals that its rules name."""
    state = local.state
    packing = state.packing
    if type(packing) is Rerun:
        return _rebuilt(packing, call, plan, args, outputs, aux, edges, number, site, scope, overwritten)
    node: Node = _new(Node)
    node.id = number
    node.plan = plan
    node.edges = edges
    node.call = call
    node.scope = scope
    node.site = site
    node.saved = None
    node.recipe = node.hooks = None
    if plan.cheap and packing is None and state.recompute and (depth := depth_of(call, plan.beside, args, edges, outputs[0])):
        recompute_output(node, args, outputs, aux, edges, depth)
    elif plan.slots:
        saved: list[Any] = []
        node.saved = saved
        follows = False
        for slot in plan.slots:
            kind, index, name = slot
            if kind == INPUT and packing is None and type(args[index]) not in PLAIN and (
                    (edge := edges[index]) is None or edge[0].recipe is None):
                # What residual_of does in the usual case.
                saved.append(kept(args[index], edge, None, number, name))
            else:
                residual = residual_of(node, slot, args, outputs, aux, edges, overwritten)
                saved.append(residual)
                if type(residual) is Again:
                    follows = plan.follows and state.recompute
        if plan.repeats and packing is None and state.recompute:
            gather(node, args, outputs, edges)
        elif follows and (depth := depth_of(call, plan.beside, args, edges, outputs[0])):
            node.recipe = recipe_of(node, args, outputs, aux, edges, depth, saved)
    elif plan.gathers and packing is None and state.recompute:
        for edge in edges:
            # Of a sum an input must be recomputed.
            if not plan.follows or (edge is not None and edge[0].recipe is not None):
                gather(node, args, outputs, edges)
                break
    return node


def _rebuilt(packing: Rerun, *run: Any) -> Node:
    """The node of a run with the residuals that it has without hooks, each shown to ``packing``, in the order of its slots."""
    state = local.state
    recompute = state.recompute
    try:
        state.packing, state.recompute = None, recompute and not packing.found
        node = build_node(*run)
    finally:
        state.packing, state.recompute, packing.found = packing, recompute, False
    for slot, residual in zip(node.plan.slots, node.saved or (), strict=False):
        # What the op has overwritten was copied, and shown, before.
        if slot[0] != OVERWRITTEN and type(residual) not in PLAIN:
            packing.take(residual)
    return node


def note_overwritten(node: Node, written: list[Any], copy: Saved | Packed | None) -> None:
    """Outdate the residuals that the node's own op has overwritten, so that backward raises for them."""
    for residual in node.saved or ():
        if type(residual) is Saved and residual.output is None and residual is not copy and any(
                residual.storage is target.storage for target in written):
            residual.version -= 1
