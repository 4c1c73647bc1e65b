"""The residuals that a node's rules receive: kept tensors, and those that are recomputed."""

from __future__ import annotations

from collections.abc import Container
from typing import Any
from weakref import ref

from gradcore.engine.node import Node
from gradcore.engine.recipes import Again, Recipe, forget
from gradcore.engine.saved import Packed, Saved, answer
from gradcore.engine.state import local, mark
from gradcore.engine.value import Value, alias
from gradcore.errors import AlreadyReleased
from gradcore.ops.movement import cast_to

#: In the place of a residual that the running node has read for the last time; another thread may ask for it.
RELEASED = ...


def residuals(node: Node, remade: list[ref[Any]], read: Container[int] | None = None) -> list[Any]:
    """A node's residuals as fresh tensors whose edges are the node's own, so that double backward finds the graph. With
    ``read``, the places of those that rules will read, no other is recomputed.

    Raises :class:`AlreadyReleased` and :class:`~gradcore.errors.ModifiedInPlace`. Recipes whose tensor is held for
    another node are appended to ``remade``.
    """
    double = local.state.grad
    saved = node.saved
    if saved is None:
        raise _released(node)
    if read is not None:
        saved = [r if type(r) is not Again or k in read else None for k, r in enumerate(saved)]
    values = []
    for residual in saved:
        kind = type(residual)
        if kind is Saved or kind is Packed or kind is Again:
            edge = (node, residual.output) if double and residual.output is not None else residual.edge
            if kind is Saved:
                if residual.storage.version != residual.version:
                    raise residual.modified(node.name())
                residual = alias(residual, edge)
            elif kind is Packed:
                if double and edge is not None and edge[0].recipe is not None:
                    # What the hook returns may be another tensor than the node would recompute, such as a rounded one.
                    edge[0].recipe = None
                residual = unpack(residual, edge)
            else:
                residual = alias(_make(residual, node, remade), edge)
        elif residual is RELEASED:
            raise _released(node)
        values.append(residual)
    return values


def _released(node: Node) -> AlreadyReleased:
    return AlreadyReleased(
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
        f"freed): {node.name()} of {node.site} released its residuals when it ran. Specify retain_graph=True if you "
        "need to backward through the graph a second time or if you need to access saved tensors after calling backward.")


def unpack(residual: Packed, edge: Any) -> Any:
    """The tensor that the unpack hook returns, in the dtype that was packed: rules know their operands by it, and gradients of
    another would reach leaves. Raises TypeError if it is none."""
    mark("unpack", f"{residual.name} of node {residual.node}")
    value = answer(residual.unpack, residual.packed)
    if not isinstance(value, Value):
        raise TypeError(f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
                        f"{type(value).__name__}")
    return alias(cast_to(alias(value, None), residual.spec), edge)


def recalled(residual: Saved | Again, reader: Any) -> Any:
    """The tensor of a residual, without an edge; ``reader`` has the ``name`` of what reads it.

    Raises :class:`~gradcore.errors.ModifiedInPlace`.
    """
    if isinstance(residual, Saved):
        return _unchanged(residual, reader)
    remade = local.state.remade
    alone: list[ref[Any]] = []
    try:
        return _make(residual, reader, alone if remade is None else remade)
    finally:
        forget(alone)


def _unchanged(saved: Saved, reader: Any) -> Any:
    """A kept tensor, without an edge. Raises :class:`~gradcore.errors.ModifiedInPlace` if it was written to since."""
    if saved.storage.version != saved.version:
        raise saved.modified(reader.name())
    return alias(saved, None)


def _make(residual: Again, node: Any, remade: list[ref[Any]]) -> Any:
    """The tensor of a recipe, for a rule of ``node``. The layer that first computed it owns what recomputing allocates."""
    recipe = residual.recipe
    made = recipe.value
    if made is None:
        made = _run(recipe, residual.sources, node, remade)
    return made[residual.index] if type(made) is tuple else made


def _run(recipe: Recipe, given: list[Any], node: Any, remade: list[ref[Any]]) -> Any:
    """What a recipe's op gives.

    What is made for one that gathers is made again for its next reader, and held from then on: it would be beside the result in
    the backward of the layer that reads that, as parts of ``cat``, or all residual blocks that are made from one another.
    """
    sources = []
    held = len(remade)
    for source in given:
        if type(source) is Saved:
            source = _unchanged(source, node)
        elif type(source) is Again:
            source = _make(source, node, remade)
        sources.append(source)
    state = local.state
    before = (state.scope, state.site)
    # No source has an edge, so no graph is built.
    now = state.scope.plain
    state.scope = recipe.scope.at(now.phase, now.caller)
    state.site = recipe.site
    try:
        made = recipe.plan.again(None, sources)
    finally:
        state.scope, state.site = before
    if recipe.result is not None:
        for at in remade[held:]:
            part = at()
            if part is not None and part.made_in is not remade:
                part.made_in, part.value = remade, None
    if recipe.users > 1:
        recipe.value = made
        remade.append(ref(recipe))
    return made
