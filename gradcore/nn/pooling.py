"""Pooling layers for sequences [N, C, L], images [N, C, H, W] and volumes [N, C, D, H, W]."""

from __future__ import annotations

from typing import Any

from gradcore.functional.sizes import Size, sizes
from gradcore.nn import functional as F
from gradcore.nn.module import Family

Tensor = Any

__all__ = ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
           "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "FractionalMaxPool2d", "FractionalMaxPool3d",
           "LPPool1d", "LPPool2d", "LPPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d"]


class _MaxPoolNd(Family):
    _module_in_repr = "kernel_size stride padding dilation ceil_mode"

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
        return self._module_function(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
                                     self.return_indices)


class MaxPool1d(_MaxPoolNd, function=F.max_pool1d):
    """The largest element of each window of [N, C, L]."""


class MaxPool2d(_MaxPoolNd, function=F.max_pool2d):
    """The largest element of each window of [N, C, H, W] or [C, H, W]; see :func:`gradcore.nn.functional.max_pool2d`."""


class MaxPool3d(_MaxPoolNd, function=F.max_pool3d):
    """The largest element of each window of [N, C, D, H, W]."""


class _FractionalMaxPoolNd(Family):
    _random_samples: Tensor | None

    def __init__(self, kernel_size: Size, output_size: Size | None = None, output_ratio: Any = None,
                 return_indices: bool = False, _random_samples: Tensor | None = None) -> None:
        super().__init__()
        self.kernel_size = sizes("kernel_size", kernel_size, self._module_dims)
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = None if output_size is None else sizes("output_size", output_size, self._module_dims)
        ratio = output_ratio
        if ratio is not None:
            ratio = tuple(ratio) if isinstance(ratio, (tuple, list)) else (ratio,) * self._module_dims
        self.output_ratio = ratio
        if output_size is None and output_ratio is None:
            raise ValueError(f"{type(self).__name__} requires specifying either an output size, or a pooling ratio")
        if output_size is not None and output_ratio is not None:
            raise ValueError("only one of output_size and output_ratio may be specified")
        if ratio is not None and not all(0 < r < 1 for r in ratio):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {output_ratio})")

    def forward(self, input: Tensor) -> Any:
        return self._module_function(input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices,
                                     _random_samples=self._random_samples)


class FractionalMaxPool2d(_FractionalMaxPoolNd, function=F.fractional_max_pool2d, dims=2):
    """The largest elements of windows of [N, C, H, W] or [C, H, W] at random distances; see
    :func:`gradcore.nn.functional.fractional_max_pool2d`."""


class FractionalMaxPool3d(_FractionalMaxPoolNd, function=F.fractional_max_pool3d, dims=3):
    """:class:`FractionalMaxPool2d` of volumes [N, C, D, H, W] or [C, D, H, W]."""


class _AvgPoolNd(Family):
    _module_in_repr = "kernel_size stride padding"
    kernel_size: Size
    stride: Size
    padding: Size


class AvgPool1d(_AvgPoolNd):
    """The mean of each window of [N, C, L]."""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True) -> None:
        super().__init__()
        self.kernel_size = sizes("kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else sizes("stride", stride, 1)
        self.padding = sizes("padding", padding, 1)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class _Divided(_AvgPoolNd):
    """Pooling whose divisor can be given."""

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
        return self._module_function(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
                                     self.divisor_override)


class AvgPool2d(_Divided, function=F.avg_pool2d):
    """The mean of each window of [N, C, H, W] or [C, H, W]; see :func:`gradcore.nn.functional.avg_pool2d`."""


class AvgPool3d(_Divided, function=F.avg_pool3d):
    """The mean of each window of [N, C, D, H, W]."""


class _AdaptivePool(Family):
    _module_in_repr = "output_size"

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Any:
        return self._module_function(input, self.output_size)


class _AdaptiveAvgPoolNd(_AdaptivePool):
    pass


class AdaptiveAvgPool1d(_AdaptiveAvgPoolNd, function=F.adaptive_avg_pool1d):
    """Mean pooling of [N, C, L] to ``output_size`` parts."""


class AdaptiveAvgPool2d(_AdaptiveAvgPoolNd, function=F.adaptive_avg_pool2d):
    """Mean pooling of [N, C, H, W] or [C, H, W] to ``output_size``, an int or two; None keeps a size."""


class AdaptiveAvgPool3d(_AdaptiveAvgPoolNd, function=F.adaptive_avg_pool3d):
    """Mean pooling of [N, C, D, H, W] to ``output_size``, an int or three; None keeps a size."""


class _AdaptiveMaxPoolNd(_AdaptivePool):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return self._module_function(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPoolNd, function=F.adaptive_max_pool1d):
    """Max pooling of [N, C, L] to ``output_size`` parts."""


class AdaptiveMaxPool2d(_AdaptiveMaxPoolNd, function=F.adaptive_max_pool2d):
    """Max pooling of [N, C, H, W] to ``output_size``, an int or two; None keeps a size."""


class AdaptiveMaxPool3d(_AdaptiveMaxPoolNd, function=F.adaptive_max_pool3d):
    """Max pooling of [N, C, D, H, W] to ``output_size``, an int or three; None keeps a size."""


class _LPPoolNd(Family):
    _module_in_repr = "norm_type kernel_size stride ceil_mode"

    def __init__(self, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return self._module_function(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)


class LPPool1d(_LPPoolNd, function=F.lp_pool1d):
    """Lp pooling of [N, C, L]; see :func:`gradcore.nn.functional.lp_pool1d`."""


class LPPool2d(_LPPoolNd, function=F.lp_pool2d):
    """Lp pooling of [N, C, H, W]; see :func:`gradcore.nn.functional.lp_pool2d`."""


class LPPool3d(_LPPoolNd, function=F.lp_pool3d):
    """Lp pooling of [N, C, D, H, W]; see :func:`gradcore.nn.functional.lp_pool3d`."""
