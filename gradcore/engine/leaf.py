"""Leaves: where the graph ends, and gradients stay."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet, ref

from gradcore.engine.hooks import Hookable
from gradcore.engine.value import Value
from gradcore.events import Network

#: All leaves that exist.
all_leaves: WeakSet[Leaf] = WeakSet()


class Leaf(Hookable):
    """Where a gradient ends up: the slot of a tensor that was made with ``requires_grad``.

    Its hooks are called around the moment at which the gradient is added, which is passed as the cotangent.
    """

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
