"""A tensor as the engine sees it: the base class of the tensor that users see."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from gradcore.devices.storage import Storage
from gradcore.spec import TensorSpec
from gradcore.trees import leaves

#: The types of operands besides tensors.
PLAIN = frozenset((int, float, bool, type(None)))

#: (node or leaf, index of the output) that a tensor came from.
Edge = tuple[Any, int]

_new = object.__new__


class Value:
    """A tensor as the engine sees it: a storage, a spec, and an edge into the graph.

    ``array`` is the device's array object over the storage, for kernels only; whoever keeps it must keep the storage too.
    """

    __slots__ = ("storage", "spec", "array", "edge", "base", "_frozen_edge", "__weakref__")

    storage: Storage
    spec: TensorSpec
    array: Any
    edge: Edge | None
    #: The tensor that this one is a view of, or None.
    base: Value | None
    #: The edge to the leaf, with its gradient, of a tensor whose requires_grad was set to False; otherwise unset.
    _frozen_edge: Any


_tensor: Any = None


def install_made(kind: type) -> None:
    """Set the class that :func:`alias` and :func:`value_over` make: the tensor class of the floor above."""
    global _tensor
    _tensor = kind


def alias(x: Any, edge: Edge | None) -> Any:
    """Another tensor object over the bytes of a tensor or of a kept one, with an edge of its own."""
    value = _new(_tensor)
    value.storage = x.storage
    value.spec = x.spec
    value.array = x.array
    value.edge = edge
    value.base = None
    return value


def value_over(storage: Storage, spec: TensorSpec) -> Any:
    """A tensor without a graph that shows bytes of ``storage``."""
    value = _new(_tensor)
    value.storage = storage
    value.spec = spec
    value.array = storage.device.array(storage.block, spec)
    value.edge = value.base = None
    return value


def tensors_in(x: Any) -> Iterator[Any]:
    """The tensors in nested dicts, lists and tuples, in order."""
    return (part for part in leaves(x) if isinstance(part, Value))


def unseen(value: Value, lent: bool = False) -> bool:
    """Does nothing but ``value``, and a replay that has ``lent`` it, refer to its storage?"""
    # One reference is the tensor's, one the argument of getrefcount.
    return sys.getrefcount(value.storage) <= 2 + lent
