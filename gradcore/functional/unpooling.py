"""Partial inverses of max pooling, and max pooling that always returns its indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from gradcore.arguments import with_name
from gradcore.errors import SpecError
from gradcore.functional.picking import scatter_
from gradcore.functional.pooling import (
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from gradcore.functional.shape import plain
from gradcore.functional.sizes import Size, sizes
from gradcore.ops import creation, movement
from gradcore.ops.convolution import covered
from gradcore.ops.shapes import need_float

Tensor = Any

__all__ = ["adaptive_max_pool1d_with_indices", "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d_with_indices",
           "max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "max_unpool1d", "max_unpool2d",
           "max_unpool3d"]


def _size(input: Tensor, kernel: Any, stride: Any, padding: Any, output_size: Any) -> list[int]:
    """The sizes of the result: those that pooling needs at least, or the given ones, which pooling brings to the same."""
    usual = [covered(*along) for along in zip(input.spec.shape[-len(kernel):], kernel, stride, padding, strict=True)]
    if output_size is None:
        found = usual
    else:
        found = [int(plain(n)) for n in plain(output_size)]
        found = found[2:] if len(found) == len(kernel) + 2 else found
        if len(found) != len(kernel):
            raise ValueError(f"output_size should be a sequence containing {len(kernel)} or {len(kernel) + 2} elements, but it "
                             f"has a length of '{len(found)}'")
        for d, (n, least, step) in enumerate(zip(found, usual, stride, strict=True)):
            if not least - step < n < least + step:
                raise ValueError(f'invalid output_size "{tuple(found)}" (dim {d} must be between {least - step} and '
                                 f"{least + step})")
    for d, n in enumerate(found):
        if n < 0:
            raise ValueError("max_unpooling: output_size must contain non-negative spatial dimensions, but got "
                             f"output_size[{d}]={n}")
    return found


def _unpooled(input: Tensor, indices: Tensor, kernel_size: Size, stride: Size | None, padding: Size, output_size: Any,
              dims: int) -> Tensor:
    name = f"max_unpool{dims}d"
    kernel, sides = sizes("kernel_size", kernel_size, dims), sizes("padding", padding, dims)
    shape = input.spec.shape
    if len(shape) not in (dims + 1, dims + 2):
        raise SpecError(f"Input to {name} should be a {dims + 1}d or {dims + 2}d Tensor, but got a tensor with {len(shape)} "
                        "dimensions.")
    size = _size(input, kernel, kernel if stride is None else sizes("stride", stride, dims), sides, output_size)
    need_float(name, input=input.spec)
    if indices.spec.dtype.name != "int64":
        raise SpecError(f"elements in indices should be type int64 but got: {indices.spec.dtype.name}")
    if indices.spec.shape != shape:
        raise SpecError(f"Expected shape of indices to be same as that of the input tensor ({list(shape)}) but got indices "
                        f"tensor with shape: {list(indices.spec.shape)}")
    lead, tail = shape[:-dims], shape[-dims:]
    for d in range(len(shape) - dims - 1, len(shape)):
        if not shape[d]:
            raise SpecError(f"{name}: Expected input to have non-zero size for non-batch dimensions, but got {list(shape)} "
                            f"with dimension {d} being empty.")
    flat = (*lead, math.prod(tail))
    out = creation.new_full(input, (*lead, math.prod(size)), 0)
    scatter_(out, -1, movement.reshape(indices, flat), movement.reshape(input, flat))
    return movement.reshape(out, (*lead, *size))


def max_unpool1d(input: Tensor, indices: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
                 output_size: Sequence[int] | None = None) -> Tensor:
    """Zeros [N, C, L'] or [C, L'], with each element of ``input`` at its index, as :func:`max_pool1d` returned it.

    Several sizes are pooled to one; ``output_size`` says which it was, as [L'] or [N, C, L']. Of equal indices the last wins,
    and each gets the gradient of its place. Backward keeps the indices. Raises ValueError for an ``output_size`` that is not
    pooled to the input's; on the CPU IndexError for an index out of range, where a GPU writes nothing.
    """
    return _unpooled(input, indices, kernel_size, stride, padding, output_size, 1)


def max_unpool2d(input: Tensor, indices: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
                 output_size: Sequence[int] | None = None) -> Tensor:
    """:func:`max_unpool1d` of images: [N, C, H, W] or [C, H, W], with indices in the flattened plane."""
    return _unpooled(input, indices, kernel_size, stride, padding, output_size, 2)


def max_unpool3d(input: Tensor, indices: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
                 output_size: Sequence[int] | None = None) -> Tensor:
    """:func:`max_unpool1d` of volumes: [N, C, D, H, W] or [C, D, H, W], with indices in the flattened volume."""
    return _unpooled(input, indices, kernel_size, stride, padding, output_size, 3)


def _with_indices(pool: Callable[..., Any]) -> Callable[..., Any]:
    name = pool.__name__

    @wraps(pool)
    def both(*args: Any, **options: Any) -> Any:
        # What is given for return_indices has no effect, as in PyTorch.
        options.pop("return_indices", None)
        return pool(*args[:2 if name.startswith("adaptive") else 6], **options, return_indices=True)

    return with_name(both, f"{name}_with_indices", f":func:`{name}` with ``return_indices=True``.")


max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = map(
    _with_indices, (max_pool1d, max_pool2d, max_pool3d))
adaptive_max_pool1d_with_indices, adaptive_max_pool2d_with_indices, adaptive_max_pool3d_with_indices = map(
    _with_indices, (adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d))
