"""Layers that undo max pooling, for sequences [N, C, L], images [N, C, H, W] and volumes [N, C, D, H, W]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradcore.functional.sizes import sizes
from gradcore.nn import functional as F
from gradcore.nn.module import Module

Tensor = Any
Size = int | Sequence[int]

__all__ = ["MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"]


class _MaxUnpoolNd(Module):
    _module_in_repr = "kernel_size stride padding"
    _module_unpool: Callable[..., Tensor]
    _module_dims: int

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        self.kernel_size = sizes("kernel_size", kernel_size, self._module_dims)
        self.stride = self.kernel_size if stride is None else sizes("stride", stride, self._module_dims)
        self.padding = sizes("padding", padding, self._module_dims)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return self._module_unpool(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool1d(_MaxUnpoolNd):
    """The partial inverse of ``MaxPool1d(return_indices=True)``; see :func:`gradcore.nn.functional.max_unpool1d`."""

    _module_unpool = staticmethod(F.max_unpool1d)
    _module_dims = 1


class MaxUnpool2d(_MaxUnpoolNd):
    """The partial inverse of ``MaxPool2d(return_indices=True)``; see :func:`gradcore.nn.functional.max_unpool2d`."""

    _module_unpool = staticmethod(F.max_unpool2d)
    _module_dims = 2


class MaxUnpool3d(_MaxUnpoolNd):
    """The partial inverse of ``MaxPool3d(return_indices=True)``; see :func:`gradcore.nn.functional.max_unpool3d`."""

    _module_unpool = staticmethod(F.max_unpool3d)
    _module_dims = 3
