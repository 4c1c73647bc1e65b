"""Reverse accumulation: run nodes from the newest to the oldest, and give back what each one kept as soon as it ran.

Nodes are numbered as they are made, so a node's consumers all have larger numbers: taking the largest pending number
first is a topological order, found without walking the graph beforehand (Griewank and Walther, Evaluating Derivatives,
section 3.2).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from heapq import heappop, heappush
from time import perf_counter_ns
from typing import Any

from gradcore.devices.device import devices
from gradcore.engine.dispatch import make_value
from gradcore.engine.node import Edge, Leaf, Node, Recipe
from gradcore.engine.owners import retag
from gradcore.engine.residuals import BACKWARD_SCOPES, backward_scope, residuals
from gradcore.engine.state import here, local
from gradcore.errors import SpecError
from gradcore.events import MARK
from gradcore.ops.creation import full
from gradcore.ops.elementwise import add, add_
from gradcore.ops.movement import clone

#: (node or leaf, output index) -> where a requested gradient is collected, for ``autograd.grad``.
Captures = dict[tuple[int, int], list[Any]]


def mark(what: str, label: str) -> None:
    """Note a moment in every log that is being written."""
    for device in devices():
        if device.ledger.log is not None:
            device.ledger.log.append((MARK, what, label, perf_counter_ns()))


def run_backward(roots: Sequence[Any], gradients: Sequence[Any], *, retain_graph: bool, create_graph: bool,
                 captures: Captures | None = None) -> None:
    """Propagate cotangents from ``roots`` into the leaves, or into ``captures`` alone where given.

    Raises RuntimeError for roots without a graph, for a missing cotangent of a root that is no scalar, and for a node
    that was released; residuals of the nodes that ran have gone back whatever happens.
    """
    state = local.state
    caller = here()
    before = (state.grad, state.scope, state.site, state.node)
    mark("begin", "backward")
    sweep = Sweep(captures, retain_graph)
    try:
        state.grad = create_graph
        state.scope = backward_scope(state.scope, caller)
        for root, g in zip(roots, gradients, strict=True):
            sweep.deliver(root.edge, _seed(root, g))
        wanted = None if captures is None else _leads_to(captures, roots)
        forward = -1
        heap, pending = sweep.heap, sweep.pending
        while pending:
            # With one node waiting, as along a chain, there is nothing to order.
            number = -heappop(heap) if len(heap) > 1 else -heap.pop()
            node, gs = pending.pop(number)
            if wanted is not None and number not in wanted:
                continue
            if node.scope != forward:
                forward = node.scope
                state.scope = BACKWARD_SCOPES.get((forward, caller)) or backward_scope(forward, caller)
            state.site = node.site
            state.node = number
            sweep.run(node, gs)
            node = gs = None  # type: ignore[assignment]
    finally:
        for recipe in sweep.remade:
            recipe.value = None
        state.grad, state.scope, state.site, state.node = before
        mark("end", "backward")


class Sweep:
    """One backward pass: which nodes have been given a cotangent, and where cotangents go."""

    __slots__ = ("pending", "heap", "captures", "retain_graph", "remade")

    def __init__(self, captures: Captures | None, retain_graph: bool) -> None:
        #: Nodes that have been given a cotangent and have not run, by number, with a cotangent for each output.
        self.pending: dict[int, tuple[Node, list[Any]]] = {}
        #: Their numbers, negated: the newest node runs first.
        self.heap: list[int] = []
        self.captures = captures
        #: Recipes whose tensors were made again and are waiting for more nodes to ask for them.
        self.remade: list[Recipe] = []
        self.retain_graph = retain_graph

    def run(self, node: Node, gs: list[Any]) -> None:
        """Run a node's rules, pass on what they return, and let its residuals go."""
        edges = node.edges
        try:
            values = residuals(node, gs, self.remade) if node.plan.slots else ()
            for targets, several, rule in node.plan.rules:
                result = rule(gs, values)
                if several:
                    parts = list(result)
                    result = None
                    for i, part in zip(targets, parts, strict=True):
                        if part is not None and edges[i] is not None:
                            self.deliver(edges[i], _own(part, gs))
                    parts = part = None  # type: ignore[assignment]
                elif result is not None:
                    # A rule may pass a cotangent on; the engine delivers tensor objects that nobody else holds, so that
                    # the references to a storage tell who sees its bytes.
                    if result is gs[0] or len(gs) > 1:
                        result = _own(result, gs)
                    self.deliver(edges[targets[0]], result)
                    result = None
        finally:
            if not self.retain_graph:
                node.saved = node.recipe = None

    def deliver(self, edge: Edge, g: Any) -> None:
        """Add a cotangent to where it goes: the slot of a leaf, or what a node is still waiting for."""
        target, index = edge
        if self.captures is not None:
            slot = self.captures.get((id(target), index))
            if slot is not None:
                # A tensor object of its own, where the node gets the cotangent too: neither may add in place then.
                _add_to(slot, 0, g if type(target) is Leaf else make_value(g.storage, g.spec, g.array, g.edge))
            if type(target) is Leaf:
                return
        if type(target) is Leaf:
            accumulate(target, g)
            return
        waiting = self.pending.get(target.id)
        if waiting is None:
            gs: list[Any] = [None] * target.call.width
            gs[index] = g
            number = target.id
            self.pending[number] = (target, gs)
            heappush(self.heap, -number)
        else:
            _add_to(waiting[1], index, g)


def _own(part: Any, gs: list[Any]) -> Any:
    """``part`` as a tensor object that nobody else holds, so that the references to its storage tell who sees its bytes."""
    for g in gs:
        if part is g:
            return make_value(g.storage, g.spec, g.array, g.edge)
    return part


def _add_to(gs: list[Any], index: int, g: Any) -> None:
    there = gs[index]
    if there is None:
        gs[index] = g
    elif not local.state.grad and _unseen(there) and there.spec.contiguous:
        add_(there, g)
    else:
        gs[index] = add(there, g)


def _unseen(value: Any) -> bool:
    """Does nothing but ``value`` itself refer to its bytes? One reference is the tensor's, one the argument here."""
    return sys.getrefcount(value.storage) <= 2


def accumulate(leaf: Leaf, g: Any) -> None:
    """Add ``g`` to a leaf's gradient.

    The first is adopted where nobody else sees its bytes, and copied where somebody does (an op that passes its
    cotangent on, a gradient that the caller gave); later ones are added in place unless somebody holds the slot.
    """
    there = leaf.grad
    if there is None:
        whole = g.spec.contiguous and g.storage.nbytes == g.spec.nbytes
        if local.state.grad or (whole and _unseen(g)):
            leaf.grad = g
        else:
            leaf.grad = clone(g)
    else:
        held = sys.getrefcount(there) > 3
        if not held and not local.state.grad and _unseen(there):
            add_(there, g)
            return
        leaf.grad = add(there, g)
    retag(leaf.grad, role="gradient")


def _seed(root: Any, g: Any) -> Any:
    """The cotangent of a root: what the caller gave, or 1 for a scalar."""
    if root.edge is None:
        raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
    if g is None:
        if root.spec.numel != 1:
            raise RuntimeError(f"grad can be implicitly created only for scalar outputs, but got shape "
                               f"{list(root.spec.shape)}; pass gradient=")
        return full(1.0, shape=root.spec.shape, dtype=root.spec.dtype, device=root.storage.device)
    if g.spec.shape != root.spec.shape:
        raise SpecError(f"Mismatch in shape: the gradient has shape {list(g.spec.shape)} and the output has shape "
                        f"{list(root.spec.shape)}")
    return make_value(g.storage, g.spec, g.array, g.edge)


def _leads_to(captures: Captures, roots: Sequence[Any]) -> set[int]:
    """Numbers of the nodes from which a captured edge can be reached."""
    found: dict[int, Node] = {}
    stack = [r.edge[0] for r in roots if type(r.edge[0]) is Node]
    while stack:
        node = stack.pop()
        if node.id not in found:
            found[node.id] = node
            stack.extend(e[0] for e in node.edges if e is not None and type(e[0]) is Node)
    wanted: set[int] = set()
    for number in sorted(found):
        for edge in found[number].edges:
            if edge is not None and ((id(edge[0]), edge[1]) in captures
                                     or (type(edge[0]) is Node and edge[0].id in wanted)):
                wanted.add(number)
    return wanted
