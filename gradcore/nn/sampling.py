"""Layers for sequences [N, C, L], transposed convolution, upsampling, and unfold and fold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradcore.errors import SpecError
from gradcore.functional import empty, unflatten
from gradcore.nn import functional as F
from gradcore.nn import init
from gradcore.nn.images import MaxPool
from gradcore.nn.module import Module
from gradcore.nn.padding import borders_of
from gradcore.nn.parameter import Parameter

Tensor = Any
Size = int | Sequence[int]


def _sizes(name: str, value: Size, dims: int) -> tuple[int, ...]:
    """An int repeated ``dims`` times, or ``dims`` ints. Raises :class:`SpecError` for another number."""
    parts = (value,) if isinstance(value, int) else tuple(value)
    parts = parts * dims if len(parts) == 1 else parts
    if len(parts) != dims or not all(isinstance(n, int) for n in parts):
        raise SpecError(f"{name} must be {'one int' if dims == 1 else f'an int or {dims} of them'}, but got {value!r}")
    return parts


class _Convolution(Module):
    """Base of convolutions: a weight whose first two dimensions are channels, a bias, and sizes for each dimension."""

    weight: Parameter
    bias: Parameter | None
    _dims = 1
    _transposed = False

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size, padding: Size | str,
                 output_padding: Size, groups: int, bias: bool, dilation: Size, padding_mode: str, device: Any,
                 dtype: Any) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(f"in_channels and out_channels must be divisible by groups, but got {in_channels}, "
                             f"{out_channels} and {groups}")
        if self._transposed and padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}, but got {padding_mode!r}')
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _sizes("kernel_size", kernel_size, self._dims)
        self.stride = _sizes("stride", stride, self._dims)
        self.padding = padding if isinstance(padding, str) else _sizes("padding", padding, self._dims)
        self.output_padding = _sizes("output_padding", output_padding, self._dims)
        self.dilation = _sizes("dilation", dilation, self._dims)
        self.groups = groups
        self.padding_mode = padding_mode
        self._borders = borders_of(padding_mode, self.padding, self.kernel_size, self.dilation)
        channels = (in_channels, out_channels // groups) if self._transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(empty(*channels, *self.kernel_size, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly in +-1/sqrt(fan_in), as in PyTorch."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            window = math.prod(self.weight.spec.shape[1:])
            bound = 1 / math.sqrt(window) if window else 0
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        none = (0,) * self._dims
        for name, plain in (("padding", none), ("dilation", (1,) * self._dims), ("output_padding", none), ("groups", 1)):
            if getattr(self, name) != plain:
                text += f", {name}={getattr(self, name)}"
        if self.bias is None:
            text += ", bias=False"
        return text if self.padding_mode == "zeros" else f"{text}, padding_mode={self.padding_mode}"


class Conv1d(_Convolution):
    """Cross-correlation of [N, C, L] with weight [out_channels, in_channels / groups, k] and bias [out_channels]."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0,
                 dilation: Size = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, 0, groups, bias, dilation, padding_mode,
                         device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        if self._borders is not None:
            input = F.pad(input, self._borders, self.padding_mode)
            return F.conv1d(input, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)
        return F.conv1d(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class _Transposed(_Convolution):
    _transposed = True

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
                 output_padding: Size = 0, groups: int = 1, bias: bool = True, dilation: Size = 1,
                 padding_mode: str = "zeros", device: Any = None, dtype: Any = None) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation,
                         padding_mode, device, dtype)

    def _extra(self, input: Tensor, output_size: Sequence[int] | None) -> tuple[int, ...]:
        """The output padding that gives the result the spatial sizes of ``output_size``."""
        if output_size is None:
            return self.output_padding
        wanted = tuple(output_size)[-self._dims:]
        padding: Any = self.padding
        least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in zip(
            input.spec.shape[-self._dims:], self.stride, padding, self.dilation, self.kernel_size, strict=True)]
        most = [low + s - 1 for low, s in zip(least, self.stride, strict=True)]
        if len(wanted) != self._dims or any(not a <= m <= b for m, a, b in zip(wanted, least, most, strict=True)):
            raise ValueError(f"requested an output size of {list(wanted)}, but valid sizes range from {least} to {most}")
        return tuple(m - low for m, low in zip(wanted, least, strict=True))


class ConvTranspose1d(_Transposed):
    """Transposed convolution of [N, C, L], the gradient of :class:`Conv1d` with respect to its input.

    The weight is [in_channels, out_channels / groups, k], the bias [out_channels].
    """

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return F.conv_transpose1d(input, self.weight, self.bias, self.stride, self.padding,  # type: ignore[arg-type]
                                  self._extra(input, output_size), self.groups, self.dilation)


class ConvTranspose2d(_Transposed):
    """Transposed convolution of [N, C, H, W], the gradient of :class:`Conv2d` with respect to its input.

    The weight is [in_channels, out_channels / groups, kH, kW], the bias [out_channels].
    """

    _dims = 2

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return F.conv_transpose2d(input, self.weight, self.bias, self.stride, self.padding,  # type: ignore[arg-type]
                                  self._extra(input, output_size), self.groups, self.dilation)


class MaxPool1d(MaxPool):
    """The largest element of each window of [N, C, L]."""

    pool = staticmethod(F.max_pool1d)


class AvgPool1d(Module):
    """The mean of each window of [N, C, L]."""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True) -> None:
        super().__init__()
        self.kernel_size = _sizes("kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else _sizes("stride", stride, 1)
        self.padding = _sizes("padding", padding, 1)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool1d(Module):
    """Mean pooling of [N, C, L] to ``output_size`` parts."""

    def __init__(self, output_size: Size) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class Upsample(Module):
    """See :func:`gradcore.nn.functional.interpolate`."""

    def __init__(self, size: Size | None = None, scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
                 align_corners: bool | None = None) -> None:
        super().__init__()
        self.size = size
        self.scale_factor = tuple(map(float, scale_factor)) if isinstance(scale_factor, Sequence) else (
            None if scale_factor is None else float(scale_factor))
        self.mode = mode
        self.align_corners = align_corners

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(input, self.size, self.scale_factor, self.mode, self.align_corners)

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

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class _Windows(Module):
    def __init__(self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Unfold(_Windows):
    """Windows of images [N, C, H, W] as columns [N, C * kH * kW, L]; see :func:`gradcore.nn.functional.unfold`."""

    def forward(self, input: Tensor) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(_Windows):
    """Columns [N, C * kH * kW, L] summed to images [N, C, *output_size]; see :func:`gradcore.nn.functional.fold`."""

    def __init__(self, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


class PixelShuffle(Module):
    """See :func:`gradcore.nn.functional.pixel_shuffle`."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """See :func:`gradcore.nn.functional.pixel_unshuffle`."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class Unflatten(Module):
    """Splits a dimension into several of sizes ``unflattened_size``."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        return unflatten(input, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
