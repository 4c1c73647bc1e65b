"""Walks through the graph below tensors: which nodes there are, and which of them lead to captured edges."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from gradcore.engine.leaf import Leaf
from gradcore.engine.node import Node
from gradcore.engine.plans import KeepPlan
from gradcore.engine.value import Edge, Value


class GradientEdge(NamedTuple):
    """Where the gradient of a tensor arrives: a node, or the leaf that accumulates it, and the number of the output."""

    node: Any
    output_nr: int
    #: Nothing: a node keeps the graph below it.
    ownership_token: Any = None


#: Slots for the cotangents that a backward pass is to return, by (id of the target, index) of the edge that they arrive at.
Captures = dict[tuple[int, int], list[Any]]


def captures_of(who: str, inputs: Sequence[Any]) -> Captures:
    """An empty slot for each input. Raises TypeError for a non-tensor, RuntimeError for one that requires no gradient."""
    for k, x in enumerate(inputs):
        if isinstance(x, GradientEdge):
            continue
        if not isinstance(x, Value):
            raise TypeError(f"{who}: expected inputs to be tensors, but got {type(x).__name__}")
        if x.edge is None:
            raise RuntimeError(f"One of the differentiated Tensors does not require grad: inputs[{k}] of shape "
                               f"{list(x.spec.shape)}")
    return {slot_of(x): [None] for x in inputs}


def slot_of(x: Any) -> tuple[int, int]:
    """The key, in :data:`Captures`, of a tensor that requires a gradient, or of an edge."""
    node, index = x[:2] if isinstance(x, GradientEdge) else behind(x.edge)
    return id(node), index


def behind(edge: Edge) -> Edge:
    """The edge itself, or the one behind the identity that marks where a traced graph ends."""
    node = edge[0]
    return node.edges[0] if type(node) is Node and getattr(node.op, "boundary", False) else edge  # type: ignore[return-value]


def last_uses(roots: Sequence[Any]) -> dict[Leaf, int]:
    """The oldest node below ``roots`` that leads to each leaf."""
    oldest: dict[Leaf, int] = {}
    for node in reachable(roots).values():
        for edge in node.edges:
            if edge is not None and type(edge[0]) is Leaf:
                oldest[edge[0]] = min(node.id, oldest.get(edge[0], node.id))
    return oldest


def leaves_below(roots: Sequence[Any]) -> set[Leaf]:
    """The leaves that ``roots`` lead to, or are."""
    tracked = [root for root in roots if root.edge is not None]
    return {root.edge[0] for root in tracked if type(root.edge[0]) is Leaf} | last_uses(tracked).keys()


def reachable(roots: Sequence[Any]) -> dict[int, Node]:
    """Every node below ``roots``, by number."""
    found: dict[int, Node] = {}
    stack = [r.edge[0] for r in roots if type(r.edge[0]) is Node]
    while stack:
        node = stack.pop()
        if node.id not in found:
            found[node.id] = node
            stack.extend(e[0] for e in node.edges if e is not None and type(e[0]) is Node)
    return found


def executed(roots: Sequence[Any], captures: Captures | None) -> set[int]:
    """The ids of the nodes that a backward from ``roots`` runs, and of the leaves and captured nodes that get a gradient."""
    nodes = reachable(roots)
    edges = [root.edge for root in roots] + [edge for node in nodes.values() for edge in node.edges if edge is not None]
    there = {id(target) for target, _ in edges}
    if captures is None:
        return there
    return there & ({id(nodes[number]) for number in leads_to(captures, roots)} | {target for target, _ in captures})


def leads_to(captures: Captures, roots: Sequence[Any]) -> set[int]:
    """Numbers of the nodes from which a captured edge can be reached."""
    found = reachable(roots)
    wanted: set[int] = set()
    for number in sorted(found):
        if any(_leads(edge, captures, wanted) for edge in found[number].edges):
            wanted.add(number)
    return wanted


def _leads(edge: Edge | None, captures: Captures, wanted: set[int]) -> bool:
    """Whether an edge is captured, or belongs to a node from which a captured edge can be reached."""
    return edge is not None and ((id(edge[0]), edge[1]) in captures or (type(edge[0]) is Node and edge[0].id in wanted))


def rules_for(node: Node, captures: Captures, wanted: set[int]) -> tuple[list[Any], Container[int]]:
    """A node's rules for the inputs from which a captured edge can be reached, and the places of the residuals that they read:
    no other gradient is delivered, or computed."""
    edges = [edge if _leads(edge, captures, wanted) else None for edge in node.edges]
    plan: Any = node.plan
    everything = range(len(plan.slots))
    if edges == node.edges:
        return list(plan.rules), everything
    # A rule for several inputs is bound to those that want a gradient; the node's own rules, to all that did in forward.
    fewer = node.call.plan(edges) if type(plan) is KeepPlan else None
    at: Sequence[int] | None = None
    if fewer is not None and set(fewer.slots) <= set(plan.slots):
        plan, at = fewer, [plan.slots.index(slot) for slot in fewer.slots]
    rules = []
    for targets, several, rule, ends in plan.rules:
        led = [edges[i] is not None for i in targets]
        if any(led):
            rules.append((targets, several, _narrowed(rule, at, led if several else None), ends if at is None else ()))
    return rules, everything if at is None else at


def _narrowed(rule: Callable[..., Any], at: Sequence[int] | None, led: Sequence[bool] | None) -> Callable[..., Any]:
    """A rule that reads only the residuals in some places, and of several gradients returns only those that lead to a captured
    edge: hooks would see, and ``retain_grad`` add, a part of another."""
    def narrowed(gs: list[Any], values: list[Any]) -> Any:
        found = rule(gs, values if at is None else [values[i] for i in at])
        return found if led is None else [part if leads else None for part, leads in zip(found, led, strict=True)]

    return narrowed
