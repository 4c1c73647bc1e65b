"""Pooling over windows of an image: the largest element, the mean, the mean over as many parts as asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.errors import SpecError
from gradcore.ops.op import Inferred, op
from gradcore.ops.shapes import need_float, with_workspace
from gradcore.spec import TensorSpec
from gradcore.tiling import Pair, planes_at_once


def pooled(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """How many windows there are along one dimension; the last begins inside the input or its left padding."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def _out(name: str, x: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
         ceil_mode: bool) -> tuple[int, ...]:
    if len(x) != 4:
        raise SpecError(f"{name}: expected an input [N, C, H, W], but got {list(x)}")
    if min(*kernel, *stride, *dilation) < 1:
        raise SpecError(f"{name}: kernel size {kernel}, stride {stride} and dilation {dilation} must be positive")
    if any(not 0 <= 2 * p <= k for p, k in zip(padding, kernel, strict=True)):
        raise SpecError(f"{name}: pad should be at most half of effective kernel size, but got pad={padding}, "
                        f"kernel_size={kernel}")
    size = tuple(pooled(x[2 + d], kernel[d], stride[d], padding[d], dilation[d], ceil_mode) for d in (0, 1))
    if min(*size, *x[2:]) < 1:
        raise SpecError(f"{name}: Given input size: {list(x[1:])}. Calculated output size: {[x[1], *size]}. Output size is "
                        "too small")
    return (*x[:2], *size)


def index_dtype(kernel: Pair) -> Any:
    """One byte holds a position inside a window of up to 256 elements."""
    return np.dtype(np.uint8 if kernel[0] * kernel[1] <= 256 else np.int32)


def _max_spec(x: TensorSpec, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool) -> Inferred:
    need_float("max_pool2d", input=x)
    shape = _out("max_pool2d", x.shape, kernel, stride, padding, dilation, ceil_mode)
    return Inferred((TensorSpec.of(shape, x.dtype), TensorSpec.of(shape, index_dtype(kernel))), (), _masked_bytes(shape, x))


def _piece_elements(shape: tuple[int, ...]) -> int:
    """Elements of a piece of planes."""
    return planes_at_once(shape[0] * shape[1], shape[2] * shape[3]) * shape[2] * shape[3]


def _masked_bytes(shape: tuple[int, ...], x: TensorSpec) -> int:
    """Bytes of a piece of ``x``, and of a mask for it."""
    return _piece_elements(shape) * (x.dtype.itemsize + 4) + 32


def _max_grad_spec(dy: TensorSpec, index: TensorSpec, *, shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair,
                   dilation: Pair) -> Any:
    return with_workspace(TensorSpec.of(shape, dy.dtype), _masked_bytes(dy.shape, dy))


def _max_take_spec(x: TensorSpec, index: TensorSpec, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Any:
    return with_workspace(index.like(x.dtype), _masked_bytes(index.shape, x))


max_pool2d = op("max_pool2d", _max_spec, outputs=("out", "index"), contiguous=True,
                x=lambda g_out, index, x_spec, kernel, stride, padding, dilation: None if g_out is None else max_pool2d_grad(
                    g_out, index, shape=x_spec.shape, kernel=kernel, stride=stride, padding=padding, dilation=dilation),
                doc="The largest element of each window, and its position inside the window: all that backward keeps.")
max_pool2d_grad = op("max_pool2d_grad", _max_grad_spec, contiguous=True,
                     dy=lambda g, index, kernel, stride, padding, dilation: max_pool2d_take(
                         g, index, kernel=kernel, stride=stride, padding=padding, dilation=dilation))
max_pool2d_take = op("max_pool2d_take", _max_take_spec, contiguous=True,
                     x=lambda g, index, x_spec, attrs: max_pool2d_grad(g, index, shape=x_spec.shape, **attrs),
                     doc="The element of each window at a position inside it.")


def _flat_index_spec(index: TensorSpec, *, shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair,
                     dilation: Pair) -> TensorSpec:
    return index.like(np.int64)


max_pool2d_places = op("max_pool2d_places", _flat_index_spec, contiguous=True,
                       doc="Positions inside windows as positions inside the plane, PyTorch's indices.")


def _avg_spec(x: TensorSpec, *, kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool, count_pad: bool,
              divisor: int | None) -> TensorSpec:
    need_float("avg_pool2d", input=x)
    if divisor == 0:
        raise SpecError("avg_pool2d: divisor must be not zero")
    return TensorSpec.of(_out("avg_pool2d", x.shape, kernel, stride, padding, (1, 1), ceil_mode), x.dtype)


def _avg_grad_spec(dy: TensorSpec, *, shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool,
                   count_pad: bool, divisor: int | None) -> Any:
    return with_workspace(TensorSpec.of(shape, dy.dtype), _piece_elements(dy.shape) * dy.dtype.itemsize)


avg_pool2d = op("avg_pool2d", _avg_spec, contiguous=True,
                x=lambda g, x_spec, attrs: avg_pool2d_grad(g, shape=x_spec.shape, **attrs),
                again=lambda x, attrs: avg_pool2d(x, **attrs))
avg_pool2d_grad = op("avg_pool2d_grad", _avg_grad_spec, contiguous=True,
                     dy=lambda g, kernel, stride, padding, ceil_mode, count_pad, divisor: avg_pool2d(
                         g, kernel=kernel, stride=stride, padding=padding, ceil_mode=ceil_mode, count_pad=count_pad,
                         divisor=divisor))


def _adaptive_spec(x: TensorSpec, *, size: Pair) -> TensorSpec:
    need_float("adaptive_avg_pool2d", input=x)
    if x.ndim != 4 or min(size) < 0 or min(x.shape[1:]) < 1:
        raise SpecError(f"adaptive_avg_pool2d: expected an input [N, C, H, W] with elements and a size that is not "
                        f"negative, but got {list(x.shape)} and {size}")
    return TensorSpec.of((*x.shape[:2], *size), x.dtype)


def _adaptive_grad_spec(dy: TensorSpec, *, shape: tuple[int, ...]) -> Any:
    return with_workspace(TensorSpec.of(shape, dy.dtype), dy.shape[0] * dy.shape[1] * dy.dtype.itemsize)


adaptive_avg_pool2d = op("adaptive_avg_pool2d", _adaptive_spec, contiguous=True,
                         x=lambda g, x_spec: adaptive_avg_pool2d_grad(g, shape=x_spec.shape))
adaptive_avg_pool2d_grad = op("adaptive_avg_pool2d_grad", _adaptive_grad_spec, contiguous=True,
                              dy=lambda g, dy_spec: adaptive_avg_pool2d(g, size=dy_spec.shape[2:]))
