"""Nodes whose rule is a user's function; the engine treats them as any other node."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gradcore.engine.dispatch import next_number
from gradcore.engine.node import Node
from gradcore.engine.plans import BoundRule, NodeRule
from gradcore.engine.saved import keep
from gradcore.engine.sites import here
from gradcore.engine.state import local
from gradcore.spec import TensorSpec


@dataclass(eq=False, slots=True)
class CustomOp:
    """The op of a custom node, which is in no table."""

    name: str
    node_name: str
    #: Is it the identity that marks where a traced graph ends? What is asked of it is asked of what is behind it.
    boundary: bool = False


@dataclass(eq=False, slots=True)
class CustomCall:
    """Takes the place of a :class:`~gradcore.engine.plans.Call`."""

    op: CustomOp
    specs: tuple[TensorSpec, ...]
    width: int
    aux: tuple[()] = ()


@dataclass(eq=False, slots=True)
class CustomPlan:
    """Takes the place of a :class:`~gradcore.engine.plans.KeepPlan`, with one rule for all inputs."""

    spends: ClassVar[None] = None
    slots: tuple[int, ...]
    rules: list[NodeRule]


def custom_node(name: str, edges: list[Any], outputs: Sequence[Any], kept: Sequence[Any],
                rule: BoundRule, constant: Container[int] = ()) -> Node:
    """A node for ``outputs``, whose rule takes cotangents and the tensors ``kept``, and returns a gradient for each edge.

    ``kept`` tensors may be inputs, outputs or others; None stays None. ``constant`` has the identities of outputs that have no
    gradient, which have none in a second derivative, either.
    """
    node: Node = object.__new__(Node)
    node.id = next_number()
    node.edges = edges
    node.call = CustomCall(CustomOp(name, f"{name}Backward"), tuple([o.spec for o in outputs]), len(outputs))
    node.plan = CustomPlan(tuple(range(len(kept))), [(tuple(range(len(edges))), True, rule, ())])
    node.scope = local.state.scope
    node.site = here()
    node.recipe = node.hooks = None
    places = {id(o): k for k, o in enumerate(outputs) if o.spec.floating and id(o) not in constant}
    saved = [None if t is None else keep(t, None if id(t) in places else t.edge, places.get(id(t)), node.id, f"saved {k}")
             for k, t in enumerate(kept)]
    node.saved = saved or None
    return node
