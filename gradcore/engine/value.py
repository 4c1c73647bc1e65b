"""A tensor as the engine sees it, which the floor above makes the tensor that users see."""

from __future__ import annotations

from typing import Any

from gradcore.devices.storage import Storage
from gradcore.spec import TensorSpec

#: What an operand may be besides a tensor, by type.
PLAIN = frozenset((int, float, bool, type(None)))

#: (node or leaf, index of the output): where a tensor came from.
Edge = tuple[Any, int]

_new = object.__new__


class Value:
    """A tensor as the engine sees it: a storage shown under a spec, and the edge to what made it.

    ``array`` is the device's array object over the storage, for kernels alone; whoever keeps it must keep the storage.
    """

    __slots__ = ("storage", "spec", "array", "edge", "base", "frozen", "__weakref__")

    storage: Storage
    spec: TensorSpec
    array: Any
    edge: Edge | None
    #: The tensor that this one is a view of, or None.
    base: Value | None
    #: The leaf of a tensor that needs no gradient for now, with the gradient that it had; unset where there is none.
    frozen: Any


_tensor: Any = None


def install_made(kind: type) -> None:
    """What :func:`make_value` makes: the tensor class of the floor above."""
    global _tensor
    _tensor = kind


def make_value(storage: Storage, spec: TensorSpec, array: Any, edge: Edge | None) -> Any:
    """A tensor of the installed class."""
    value = _new(_tensor)
    value.storage = storage
    value.spec = spec
    value.array = array
    value.edge = edge
    value.base = None
    return value
