"""Pooling of sequences, images and volumes, power-average (Lp) pooling, and local response normalization.

Volumes are pooled in two steps, first over height and width as images are, then over depth: the maximum of a window is that of
its planes' maxima, and its mean that of their means, since all planes of a window have the same size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.engine.operands import real
from gradcore.engine.owners import constant
from gradcore.errors import SpecError
from gradcore.functional import picking
from gradcore.functional.fractional import (
    fractional_max_pool2d,
    fractional_max_pool2d_with_indices,
    fractional_max_pool3d,
    fractional_max_pool3d_with_indices,
)
from gradcore.functional.padding import pad
from gradcore.functional.shape import squeeze, unsqueeze
from gradcore.functional.sizes import Size, batched, flat, pair, single, sizes, sizes_kept, triple
from gradcore.ops import activation, elementwise, movement, pooling
from gradcore.tiling import parts_of

Tensor = Any

__all__ = ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
           "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "fractional_max_pool2d",
           "fractional_max_pool2d_with_indices", "fractional_max_pool3d", "fractional_max_pool3d_with_indices",
           "local_response_norm", "lp_pool1d", "lp_pool2d", "lp_pool3d", "max_pool1d", "max_pool2d", "max_pool3d"]


# -- images, and sequences as images of height 1 ---------------------------------------------------------------------------


def max_pool2d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
               ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """The largest element of each window of [N, C, H, W] or [C, H, W].

    With ``return_indices`` also its index in the flattened plane, int64. Backward keeps one byte per output element (four for
    windows of more than 256 elements), and neither input nor output.
    """
    kernel = pair("kernel_size", kernel_size)
    how = {"kernel": kernel, "stride": kernel if stride is None else pair("stride", stride),
           "padding": pair("padding", padding), "dilation": pair("dilation", dilation)}
    x, lone = batched("max_pool2d", input)
    out, index = pooling.max_pool2d(x, **how, ceil_mode=ceil_mode)
    if lone:
        out = squeeze(out, 0)
    if not return_indices:
        return out
    places = pooling.max_pool2d_places(index, shape=x.spec.shape, **how)
    return out, squeeze(places, 0) if lone else places


def avg_pool2d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None) -> Tensor:
    """The mean of each window of [N, C, H, W] or [C, H, W], or its sum over ``divisor_override``. Backward keeps nothing."""
    kernel = pair("kernel_size", kernel_size)
    x, lone = batched("avg_pool2d", input)
    out = pooling.avg_pool2d(x, kernel=kernel, stride=kernel if stride is None else pair("stride", stride),
                             padding=pair("padding", padding), ceil_mode=ceil_mode, count_pad=count_include_pad,
                             divisor=divisor_override)
    return squeeze(out, 0) if lone else out


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Mean pooling of [N, C, H, W] or [C, H, W] to ``output_size``, an int or two; None keeps a size.

    Backward keeps nothing.
    """
    x, lone = batched("adaptive_avg_pool2d", input)
    size = sizes_kept("adaptive_avg_pool2d", output_size, x.spec.shape[2:])
    out = pooling.adaptive_avg_pool2d(x, size=size)
    return squeeze(out, 0) if lone else out


def max_pool1d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
               ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """The largest element of each window of [N, C, L] or [C, L]; with ``return_indices`` also its index along L, int64."""
    k = single("kernel_size", kernel_size)
    found = max_pool2d(flat("max_pool1d", input), (1, k), (1, k if stride is None else single("stride", stride)),
                       (0, single("padding", padding)), (1, single("dilation", dilation)), ceil_mode, return_indices)
    return tuple(squeeze(t, -2) for t in found) if return_indices else squeeze(found, -2)


def avg_pool1d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
               count_include_pad: bool = True) -> Tensor:
    """The mean of each window of [N, C, L] or [C, L]."""
    k = single("kernel_size", kernel_size)
    return squeeze(avg_pool2d(flat("avg_pool1d", input), (1, k), (1, k if stride is None else single("stride", stride)),
                              (0, single("padding", padding)), ceil_mode, count_include_pad), -2)


def adaptive_avg_pool1d(input: Tensor, output_size: Size) -> Tensor:
    """Mean pooling of [N, C, L] or [C, L] to ``output_size`` parts."""
    return squeeze(adaptive_avg_pool2d(flat("adaptive_avg_pool1d", input), (1, single("output_size", output_size))), -2)


# -- volumes ---------------------------------------------------------------------------------------------------------------


def _volumes(name: str, x: Tensor) -> Tensor:
    """The input as [N, C, D, H, W]; [C, D, H, W] gets N = 1."""
    if x.spec.ndim not in (4, 5):
        raise SpecError(f"{name}: Expected 4D or 5D (batch mode) tensor for input, but got {list(x.spec.shape)}")
    return unsqueeze(x, 0) if x.spec.ndim == 4 else x


def _planes(x: Tensor) -> Tensor:
    """[N, C, D, H, W] as planes [N, C * D, H, W]."""
    n, c, d, h, w = x.spec.shape
    return movement.reshape(x, (n, c * d, h, w))


def _columns(x: Tensor, like: Tensor) -> Tensor:
    """Planes [N, C * D, H', W'] as columns [N, C, D, H' * W']."""
    n, c, d, *_ = like.spec.shape
    return movement.reshape(x, (n, c, d, math.prod(x.spec.shape[2:])))


def _whole(x: Tensor, planes: Tensor, input: Tensor) -> Tensor:
    """Columns [N, C, D', H' * W'] as [N, C, D', H', W'], without N if the input had none."""
    out = movement.reshape(x, (*x.spec.shape[:3], *planes.spec.shape[2:]))
    return squeeze(out, 0) if input.spec.ndim == 4 else out


def max_pool3d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
               ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """The largest element of each window of [N, C, D, H, W] or [C, D, H, W].

    With ``return_indices`` also its index in the flattened volume, int64. Pools twice, over planes and then over depth;
    backward keeps one byte per output element of each.
    """
    kernel = triple("kernel_size", kernel_size)
    steps = kernel if stride is None else triple("stride", stride)
    sides, holes = triple("padding", padding), triple("dilation", dilation)
    x = _volumes("max_pool3d", input)
    how = (kernel[1:], steps[1:], sides[1:], holes[1:], ceil_mode)
    deep = ((kernel[0], 1), (steps[0], 1), (sides[0], 0), (holes[0], 1), ceil_mode)
    if not return_indices:
        planes = max_pool2d(_planes(x), *how)
        return _whole(max_pool2d(_columns(planes, x), *deep), planes, input)
    planes, inside = max_pool2d(_planes(x), *how, return_indices=True)
    out, found = max_pool2d(_columns(planes, x), *deep, return_indices=True)
    return _whole(out, planes, input), _whole(_in_volume(inside, found, x), planes, input)


def _in_volume(inside: Tensor, found: Tensor, x: Tensor) -> Tensor:
    """Indices in the volume, from those in its planes, [N, C * D, H', W'], and in columns of these, [N, C, D', H' * W']."""
    n, c, _, h, w = x.spec.shape
    size = math.prod(inside.spec.shape[2:])
    flat = movement.reshape(found, (n, c, math.prod(found.spec.shape[2:])))
    places = picking.gather(movement.reshape(inside, (n, c, x.spec.shape[2] * size)), 2, flat)
    return movement.reshape(elementwise.floor_divide(flat, size) * (h * w) + places, found.spec.shape)


def _parts(size: int, count: int) -> tuple[int, Any]:
    """The size of the largest of ``count`` parts, and the indices of each part; shorter ones repeat their last index."""
    ends = parts_of(size, count)
    widest = max((b - a for a, b in ends), default=1)
    return widest, np.array([min(a + j, b - 1) for a, b in ends for j in range(widest)], np.int64)


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Max pooling of [N, C, H, W] or [C, H, W] to ``output_size``, an int or two; None keeps a size.

    With ``return_indices`` also the index of each maximum in the flattened plane, int64. If the parts differ in size, they are
    first copied to windows of one size.
    """
    if input.spec.ndim not in (3, 4):
        raise SpecError(f"adaptive_max_pool2d(): Expected 3D or 4D tensor, but got {list(input.spec.shape)}")
    shape = input.spec.shape[-2:]
    size = sizes_kept("adaptive_max_pool2d", output_size, shape)
    kernel, places = zip(*[_parts(n, m) for n, m in zip(shape, size, strict=True)], strict=True)
    x = input
    for d in (0, 1):
        if len(places[d]) != shape[d]:
            table = constant("adaptive_max_pool2d", places[d], input)
            x = movement.take(x, table, dim=input.spec.ndim - 2 + d)
    if not return_indices:
        return max_pool2d(x, kernel)
    out, found = max_pool2d(x, kernel, return_indices=True)
    # Indices in the copied windows are turned into indices in the input.
    flat = places[0][:, None] * shape[1] + places[1][None, :]
    return out, movement.take(constant("adaptive_max_pool2d", flat.reshape(-1), input), found, dim=0)


def adaptive_max_pool1d(input: Tensor, output_size: Size, return_indices: bool = False) -> Any:
    """Max pooling of [N, C, L] or [C, L] to ``output_size`` parts; see :func:`adaptive_max_pool2d`."""
    if input.spec.ndim not in (2, 3):
        raise SpecError(f"adaptive_max_pool1d(): Expected 2D or 3D tensor, but got {list(input.spec.shape)}")
    size = sizes_kept("adaptive_max_pool1d", output_size, input.spec.shape[-1:])
    found = adaptive_max_pool2d(unsqueeze(input, -2), (1, *size), return_indices)
    return tuple(squeeze(t, -2) for t in found) if return_indices else squeeze(found, -2)


def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Max pooling of [N, C, D, H, W] or [C, D, H, W] to ``output_size``, an int or three; None keeps a size.

    With ``return_indices`` also the index of each maximum in the flattened volume, int64.
    """
    x = _volumes("adaptive_max_pool3d", input)
    depth, *size = sizes_kept("adaptive_max_pool3d", output_size, x.spec.shape[2:])
    planes, inside = adaptive_max_pool2d(_planes(x), size, True)
    out, found = adaptive_max_pool2d(_columns(planes, x), (depth, None), True)
    out = _whole(out, planes, input)
    return (out, _whole(_in_volume(inside, found, x), planes, input)) if return_indices else out


def avg_pool3d(input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None) -> Tensor:
    """The mean of each window of [N, C, D, H, W] or [C, D, H, W], or its sum over ``divisor_override``.

    Backward keeps nothing.
    """
    kernel = triple("kernel_size", kernel_size)
    steps = kernel if stride is None else triple("stride", stride)
    sides = triple("padding", padding)
    x = _volumes("avg_pool3d", input)
    planes = avg_pool2d(_planes(x), kernel[1:], steps[1:], sides[1:], ceil_mode, count_include_pad,
                        None if divisor_override is None else 1)
    out = avg_pool2d(_columns(planes, x), (kernel[0], 1), (steps[0], 1), (sides[0], 0), ceil_mode, count_include_pad,
                     divisor_override)
    return _whole(out, planes, input)


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """Mean pooling of [N, C, D, H, W] or [C, D, H, W] to ``output_size``, an int or three; None keeps a size."""
    x = _volumes("adaptive_avg_pool3d", input)
    depth, *size = sizes_kept("adaptive_avg_pool3d", output_size, x.spec.shape[2:])
    planes = adaptive_avg_pool2d(_planes(x), size)
    return _whole(adaptive_avg_pool2d(_columns(planes, x), (depth, None)), planes, input)


# -- powers ----------------------------------------------------------------------------------------------------------------


def _lp_pool(mean: Any, largest: Any, dims: int, input: Tensor, norm_type: float, kernel_size: Size, stride: Size | None,
             ceil_mode: bool) -> Tensor:
    """Lp pooling by way of ``mean`` pooling over windows of so many dimensions, or of ``largest`` for an infinite power."""
    count = math.prod(sizes("kernel_size", kernel_size, dims))
    if math.isinf(norm_type):
        size = elementwise.abs(input)
        if norm_type > 0:
            return largest(size, kernel_size, stride, 0, 1, ceil_mode)
        return -largest(-size, kernel_size, stride, 0, 1, ceil_mode)
    means = mean(elementwise.pow(input, norm_type), kernel_size, stride, 0, ceil_mode)
    return elementwise.pow(elementwise.sign(means) * activation.relu(elementwise.abs(means)) * float(count), 1.0 / norm_type)


def lp_pool1d(input: Tensor, norm_type: float, kernel_size: Size, stride: Size | None = None,
              ceil_mode: bool = False) -> Tensor:
    """The ``norm_type``-th root of the sum of the ``norm_type``-th powers over each window of [N, C, L] or [C, L].

    An infinite ``norm_type`` gives the largest absolute value of each window, minus infinity the smallest. Where the sum is
    0, the gradient is NaN or infinite, as in PyTorch.
    """
    return _lp_pool(avg_pool1d, max_pool1d, 1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(input: Tensor, norm_type: float, kernel_size: Size, stride: Size | None = None,
              ceil_mode: bool = False) -> Tensor:
    """:func:`lp_pool1d` over windows of [N, C, H, W] or [C, H, W]."""
    return _lp_pool(avg_pool2d, max_pool2d, 2, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(input: Tensor, norm_type: float, kernel_size: Size, stride: Size | None = None,
              ceil_mode: bool = False) -> Tensor:
    """:func:`lp_pool1d` over windows of [N, C, D, H, W] or [C, D, H, W]."""
    return _lp_pool(avg_pool3d, max_pool3d, 3, input, norm_type, kernel_size, stride, ceil_mode)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha * m)^beta, where m is the mean of x^2 over ``size`` neighboring channels of [N, C, ...].

    Krizhevsky et al., NIPS 2012. Raises ValueError for fewer than three dimensions.
    """
    shape = input.spec.shape
    if len(shape) < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {len(shape)} dimensions)")
    if not input.spec.numel:
        return input
    squares = movement.reshape(elementwise.square(input), (shape[0], 1, shape[1], math.prod(shape[2:])))
    means = avg_pool2d(pad(squares, (0, 0, size // 2, (size - 1) // 2)), (size, 1), 1)
    return input / elementwise.pow(movement.reshape(means, shape) * real(alpha) + real(k), real(beta))
