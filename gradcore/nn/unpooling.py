"""Layers that undo max pooling, for sequences [N, C, L], images [N, C, H, W] and volumes [N, C, D, H, W]."""

from __future__ import annotations

from typing import Any

from gradcore.functional.sizes import Size, sizes
from gradcore.nn import functional as F
from gradcore.nn.module import Family

Tensor = Any

__all__ = ["MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"]


class _MaxUnpoolNd(Family):
    _module_in_repr = "kernel_size stride padding"

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        self.kernel_size = sizes("kernel_size", kernel_size, self._module_dims)
        self.stride = self.kernel_size if stride is None else sizes("stride", stride, self._module_dims)
        self.padding = sizes("padding", padding, self._module_dims)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return self._module_function(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool1d(_MaxUnpoolNd, function=F.max_unpool1d):
    """The partial inverse of ``MaxPool1d(return_indices=True)``; see :func:`gradcore.nn.functional.max_unpool1d`."""


class MaxUnpool2d(_MaxUnpoolNd, function=F.max_unpool2d, dims=2):
    """The partial inverse of ``MaxPool2d(return_indices=True)``; see :func:`gradcore.nn.functional.max_unpool2d`."""


class MaxUnpool3d(_MaxUnpoolNd, function=F.max_unpool3d, dims=3):
    """The partial inverse of ``MaxPool3d(return_indices=True)``; see :func:`gradcore.nn.functional.max_unpool3d`."""
