"""The graph: nodes hold what their rules will need, leaves hold gradients, and neither holds its own output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet, ref

from gradcore.devices.storage import Storage
from gradcore.engine.hooks import RemovableHandle, hang, hooks_of
from gradcore.engine.plans import INPUT, OUTPUT, OVERWRITTEN, Call, KeepPlan, Slot
from gradcore.engine.recipes import Again, Recipe, again
from gradcore.engine.saved import Packed, Rerun, Saved, keep, kept
from gradcore.engine.state import Where, local
from gradcore.engine.value import PLAIN, Edge, Value, alias
from gradcore.errors import AlreadyReleased
from gradcore.events import Network, Site

#: The most outputs of cheap ops that are recomputed each from the one before. Every node of such a chain has those before it
#: computed anew: of a loop that applies an activation n times, n * n / 2.
DEEPEST = 8

_new = object.__new__


class Node:
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

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)``, tuples both, when the node has run; it may return other grad_inputs."""
        return hang(hooks_of(self).after, hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node runs; it may return others."""
        return hang(hooks_of(self).before, hook)

    @property
    def metadata(self) -> dict[str, Any]:
        """A dict in which a program may note what it wants, for as long as the node exists."""
        found: dict[str, Any] = hooks_of(self).metadata
        return found

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
    if plan.cheap and packing is None and state.recompute and (depth := _depth(call, plan.beside, args, edges, outputs[0])):
        _plan_again(node, args, outputs, aux, edges, depth)
    elif plan.slots:
        saved: list[Any] = []
        node.saved = saved
        follows = False
        for slot in plan.slots:
            kind, index, name = slot
            if kind == INPUT and packing is None and type(args[index]) not in PLAIN and (
                    (edge := edges[index]) is None or edge[0].recipe is None):
                # What _residual does in the usual case.
                saved.append(kept(args[index], edge, None, number, name))
            else:
                residual = _residual(node, slot, args, outputs, aux, edges, overwritten)
                saved.append(residual)
                if type(residual) is Again:
                    follows = plan.follows and state.recompute
        if follows and (depth := _depth(call, plan.beside, args, edges, outputs[0])):
            node.recipe = _recipe(node, args, outputs, aux, edges, depth, saved)
    elif plan.gathers and packing is None and state.recompute and (not plan.follows or _any_remade(edges)):
        _gather(node, args, outputs, edges)
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


def _residual(node: Node, slot: Slot, args: tuple[Any, ...], outputs: Any, aux: Any, edges: list[Any],
              overwritten: Saved | Packed | None) -> Any:
    """The content of a slot: a kept tensor, one that can be recomputed, or a Python number."""
    kind, index, name = slot
    if kind == INPUT:
        value = args[index]
        if type(value) in PLAIN:
            return value
        edge = edges[index]
        # Bytes that another node keeps, as of a view of what its node keeps, cost nothing.
        if edge is not None and not value.storage.block.keeps and is_remade(value) and local.state.packing is None and (
                found := again(edge[0].recipe, edge[1], edge, None, name)) is not None:
            return found
        return keep(value, edge, None, node.id, name)
    if kind == OVERWRITTEN:
        return overwritten
    made = outputs[index] if kind == OUTPUT else aux[index]
    return keep(made, None, index if kind == OUTPUT else len(outputs) + index, node.id, name)


def _any_remade(edges: list[Any]) -> bool:
    for edge in edges:  # noqa: SIM110 - sums are many, and a generator takes three times as long
        if edge is not None and edge[0].recipe is not None:
            return True
    return False


def is_remade(value: Value) -> bool:
    """Has a tensor's node a recipe for it, and is it still what that makes?"""
    if value.edge is None or value.storage.version:
        return False
    recipe = value.edge[0].recipe
    return recipe is not None and value.edge[1] < recipe.plan.makes


def _depth(call: Call, inputs: tuple[int, ...], args: tuple[Any, ...], edges: list[Any], output: Value) -> int:
    """How many tensors a recipe that reads these inputs makes, one from the other; 0 if that is too many, or if it may not read
    one of these, which its node does not keep."""
    depth = 1
    for edge in edges:
        if edge is not None and (recipe := edge[0].recipe) is not None and recipe.depth >= depth:
            depth = recipe.depth + 1
    if depth > DEEPEST:
        return 0
    for i in inputs:
        if type(args[i]) not in PLAIN and not _readable(args[i], edges[i], output, call.op.follows):
            return 0
    return depth


def _readable(value: Value, edge: Edge | None, output: Value, follows: bool) -> bool:
    """May a recipe read a tensor that its node does not keep? One that is recomputed, or kept by the node that made it; and a
    smaller one that no node made, such as the bias of a norm. Not one that is added, as running means are: programs write to
    these before backward, which would raise."""
    if edge is None or type(edge[0]) is Leaf:
        return not follows and value.spec.numel < output.spec.numel
    node, k = edge
    if node.recipe is not None and k < node.recipe.plan.makes:
        return not value.storage.version
    return any(type(r) is Saved and r.output == k and r.storage is value.storage and r.version == value.storage.version
               for r in node.saved or ())


def _plan_again(node: Node, args: tuple[Any, ...], outputs: Any, aux: Any, edges: list[Any], depth: int) -> None:
    """Set the residuals of a cheap op, and the recipe of its output, which reads only what is kept anyway."""
    plan = node.plan
    saved = [None if slot[0] == OUTPUT else _residual(node, slot, args, outputs, aux, edges, None) for slot in plan.slots]
    node.recipe = recipe = _recipe(node, args, outputs, aux, edges, depth, saved)
    for k, slot in enumerate(plan.slots):
        if slot[0] == OUTPUT:
            saved[k] = (None if slot[1] else again(recipe, 0, None, 0, slot[2])) or _residual(
                node, slot, args, outputs, aux, edges, None)
    node.saved = saved or None


def _recipe(node: Node, args: tuple[Any, ...], outputs: Any, aux: Any, edges: list[Any], depth: int,
            saved: list[Any]) -> Recipe:
    """How the output is recomputed, from the residuals ``saved`` where these are what it takes."""
    given: list[Any] = []
    asks = False
    for slot, place in node.plan.again_slots:
        if place is not None:
            given.append(saved[place])
        elif slot[0] == INPUT and (edge := edges[slot[1]]) is not None and type(edge[0]) is not Leaf:
            given.append(edge)
            asks = True
        else:
            given.append(_residual(node, slot, args, outputs, aux, edges, None))
    return Recipe(node, given, asks, depth)


def _gather(node: Node, args: tuple[Any, ...], outputs: Any, edges: list[Any]) -> None:
    """Keep the inputs in the place of the output, if that takes a third of the memory at most, since the others are kept or
    recomputed anyway. Or up to as much, if one was gathered before: the next op will gather it again, as in a DenseNet, and it
    is kept once for all (Pleiss et al., Memory-Efficient Implementation of DenseNets, arXiv:1707.06990).

    For more than a third it is not worth it: at the peak the output is often alive, too, as an argument of the layer that
    reads it. The inputs' keepers may go, and then they never take more than the output.
    """
    before = False
    whole: dict[Storage, int] = {}
    more = 0
    for value, edge in zip(args, edges, strict=True):
        storage = value.storage
        made = edge is not None and type(edge[0]) is not Leaf
        if not hasattr(storage, "gathered"):
            storage.gathered = []
        elif made:
            # What no op has made is gathered in every step.
            before = True
        if storage not in whole and (edge is None or (made and not is_remade(value))):
            whole[storage] = storage.block.requested
            if not storage.block.keeps:
                more += storage.block.requested
    output = outputs[0].storage
    if sum(whole.values()) > output.block.requested or (not before and 3 * more > output.block.requested) or not (
            depth := _depth(node.call, (), args, edges, outputs[0])):
        return
    given = [_residual(node, slot, args, outputs, (), edges, None) for slot, _ in node.plan.again_slots]
    recipe = node.recipe = Recipe(node, given, False, depth)
    weak = ref(recipe)
    for value in args:
        value.storage.gathered = [other for other in value.storage.gathered if other() is not None] + [weak]
    recipe.result = ref(output, partial(_drop_unasked, ref(node)))


def _drop_unasked(node: ref[Node], _: Any) -> None:
    """When an op's result goes: if nobody has asked for its recipe, nobody can."""
    made = node()
    if made is not None and made.recipe is not None and not made.recipe.users:
        made.recipe = None


def note_overwritten(node: Node, written: list[Any], copy: Saved | Packed | None) -> None:
    """Outdate the residuals that the node's own op has overwritten, so that backward raises for them."""
    for residual in node.saved or ():
        if type(residual) is Saved and residual.output is None and residual is not copy and any(
                residual.storage is target.storage for target in written):
            residual.version -= 1


#: All leaves that exist.
all_leaves: WeakSet[Leaf] = WeakSet()


class Leaf:
    """Where a gradient ends up: the slot of a tensor that was made with ``requires_grad``."""

    __slots__ = ("grad", "spec", "device", "path", "network", "hooks", "frozen", "tensor", "__weakref__")

    def __init__(self, value: Value) -> None:
        self.grad: Any = None
        #: Has the tensor's requires_grad been set to False since? Graphs from before lead here, but add nothing.
        self.frozen = False
        self.spec = value.spec
        self.device = value.storage.device
        #: Where a module has its tensor, "" for others; and what that is a path in.
        self.path = ""
        self.network: Network | None = None
        self.tensor = ref(value)
        self.hooks: Any = None
        all_leaves.add(self)

    next_functions: tuple[Any, ...] = ()
    recipe = None  # a leaf is never recomputed
    # Around the moment at which the gradient is added, which is passed as the cotangent.
    register_hook, register_prehook, metadata = Node.register_hook, Node.register_prehook, Node.metadata

    def name(self) -> str:
        return "torch::autograd::AccumulateGrad"

    def described(self) -> str:
        """In messages: where a module has its tensor, and the spec."""
        return f"{self.path or 'a leaf'}, {self.spec}"

    @property
    def variable(self) -> Any:
        """The tensor whose gradient it is; None once that is gone."""
        return self.tensor()

    def __repr__(self) -> str:
        return "<AccumulateGrad>"


def leaf_of(tensor: Value) -> Leaf | None:
    """The leaf that a tensor is; None for one that requires no gradient, or that was computed."""
    return None if tensor.edge is None or type(tensor.edge[0]) is not Leaf else tensor.edge[0]
