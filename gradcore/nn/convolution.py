"""Convolution layers, plain and transposed, for sequences [N, C, L], images [N, C, H, W] and volumes [N, C, D, H, W]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.functional import empty
from gradcore.functional.sizes import Size, sizes
from gradcore.nn import functional as F
from gradcore.nn.linear import draw
from gradcore.nn.module import Family, unusual
from gradcore.nn.padding import borders_of, require_mode
from gradcore.nn.parameter import Parameter
from gradcore.ops.convolution import covered

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

Tensor = Any


class _ConvNd(Family):
    """Base of convolutions: a weight whose first two dimensions are channels, a bias, and sizes for each dimension."""

    weight: Parameter
    bias: Parameter | None
    transposed: bool

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size, padding: Size | str,
                 dilation: Size, transposed: bool, output_padding: Size, groups: int, bias: bool, padding_mode: str,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.transposed = transposed
        if isinstance(kernel_size, (tuple, list)) and not hasattr(self, "_module_function"):
            # A subclass of the base alone, which says no other way for how many dimensions it is.
            self._module_dims = len(kernel_size)
        if self.transposed and padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}, but got {padding_mode!r}')
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'valid', 'same'}}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = sizes("kernel_size", kernel_size, self._module_dims)
        self.stride = sizes("stride", stride, self._module_dims)
        if padding == "same" and any(step != 1 for step in self.stride):
            raise ValueError("padding='same' is not supported for strided convolutions")
        self.padding = padding if isinstance(padding, str) else sizes("padding", padding, self._module_dims)
        self.output_padding = sizes("output_padding", output_padding, self._module_dims)
        self.dilation = sizes("dilation", dilation, self._module_dims)
        self.groups = groups
        self.padding_mode = padding_mode
        require_mode(padding_mode)
        #: By PyTorch's name, which subclasses that pad themselves give to ``pad``.
        self._reversed_padding_repeated_twice = tuple(borders_of(self.padding, self.kernel_size, self.dilation))
        self._module_make(bias, device, dtype)

    def _module_make(self, bias: bool, device: Any, dtype: Any) -> None:
        taken, given, groups = self.in_channels, self.out_channels, self.groups
        if groups < 1 or taken % groups or given % groups:
            raise ValueError(f"in_channels and out_channels must be divisible by groups, but got {taken}, {given} and {groups}")
        channels = (taken, given // groups) if self.transposed else (given, taken // groups)
        self.weight = Parameter(empty(*channels, *self.kernel_size, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(given, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly in +-1/sqrt(fan_in), as in PyTorch."""
        draw(self.weight, self.bias)

    def extra_repr(self) -> str:
        zeros, ones = (0,) * self._module_dims, (1,) * self._module_dims
        return (f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
                + unusual(self, padding=zeros, dilation=ones, output_padding=zeros, groups=1)
                + (", bias=False" if self.bias is None else "") + unusual(self, padding_mode="zeros"))


class _Plain(_ConvNd):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0,
                 dilation: Size = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, False, 0, groups, bias,
                         padding_mode, device, dtype)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with another weight and bias; by PyTorch's name, since layers that standardize weights call it."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._reversed_padding_repeated_twice, self.padding_mode), 0
        return self._module_function(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)


class Conv1d(_Plain, function=F.conv1d):
    """Cross-correlation of [N, C, L] with weight [out_channels, in_channels / groups, k] and bias [out_channels]."""


class Conv2d(_Plain, function=F.conv2d, dims=2):
    """Cross-correlation with weight [out_channels, in_channels / groups, kH, kW] and bias [out_channels]."""


class Conv3d(_Plain, function=F.conv3d, dims=3):
    """Cross-correlation with weight [out_channels, in_channels / groups, kD, kH, kW] and bias [out_channels]."""


class _ConvTransposeNd(_ConvNd):
    """Base of transposed convolutions."""

    def _output_padding(self, input: Tensor, output_size: Sequence[int] | None, stride: Sequence[int], padding: Sequence[int],
                        kernel_size: Sequence[int], num_spatial_dims: int,
                        dilation: Sequence[int] | None = None) -> tuple[int, ...]:
        """The output padding that gives the result the spatial sizes of ``output_size``."""
        if output_size is None:
            return self.output_padding
        dims, whole = num_spatial_dims, input.spec.ndim
        if len(output_size) not in (dims, whole):
            raise ValueError(f"{type(self).__name__}: for {whole}D input, output_size must have {dims} or {whole} elements "
                             f"(got {len(output_size)})")
        wanted = tuple(output_size)[-dims:]
        least = [covered(*along) for along in zip(
            input.spec.shape[-dims:], kernel_size, stride, padding, dilation or (1,) * dims, strict=True)]
        most = [low + s - 1 for low, s in zip(least, stride, strict=True)]
        if any(not a <= m <= b for m, a, b in zip(wanted, least, most, strict=True)):
            raise ValueError(f"requested an output size of {list(wanted)}, but valid sizes range from {least} to {most}")
        return tuple(m - low for m, low in zip(wanted, least, strict=True))


class _Transposed(_ConvTransposeNd):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
                 output_padding: Size = 0, groups: int = 1, bias: bool = True, dilation: Size = 1,
                 padding_mode: str = "zeros", device: Any = None, dtype: Any = None) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, True, output_padding, groups, bias,
                         padding_mode, device, dtype)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        padding: Any = self.padding
        extra = self._output_padding(input, output_size, self.stride, padding, self.kernel_size, self._module_dims,
                                     self.dilation)
        return self._module_function(input, self.weight, self.bias, self.stride, padding, extra, self.groups, self.dilation)


class ConvTranspose1d(_Transposed, function=F.conv_transpose1d):
    """Transposed convolution of [N, C, L], the gradient of :class:`Conv1d` with respect to its input.

    The weight is [in_channels, out_channels / groups, k], the bias [out_channels].
    """


class ConvTranspose2d(_Transposed, function=F.conv_transpose2d, dims=2):
    """Transposed convolution of [N, C, H, W], the gradient of :class:`Conv2d` with respect to its input.

    The weight is [in_channels, out_channels / groups, kH, kW], the bias [out_channels].
    """


class ConvTranspose3d(_Transposed, function=F.conv_transpose3d, dims=3):
    """Transposed convolution of [N, C, D, H, W], the gradient of :class:`Conv3d` with respect to its input.

    The weight is [in_channels, out_channels / groups, kD, kH, kW], the bias [out_channels].
    """
