"""Nodes whose rule is a user's function; the engine treats them as any other node."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from gradcore.engine.dispatch import next_number
from gradcore.engine.node import Node
from gradcore.engine.saved import keep
from gradcore.engine.sites import here
from gradcore.engine.state import local
from gradcore.spec import TensorSpec


class CustomOp:
    """The op of a custom node, which is in no table."""

    __slots__ = ("name", "node_name", "boundary")

    def __init__(self, name: str) -> None:
        self.name = name
        #: Is it the identity that marks where a traced graph ends? What is asked of it is asked of what is behind it.
        self.boundary = False
        self.node_name = f"{name}Backward"


class CustomCall:
    """Takes the place of a :class:`~gradcore.engine.plans.Call`."""

    __slots__ = ("op", "specs", "aux", "width")

    def __init__(self, name: str, specs: Sequence[TensorSpec]) -> None:
        self.op = CustomOp(name)
        self.specs = tuple(specs)
        self.aux = ()
        self.width = len(self.specs)


class CustomPlan:
    """Takes the place of a :class:`~gradcore.engine.plans.KeepPlan`, with one rule for all inputs."""

    __slots__ = ("slots", "rules")
    spends = False

    def __init__(self, count: int, kept: int, rule: Callable[[list[Any], list[Any]], Any]) -> None:
        self.slots = tuple(range(kept))
        self.rules = [(tuple(range(count)), True, rule)]


def custom_node(name: str, edges: list[Any], outputs: Sequence[Any], kept: Sequence[Any],
                rule: Callable[[list[Any], list[Any]], Any], constant: Container[int] = ()) -> Node:
    """A node for ``outputs``, whose rule takes cotangents and the tensors ``kept``, and returns a gradient for each edge.

    ``kept`` tensors may be inputs, outputs or others; None stays None. ``constant`` has the identities of outputs that have no
    gradient, which have none in a second derivative, either.
    """
    node: Node = object.__new__(Node)
    node.id = next_number()
    node.edges = edges
    node.call = CustomCall(name, [o.spec for o in outputs])
    node.plan = CustomPlan(len(edges), len(kept), rule)
    node.scope = local.state.scope
    node.site = here()
    node.recipe = node.hooks = None
    places = {id(o): k for k, o in enumerate(outputs) if o.spec.floating and id(o) not in constant}
    saved = [None if t is None else keep(t, None if id(t) in places else t.edge, places.get(id(t)), node.id, f"saved {k}")
             for k, t in enumerate(kept)]
    node.saved = saved or None
    return node
