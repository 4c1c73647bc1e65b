"""``Parameter`` and ``Buffer``: tensors that a module registers when they are assigned to it."""

from __future__ import annotations

from typing import Any

from gradcore._tensor import Tensor
from gradcore.engine import dispatch, modes, owners
from gradcore.ops import movement


class Parameter(Tensor):
    """A leaf tensor that shares the storage of ``data``. A module that it is assigned to lists it among its parameters.

    Unlike other tensors it takes attributes, such as a mark for an optimizer; as in PyTorch, a copy does not have them.
    """

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        if not isinstance(data, Tensor):
            raise TypeError(f"Parameter expects a Tensor, but got {type(data).__name__}")
        super().__init__(data)
        self.requires_grad = requires_grad
        owners.retag(self, role="parameter")

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        with modes.no_grad():
            copy = Parameter(movement.clone(self), self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Buffer(Tensor):
    """A tensor that shares the storage of ``data``. A module that it is assigned to lists it among its buffers.

    It is in the state dict if ``persistent``.
    """

    __slots__ = ("persistent",)

    def __init__(self, data: Tensor | None = None, *, persistent: bool = True) -> None:
        super().__init__(*(() if data is None else (data,)))
        self.persistent = persistent
        owners.retag(self, role="buffer")

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        with modes.no_grad():
            copy = Buffer(movement.clone(self), persistent=self.persistent)
        memo[id(self)] = copy
        return copy


dispatch.install_tensor(Tensor, Parameter, Buffer)
