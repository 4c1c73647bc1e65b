"""The same elements in another order, on or beside a diagonal, or seen through windows."""

from __future__ import annotations

from typing import Any

from gradcore.errors import DimError, SpecError
from gradcore.ops.movement import as_strided_grad
from gradcore.ops.op import op
from gradcore.spec import TensorSpec, contiguous_strides

# -- order -------------------------------------------------------------------------------------------------------------


def _flip_spec(x: TensorSpec, *, dims: tuple[int, ...]) -> TensorSpec:
    return x.like()


def _roll_spec(x: TensorSpec, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> TensorSpec:
    if len(shifts) != len(dims):
        raise SpecError(f"shifts and dimensions must align: got {len(shifts)} shifts and {len(dims)} dims")
    if dims and not x.ndim:
        raise DimError(f"roll: dims={dims} are given for a 0-d tensor, which has no dimensions: leave them out")
    return x.like()


flip = op("flip", _flip_spec, x=lambda g, dims: flip(g, dims=dims), again=lambda x, dims: flip(x, dims=dims),
          doc="The dimensions from their end to their start.")
roll = op("roll", _roll_spec, x=lambda g, shifts, dims: roll(g, shifts=tuple(-n for n in shifts), dims=dims),
          again=lambda x, shifts, dims: roll(x, shifts=shifts, dims=dims),
          doc="Element i moves to (i + shift) modulo the size of its dimension.")

# -- diagonals ---------------------------------------------------------------------------------------------------------


def _triangle_spec(x: TensorSpec, *, diagonal: int) -> TensorSpec:
    if x.ndim < 2:
        raise SpecError(f"tril/triu: input tensor must have at least 2 dimensions, but got {list(x.shape)}")
    return x.like()


tril = op("tril", _triangle_spec, x=lambda g, diagonal: tril(g, diagonal=diagonal),
          doc="Zeros above the diagonal, or above one beside it.")
triu = op("triu", _triangle_spec, x=lambda g, diagonal: triu(g, diagonal=diagonal))


def _diagonal_of(x: TensorSpec, strides: tuple[int, ...], offset: int, dim1: int, dim2: int) -> tuple[Any, Any, int]:
    """Shape, strides and first element of a diagonal, its dimension last, where ``x`` lies with these strides."""
    if x.ndim < 2 or dim1 == dim2:
        raise SpecError(f"diagonal dimensions cannot be identical {dim1}, {dim2}: of {list(x.shape)}")
    rows, columns = x.shape[dim1], x.shape[dim2]
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    kept = [d for d in range(x.ndim) if d not in (dim1, dim2)]
    first = (offset * strides[dim2] if offset >= 0 else -offset * strides[dim1]) if length else 0
    return ((*(x.shape[d] for d in kept), length), (*(strides[d] for d in kept), strides[dim1] + strides[dim2]), first)


def _diagonal_spec(x: TensorSpec, *, offset: int, dim1: int, dim2: int) -> TensorSpec:
    shape, strides, first = _diagonal_of(x, x.strides, offset, dim1, dim2)
    return TensorSpec.strided(shape, x.dtype, strides, x.offset + first)


def _diagonal_rule(g: Any, x_spec: TensorSpec, offset: int, dim1: int, dim2: int) -> Any:
    _, strides, first = _diagonal_of(x_spec, contiguous_strides(x_spec.shape), offset, dim1, dim2)
    return as_strided_grad(g, like=x_spec.shape, strides=strides, offset=first)


diagonal = op("diagonal", _diagonal_spec, view=True, x=_diagonal_rule)

# -- windows -----------------------------------------------------------------------------------------------------------


def _windows_spec(x: TensorSpec, *, dim: int, size: int, step: int, dilation: int) -> TensorSpec:
    length, reach = (x.shape[dim], (size - 1) * dilation + 1) if x.ndim else (1, size)
    if step <= 0:
        raise SpecError(f"step is {step} but must be > 0")
    if size < 0 or reach > length:
        raise SpecError(f"maximum size for tensor at dimension {dim} is {length} but size is {reach}")
    stride = x.strides[dim] if x.ndim else 1
    count = (length - reach) // step + 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1:], size) if x.ndim else (size,)
    strides = (*x.strides[:dim], stride * step, *x.strides[dim + 1:], stride * dilation) if x.ndim else (stride,)
    return TensorSpec.strided(shape, x.dtype, strides, x.offset)


def _windows_grad_spec(dy: TensorSpec, *, shape: tuple[int, ...], dim: int, size: int, step: int, dilation: int) -> TensorSpec:
    return TensorSpec.of(shape, dy.dtype)


windows = op("windows", _windows_spec, view=True,
             x=lambda g, x_spec, attrs: windows_grad(g, shape=x_spec.shape, **attrs),
             doc="Windows of ``size`` elements, ``dilation`` apart, that begin every ``step``: they are a last dimension.")
windows_grad = op("windows_grad", _windows_grad_spec,
                  dy=lambda g, dim, size, step, dilation: windows(g, dim=dim, size=size, step=step, dilation=dilation),
                  doc="Zeros of ``shape`` with dy added where each element of a window came from.")
