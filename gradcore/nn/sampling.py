"""Upsampling, shuffling of channels and pixels, and unfold and fold, as layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.functional import unflatten
from gradcore.functional.sizes import Size
from gradcore.nn import functional as F
from gradcore.nn.module import Module

__all__ = ["ChannelShuffle", "Fold", "PixelShuffle", "PixelUnshuffle", "Unflatten", "Unfold", "Upsample",
           "UpsamplingBilinear2d", "UpsamplingNearest2d"]

Tensor = Any


class Upsample(Module):
    """See :func:`gradcore.nn.functional.interpolate`."""

    def __init__(self, size: Size | None = None, scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
                 align_corners: bool | None = None, recompute_scale_factor: bool | None = None) -> None:
        super().__init__()
        self.name = type(self).__name__
        self.size = size
        self.scale_factor = tuple(map(float, scale_factor)) if isinstance(scale_factor, Sequence) else (
            None if scale_factor is None else float(scale_factor))
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(input, self.size, self.scale_factor, self.mode, self.align_corners,
                             self.recompute_scale_factor)

    def extra_repr(self) -> str:
        size = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{size}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """:class:`Upsample` with ``mode="nearest"``."""

    def __init__(self, size: Size | None = None, scale_factor: float | Sequence[float] | None = None) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """:class:`Upsample` with ``mode="bilinear"`` and ``align_corners=True``."""

    def __init__(self, size: Size | None = None, scale_factor: float | Sequence[float] | None = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class ChannelShuffle(Module):
    """See :func:`gradcore.nn.functional.channel_shuffle`."""

    _module_in_repr = "groups"

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)


class _Windows(Module):
    _module_in_repr = "kernel_size dilation padding stride"

    def __init__(self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride


class Unfold(_Windows):
    """Windows of images [N, C, H, W] as columns [N, C * kH * kW, L]; see :func:`gradcore.nn.functional.unfold`."""

    def forward(self, input: Tensor) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(_Windows):
    """Columns [N, C * kH * kW, L] summed to images [N, C, *output_size]; see :func:`gradcore.nn.functional.fold`."""

    _module_in_repr = f"output_size {_Windows._module_in_repr}"

    def __init__(self, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)


class PixelShuffle(Module):
    """See :func:`gradcore.nn.functional.pixel_shuffle`."""

    _module_in_repr = "upscale_factor"

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)


class PixelUnshuffle(Module):
    """See :func:`gradcore.nn.functional.pixel_unshuffle`."""

    _module_in_repr = "downscale_factor"

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)


class Unflatten(Module):
    """Splits a dimension into several of sizes ``unflattened_size``."""

    _module_in_repr = "dim unflattened_size"

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(unflattened_size, (tuple, list)):
            raise TypeError(f"unflattened_size must be a tuple of ints, but found type {type(unflattened_size).__name__}")
        for k, size in enumerate(unflattened_size):
            if not isinstance(size, int):
                raise TypeError("unflattened_size must be tuple of ints, but found element of type "
                                f"{type(size).__name__} at pos {k}")
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        return unflatten(input, self.dim, self.unflattened_size)
