"""Reverse accumulation: runs nodes from the newest to the oldest, and releases what each one kept as soon as it ran.

Nodes are numbered as they are made, so a node's consumers all have larger numbers: taking the largest pending number
first is a topological order, found without walking the graph beforehand (Griewank and Walther, Evaluating Derivatives,
section 3.2).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from heapq import heappop, heappush
from typing import Any
from weakref import ref

import numpy as np

from gradcore.engine.accumulating import accumulate, add_to
from gradcore.engine.autocast import note
from gradcore.engine.below import Captures, executed, last_uses, leads_to, rules_for
from gradcore.engine.hook_calls import after_leaf, after_node, as_user, before_node, on_outputs, seen
from gradcore.engine.leaf import Leaf
from gradcore.engine.node import Node
from gradcore.engine.plans import KeepPlan
from gradcore.engine.recipes import forget
from gradcore.engine.residuals import RELEASED, residuals
from gradcore.engine.sites import here
from gradcore.engine.state import local, mark
from gradcore.engine.value import Edge, alias
from gradcore.errors import DeviceError, SpecError
from gradcore.events import Tag
from gradcore.memory.placement import install_outlives
from gradcore.ops.creation import full
from gradcore.ops.movement import cast


def run_backward(roots: Sequence[Any], gradients: Sequence[Any], *, captures: Captures | None, create_graph: bool,
                 retain_graph: bool | None = None, accumulating: bool = False, partial: bool = False) -> None:
    """Propagate cotangents from ``roots`` to the leaves. If ``captures`` is given, only what it names gets cotangents: in its
    slots, or with ``accumulating`` in the leaves themselves. ``partial`` says that the caller wants no others.
    ``retain_graph`` is by default as ``create_graph``.

    Raises RuntimeError for a root without a graph, for a missing cotangent of a root that is not a scalar, and for a node
    whose residuals were released. Unless ``retain_graph``, residuals of the nodes that ran are released in any case.
    """
    state = local.state
    caller = here()
    before = (state.grad, state.scope, state.site, state.node, state.autocast, state.remade, state.partial,
              state.sweep, state.packing)
    mark("begin", "backward")
    sweep = Sweep(captures, create_graph if retain_graph is None else retain_graph, roots, accumulating)
    for device in {root.storage.device for root in roots}:
        if device.several:
            device.join()
    try:
        state.grad = create_graph
        state.remade, state.sweep = sweep.remade, sweep
        state.partial = partial or state.partial
        # Forward has chosen the dtypes.
        state.autocast = None
        place = "backward", caller
        state.scope = state.scope.at(*place)
        for root, g in zip(roots, gradients, strict=True):
            sweep.deliver(root.edge, _seed(root, g))
        wanted = None if captures is None else leads_to(captures, roots)
        plain = wanted is None and not state.anomaly
        forward = None
        heap, pending = sweep.heap, sweep.pending
        while pending:
            number = -heappop(heap)
            node, gs = pending.pop(number)
            if node.scope is not forward:
                forward = node.scope
                state.scope = forward.others.get(place) or forward.at(*place)
            state.site, state.node = node.site, number
            if plain and node.hooks is None:
                sweep.run(node, gs)
            else:
                sweep.watch(node, gs, wanted)
            node = gs = None  # type: ignore[assignment]
            if sweep.held:
                sweep.let_go(number)
        sweep.let_go(0)
    finally:
        # First, so that an interrupt cannot skip it.
        (state.grad, state.scope, state.site, state.node, state.autocast, state.remade, state.partial,
         state.sweep, state.packing) = before
        if state.autocast is not None:
            # A region that ended within this pass, as that of a checkpoint, has seen none around it.
            note(True)
        forget(sweep.remade)
        mark("end", "backward")


class Sweep:
    """One backward pass: the nodes that have received a cotangent, and where cotangents go."""

    __slots__ = ("pending", "heap", "edges", "captures", "accumulating", "retain_graph", "roots", "remade", "held", "last_use",
                 "_executed", "__weakref__")

    def __init__(self, captures: Captures | None, retain_graph: bool, roots: Sequence[Any], accumulating: bool = False) -> None:
        #: Nodes that have received a cotangent and have not run, by number, with a cotangent for each output.
        self.pending: dict[int, tuple[Node, list[Any]]] = {}
        #: Their numbers, negated: the newest node runs first.
        self.heap: list[int] = []
        #: Those of the node that runs, or ran last.
        self.edges: Sequence[Edge | None] = ()
        self.captures = captures
        #: Do the captured leaves accumulate their gradients, instead of the slots?
        self.accumulating = accumulating
        self.retain_graph = retain_graph
        self.roots = roots
        #: Recipes whose recomputed tensors are held for further nodes, among others. Not held themselves: a recipe holds what
        #: its tensor was made from, which goes back with the last node that asks.
        self.remade: list[ref[Any]] = []
        #: The gradients so far of leaves with hooks, which are called with the whole gradient.
        self.held: dict[Leaf, list[Any]] = {}
        #: For each leaf the oldest node that may still add to its gradient; None before a leaf with hooks has one.
        self.last_use: dict[Leaf, int] | None = None

    def executed(self) -> set[int]:
        """What :func:`~gradcore.engine.below.executed` tells of the pass, computed once: many hooks may ask."""
        if not hasattr(self, "_executed"):
            self._executed = executed(self.roots, self.captures)
        return self._executed

    def run(self, node: Node, gs: list[Any], rules: list[Any] | None = None, read: Container[int] | None = None,
            watched: bool = False) -> None:
        """Run a node's rules, or some of them, which read these residuals; deliver what they return; release the residuals."""
        edges = self.edges = node.edges
        state = local.state
        try:
            values: Any = residuals(node, self.remade, read) if node.plan.slots else ()
            if rules is None:
                rules = node.plan.rules
            if watched:
                self._run_watched(node, gs, values, rules)
                return
            spending: Any = None if state.grad else node.plan.spends
            for targets, several, rule, ends in rules:
                # What becomes the gradient of a leaf, the pool keeps away from what the next step needs in one piece.
                if rule is spending and (edge := edges[targets[0]]) is not None and type(edge[0]) is not Leaf:
                    state.spending = gs, values, None if self.retain_graph else node
                    result = rule(gs, values)
                    state.spending = None
                    # The cotangent's bytes may be the result's now, which is asked who refers to them where it is delivered.
                    gs.clear()
                else:
                    result = rule(gs, values)
                for k in ends:
                    values[k] = None
                    if not self.retain_graph:
                        # None if another thread has run the node, too.
                        (node.saved or values)[k] = RELEASED
                        node.recipe = None
                if several:
                    parts = list(result)
                    result = None
                    for i, part in zip(targets, parts, strict=True):
                        if part is not None and edges[i] is not None:
                            self.deliver(edges[i], _own(part, gs) if gs and (part is gs[0] or len(gs) > 1) else part)
                    parts = part = None  # type: ignore[assignment]
                elif result is not None:
                    self.deliver(edges[targets[0]], _own(result, gs) if gs and (result is gs[0] or len(gs) > 1) else result)
                    result = None
        finally:
            state.spending = None
            if self.retain_graph:
                node.ran = True
            else:
                node.saved = node.recipe = None

    def watch(self, node: Node, gs: list[Any], wanted: set[int] | None) -> None:
        """Run a node with hooks, with captures, or under anomaly detection; only capture where nothing more is wanted."""
        if node.hooks is not None:
            on_outputs(node, gs)
        if self.captures is not None:
            self._capture(node, gs)
        if wanted is not None and node.id not in wanted:
            return
        if node.hooks is not None:
            before_node(node, gs)
        rules, read = (node.plan.rules, None) if wanted is None else rules_for(node, self.captures or {}, wanted)
        if node.hooks is not None and type(node.plan) is KeepPlan and all(g is None for g in gs):
            # A pre-hook has stopped them. A function's own backward gets zeros.
            rules, read = [], ()
        self.run(node, gs, rules, read, watched=local.state.anomaly or (node.hooks is not None and bool(node.hooks.after)))

    def _run_watched(self, node: Node, gs: list[Any], values: Any, rules: list[Any]) -> None:
        """The rules of :meth:`run`, for hooks and anomaly detection, which see all gradients of the node before any is
        delivered."""
        results: list[Any] = [None] * len(node.edges)
        for targets, several, rule, _ in rules:
            result = rule(gs, values)
            for i, part in zip(targets, result if several else (result,), strict=True):
                if part is not None and node.edges[i] is not None:
                    results[i] = alias(part, part.edge)
        result = part = None
        if local.state.anomaly:
            check_for_nan(node, results)
        if node.hooks is not None and node.hooks.after:
            results = after_node(node, results, tuple(gs))
        for i, edge in enumerate(node.edges):
            g, results[i] = results[i], None
            if g is not None and edge is not None:
                self.deliver(edge, g)

    def drain(self, last: int) -> None:
        """Run every pending node that is newer than number ``last``, without hooks or captures."""
        try:
            while self.heap and -self.heap[0] > last:
                local.state.node = number = -heappop(self.heap)
                node, gs = self.pending.pop(number)
                self.run(node, gs)
                node = gs = None  # type: ignore[assignment]
        finally:
            forget(self.remade)

    def deliver(self, edge: Edge, g: Any) -> None:
        """Add a cotangent to its target: a leaf's gradient, a slot of ``captures``, or a pending node."""
        target, index = edge
        if type(target) is Leaf:
            slot = None if self.captures is None else self.captures.get((id(target), 0))
            if slot is None and self.captures is not None:
                return
            if target.hooks is not None:
                self._hold(target, g)
            elif self.accumulating or slot is None:
                accumulate(target, g)
            else:
                add_to(slot, 0, g)
            return
        waiting = self.pending.get(target.id)
        if waiting is None:
            gs: list[Any] = [g]
            if target.call.width > 1:
                gs = [None] * target.call.width
                gs[index] = g
            number = target.id
            self.pending[number] = (target, gs)
            heappush(self.heap, -number)
        else:
            add_to(waiting[1], index, g)

    def _capture(self, node: Node, gs: list[Any]) -> None:
        """Store the captured cotangents of a node, as tensor objects of their own."""
        assert self.captures is not None
        for k, g in enumerate(gs):
            slot = self.captures.get((id(node), k))
            if slot is not None and g is not None:
                slot[0] = alias(g, g.edge)

    def _hold(self, leaf: Leaf, g: Any) -> None:
        if self.last_use is None:
            self.last_use = last_uses(self.roots)
        add_to(self.held.setdefault(leaf, [None]), 0, g)

    def let_go(self, number: int) -> None:
        """After node ``number``: run the hooks of leaves whose gradient no older node adds to, and accumulate it."""
        last_use = self.last_use or {}
        for leaf in [leaf for leaf in self.held if last_use.get(leaf, 0) >= number]:
            g, = self.held.pop(leaf)
            with as_user():
                g = seen(g, 0, leaf.hooks, "a leaf")
            if self.captures is None or self.accumulating:
                gs = [g]
                before_node(leaf, gs)
                if gs[0] is not None:
                    accumulate(leaf, gs[0])
                after_leaf(leaf)
                after_node(leaf, [], tuple(None if g is None else alias(g, g.edge) for g in gs))
                g = gs = None  # type: ignore[assignment]
            else:
                self.captures[id(leaf), 0][0] = g


def check_for_nan(node: Node, results: Sequence[Any]) -> None:
    """Raise RuntimeError for the first gradient that holds a NaN, with the line of forward that made its node."""
    for k, g in enumerate(results):
        if g is not None and g.storage.device.type != "meta" and np.isnan(g.storage.device.read(g.storage, g.spec)).any():
            layer = node.scope.plain.layer
            raise RuntimeError(f"Function '{node.name()}' returned nan values in its {k}th output. Its forward ran at "
                               f"{node.site}" + (f" in layer {layer}" if layer else ""))


def _own(part: Any, gs: list[Any]) -> Any:
    """``part`` as a tensor object of its own if it is one of ``gs``, which a rule may return as they are.

    The engine delivers only tensor objects that nothing else holds, so that the reference count of a storage tells whether
    anybody else sees its bytes.
    """
    for g in gs:
        if part is g:
            return alias(g, g.edge)
    return part


def _outlives(tag: Tag) -> bool:
    """Will a tensor that is being allocated with this tag become a gradient, as far as shapes tell?"""
    sweep, spec = local.state.sweep, tag.spec
    return sweep is not None and spec is not None and any(
        edge is not None and type(edge[0]) is Leaf and edge[0].spec.shape == spec.shape for edge in sweep.edges)


install_outlives(_outlives)


def _seed(root: Any, g: Any) -> Any:
    """The cotangent of a root: the one that the caller gave, in the root's dtype, or 1 for a scalar."""
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
    if g.storage.device.compute is not root.storage.device.compute:
        raise DeviceError(f"the gradient is on {g.storage.device} and the output on {root.storage.device}")
    if g.spec.dtype != root.spec.dtype:
        # A leaf would be left with it, and its type decides how the optimizer's steps are computed.
        return cast(g, dtype=root.spec.dtype)
    return alias(g, g.edge)
