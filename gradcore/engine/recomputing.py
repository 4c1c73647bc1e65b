"""Which residuals a node recomputes instead of keeping them, and whether its own output can be recomputed.

An output gets a recipe in one of three ways: that of a cheap op, if all that it takes is kept or recomputed anyway; that of a
product, if a residual of its node is recomputed, too; that of ``cat``, of a sum, or of what is made of a far smaller tensor, if
inputs may be kept in its place.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from gradcore.devices.storage import Storage
from gradcore.engine.leaf import Leaf
from gradcore.engine.plans import INPUT, OUTPUT, OVERWRITTEN, Call, Slot
from gradcore.engine.recipes import Recipe, again, gathering
from gradcore.engine.saved import Packed, Saved, keep
from gradcore.engine.state import local
from gradcore.engine.value import PLAIN, Edge, Value
from gradcore.events import BORROW

if TYPE_CHECKING:
    from gradcore.engine.node import Node

#: The most outputs that are recomputed each from the one before. Every node of such a chain has those before it computed anew:
#: of a loop that applies an activation n times, n * n / 2. A view computes nothing, and an upsampling takes three for each
#: dimension: an output counts two, a view one. A sum counts four: what is made for it is often held until its own nodes have
#: run, at the peak that of all blocks which are recomputed from one another.
DEEPEST = 16


def residual_of(node: Node, slot: Slot, args: tuple[Any, ...], outputs: Any, aux: Any, edges: list[Any],
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


def is_remade(value: Value) -> bool:
    """Has a tensor's node a recipe for it, and is it still what that makes?"""
    if value.edge is None or value.storage.version:
        return False
    recipe = value.edge[0].recipe
    return recipe is not None and value.edge[1] < recipe.plan.makes


def depth_of(call: Call, inputs: tuple[int, ...], args: tuple[Any, ...], edges: list[Any], output: Value, own: int = 2) -> int:
    """How many tensors a recipe that reads these inputs makes, one from the other, as :data:`DEEPEST` counts them; 0 if that is
    too many, or if it may not read one of these, which its node does not keep."""
    depth = own = 1 if call.op.view else own
    for edge in edges:
        if edge is not None and (recipe := edge[0].recipe) is not None and recipe.depth + own > depth:
            depth = recipe.depth + own
    if depth > DEEPEST:
        return 0
    made = call.op.follows or call.op.flops is not None
    for i in inputs:
        if type(args[i]) not in PLAIN and not _readable(args[i], edges[i], output, made):
            return 0
    return depth


def _readable(value: Value, edge: Edge | None, output: Value, made: bool) -> bool:
    """May a recipe read a tensor that its node does not keep? One that is recomputed, or kept by the node that made it; and,
    unless it must be ``made`` by a node, a smaller one, such as the bias of a norm. Not one that is added, as running means or
    the bias of a product are: programs, and arrays of other libraries, write to these before backward."""
    if edge is None or type(edge[0]) is Leaf:
        return not made and value.spec.numel < output.spec.numel
    node, k = edge
    if node.recipe is not None and k < node.recipe.plan.makes:
        return not value.storage.version
    return any(type(r) is Saved and r.output == k and r.storage is value.storage and r.version == value.storage.version
               for r in node.saved or ())


def recompute_output(node: Node, args: tuple[Any, ...], outputs: Any, aux: Any, edges: list[Any], depth: int) -> None:
    """Set the residuals of a cheap op, and the recipe of its output, which reads only what is kept anyway."""
    plan = node.plan
    saved = [None if slot[0] == OUTPUT else residual_of(node, slot, args, outputs, aux, edges, None) for slot in plan.slots]
    node.recipe = recipe = recipe_of(node, args, outputs, aux, edges, depth, saved)
    for k, slot in enumerate(plan.slots):
        if slot[0] == OUTPUT:
            saved[k] = (None if slot[1] else again(recipe, 0, None, 0, slot[2])) or residual_of(
                node, slot, args, outputs, aux, edges, None)
    node.saved = saved or None


def recipe_of(node: Node, args: tuple[Any, ...], outputs: Any, aux: Any, edges: list[Any], depth: int,
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
            given.append(residual_of(node, slot, args, outputs, aux, edges, None))
    return Recipe(node, given, asks, depth)


def gather(node: Node, args: tuple[Any, ...], outputs: Any, edges: list[Any]) -> None:
    """Keep the inputs that no rule reads in the place of the output, if that takes a third of the memory at most: they are far
    smaller, or the others are kept or recomputed anyway. Or up to as much, if one was gathered before: the next op will gather
    it again, as in a DenseNet, and it is kept once for all (Pleiss et al., Memory-Efficient Implementation of DenseNets,
    arXiv:1707.06990).

    For more than a third it is not worth it: at the peak the output is often alive, too, as an argument of the layer that
    reads it. The inputs' keepers may go, and then they never take more than the output.
    """
    before = False
    whole: dict[Storage, int] = {}
    more = 0
    for i in node.plan.beside:
        value, edge = args[i], edges[i]
        if type(value) in PLAIN:
            continue
        storage = value.storage
        if (tag := storage.block.tag).op == BORROW or tag.export is not None:
            # Nobody sees what arrays of other libraries write.
            return
        made = edge is not None and type(edge[0]) is not Leaf
        if not hasattr(storage, "gathered"):
            storage.gathered = []
        elif made and (value.base is None or value.base.edge is None or type(value.base.edge[0]) is not Leaf):
            # What no op has made, or a view of that, is gathered in every step.
            before = True
        if storage not in whole and (edge is None or (made and not is_remade(value))):
            whole[storage] = storage.block.requested
            if not storage.block.keeps:
                more += storage.block.requested
    output = outputs[0].storage
    if sum(whole.values()) > output.block.requested or (not before and 3 * more > output.block.requested) or not (
            depth := depth_of(node.call, (), args, edges, outputs[0], own=4)):
        return
    given = [residual_of(node, slot, args, outputs, (), edges, None) if place is None else (node.saved or ())[place]
             for slot, place in node.plan.again_slots]
    recipe = node.recipe = Recipe(node, given, False, depth)
    gathering.add(recipe)
    weak = ref(recipe)
    for storage in {args[i].storage for i in node.plan.beside if type(args[i]) not in PLAIN}:
        storage.gathered = [other for other in storage.gathered if other() is not None] + [weak]
    recipe.result = ref(output, partial(_drop_unasked, ref(node)))


def _drop_unasked(node: ref[Node], _: Any) -> None:
    """When an op's result goes: if nobody has asked for its recipe, nobody can."""
    made = node()
    if made is not None and made.recipe is not None and not made.recipe.users:
        made.recipe = None
