"""Pooling of volumes [N, C, D, H, W], power-average (Lp) pooling, and local response normalisation, as layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradcore.nn import functional as F
from gradcore.nn.images import AvgPool2d, MaxPool
from gradcore.nn.module import Module
from gradcore.nn.volumes import AdaptiveMaxPool2d

Tensor = Any
Size = int | Sequence[int]

__all__ = ["AdaptiveAvgPool3d", "AdaptiveMaxPool3d", "AvgPool3d", "LPPool1d", "LPPool2d", "LPPool3d", "LocalResponseNorm",
           "MaxPool3d"]


class MaxPool3d(MaxPool):
    """The largest element of each window of [N, C, D, H, W]."""

    pool = staticmethod(F.max_pool3d)


class AvgPool3d(AvgPool2d):
    """The mean of each window of [N, C, D, H, W]."""

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool3d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
                            self.divisor_override)


class AdaptiveMaxPool3d(AdaptiveMaxPool2d):
    """Max pooling of [N, C, D, H, W] to ``output_size``, an int or three; None keeps a size."""

    def forward(self, input: Tensor) -> Any:
        return F.adaptive_max_pool3d(input, self.output_size, self.return_indices)


class AdaptiveAvgPool3d(Module):
    """Mean pooling of [N, C, D, H, W] to ``output_size``, an int or three; None keeps a size."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool3d(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _LPPool(Module):
    pool: Callable[..., Tensor]

    def __init__(self, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return self.pool(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return (f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
                f"ceil_mode={self.ceil_mode}")


class LPPool1d(_LPPool):
    """Lp pooling of [N, C, L]; see :func:`gradcore.nn.functional.lp_pool1d`."""

    pool = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """Lp pooling of [N, C, H, W]; see :func:`gradcore.nn.functional.lp_pool2d`."""

    pool = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """Lp pooling of [N, C, D, H, W]; see :func:`gradcore.nn.functional.lp_pool3d`."""

    pool = staticmethod(F.lp_pool3d)


class LocalResponseNorm(Module):
    """x / (k + alpha * m)^beta, where m is the mean of x^2 over ``size`` neighbouring channels of [N, C, ...]."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
