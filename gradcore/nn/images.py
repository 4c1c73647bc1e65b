"""Convolution and pooling layers for images [N, C, H, W]."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gradcore.functional import empty
from gradcore.functional.images import pair
from gradcore.nn import functional as F
from gradcore.nn import init
from gradcore.nn.module import Module
from gradcore.nn.padding import borders_of
from gradcore.nn.parameter import Parameter

Tensor = Any
Size = int | Sequence[int]


class Conv2d(Module):
    """Cross-correlation with weight [out_channels, in_channels / groups, kH, kW] and bias [out_channels]."""

    weight: Parameter
    bias: Parameter | None

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0,
                 dilation: Size = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(f"in_channels and out_channels must be divisible by groups, but got {in_channels}, "
                             f"{out_channels} and {groups}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = pair("kernel_size", kernel_size)
        self.stride = pair("stride", stride)
        self.padding = padding if isinstance(padding, str) else pair("padding", padding)
        self.dilation = pair("dilation", dilation)
        self.groups = groups
        self.padding_mode = padding_mode
        self._borders = borders_of(padding_mode, self.padding, self.kernel_size, self.dilation)
        self.weight = Parameter(empty(out_channels, in_channels // groups, *self.kernel_size, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly in +-1/sqrt(in_channels / groups * kH * kW), as in PyTorch."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            window = self.in_channels // self.groups * self.kernel_size[0] * self.kernel_size[1]
            bound = 1 / math.sqrt(window) if window else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        if self._borders is not None:
            input = F.pad(input, self._borders, self.padding_mode)
            return F.conv2d(input, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)
        return F.conv2d(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0, 0):
            text += f", padding={self.padding}"
        if self.dilation != (1, 1):
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return text if self.padding_mode == "zeros" else f"{text}, padding_mode={self.padding_mode}"


class MaxPool(Module):
    """Max pooling; a subclass's ``pool`` is the function for its number of dimensions."""

    pool: Callable[..., Any]

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
                 return_indices: bool = False, ceil_mode: bool = False) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:
        return self.pool(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
                         self.return_indices)

    def extra_repr(self) -> str:
        return (f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
                f"ceil_mode={self.ceil_mode}")


class MaxPool2d(MaxPool):
    """The largest element of each window of [N, C, H, W] or [C, H, W]; see :func:`gradcore.nn.functional.max_pool2d`."""

    pool = staticmethod(F.max_pool2d)


class AvgPool2d(Module):
    """The mean of each window of [N, C, H, W] or [C, H, W]; see :func:`gradcore.nn.functional.avg_pool2d`."""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: int | None = None) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool2d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
                            self.divisor_override)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool2d(Module):
    """Mean pooling of [N, C, H, W] or [C, H, W] to ``output_size``, an int or two; None keeps a size."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"
