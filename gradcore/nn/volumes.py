"""Convolution of volumes [N, C, D, H, W], and adaptive max pooling of sequences and images, as layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.nn import functional as F
from gradcore.nn.module import Module
from gradcore.nn.sampling import Conv1d, ConvTranspose2d

Tensor = Any
Size = int | Sequence[int]


class Conv3d(Conv1d):
    """Cross-correlation with weight [out_channels, in_channels / groups, kD, kH, kW] and bias [out_channels]."""

    _dims = 3

    def forward(self, input: Tensor) -> Tensor:
        if self._borders is not None:
            input = F.pad(input, self._borders, self.padding_mode)
            return F.conv3d(input, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)
        return F.conv3d(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ConvTranspose3d(ConvTranspose2d):
    """Transposed convolution of [N, C, D, H, W], the gradient of :class:`Conv3d` with respect to its input.

    The weight is [in_channels, out_channels / groups, kD, kH, kW], the bias [out_channels].
    """

    _dims = 3

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return F.conv_transpose3d(input, self.weight, self.bias, self.stride, self.padding,  # type: ignore[arg-type]
                                  self._extra(input, output_size), self.groups, self.dilation)


class _AdaptiveMaxPool(Module):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """Max pooling of [N, C, L] to ``output_size`` parts."""

    def forward(self, input: Tensor) -> Any:
        return F.adaptive_max_pool1d(input, self.output_size, self.return_indices)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Max pooling of [N, C, H, W] to ``output_size``, an int or two; None keeps a size."""

    def forward(self, input: Tensor) -> Any:
        return F.adaptive_max_pool2d(input, self.output_size, self.return_indices)
