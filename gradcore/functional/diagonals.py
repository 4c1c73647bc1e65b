"""Diagonals of matrices: read, written, and made into matrices; and the indices of triangles."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from gradcore.devices.device import device_of_new
from gradcore.engine.owners import upload
from gradcore.errors import SpecError
from gradcore.functional import shape as sh
from gradcore.ops import arrangement, creation, movement, reduce
from gradcore.spec import contiguous_strides, normalize_dim

Tensor = Any


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of a diagonal of two dimensions, as the last dimension; ``offset`` > 0 is above the main diagonal, < 0 below."""
    return arrangement.diagonal(input, offset=offset, dim1=sh.dim_of(dim1, input), dim2=sh.dim_of(dim2, input))


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last dimension of ``input`` on a diagonal of two new dimensions, and zeros elsewhere."""
    length = input.spec.shape[-1]
    size, ndim = length + builtins.abs(offset), input.spec.ndim + 1
    one, two = normalize_dim(dim1, ndim), normalize_dim(dim2, ndim)
    if one == two:
        raise SpecError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    lead = list(input.spec.shape[:-1])
    for d in sorted((one, two)):
        lead.insert(d, size)
    strides = contiguous_strides(tuple(lead))
    kept = [s for d, s in enumerate(strides) if d not in (one, two)]
    return movement.as_strided_grad(input, like=tuple(lead), strides=(*kept, strides[one] + strides[two]),
                                    offset=offset * strides[two] if offset >= 0 else -offset * strides[one])


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """For a 1-d tensor, a matrix with it on a diagonal; for a matrix, a copy of a diagonal."""
    if input.spec.ndim == 1:
        return diag_embed(input, diagonal)
    if input.spec.ndim != 2:
        raise SpecError(f"diag(): Supports 1D or 2D tensors. Got {input.spec.ndim}D")
    return sh.clone(arrangement.diagonal(input, offset=diagonal, dim1=0, dim2=1))


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements of ``input``, flattened, on a diagonal."""
    return diag_embed(sh.reshape(input, -1), offset)


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    if input.spec.ndim != 2:
        raise SpecError(f"trace: expected a matrix, but got tensor with dim {input.spec.ndim}")
    return reduce.sum(arrangement.diagonal(input, offset=0, dim1=0, dim2=1), dims=(0,), keepdim=False)


def _positions(found: Any, dtype: Any, device: Any) -> Tensor:
    return upload(np.stack(found).astype(np.dtype(dtype)), device_of_new(device))


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = np.int64, device: Any = None) -> Tensor:
    """Row and column indices [2, N] of the lower triangle of a [row, col] matrix, row by row."""
    return _positions(np.tril_indices(row, offset, col), dtype, device)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = np.int64, device: Any = None) -> Tensor:
    """Row and column indices [2, N] of the upper triangle of a [row, col] matrix, row by row."""
    return _positions(np.triu_indices(row, offset, col), dtype, device)


def fill_diagonal_(input: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Write a number to the main diagonal, in place; returns the tensor. Raises NotImplementedError for ``wrap``."""
    if wrap or input.spec.ndim != 2:
        raise NotImplementedError(f"fill_diagonal_: only matrices without wrap, but got {list(input.spec.shape)}, wrap={wrap}")
    creation.fill_(arrangement.diagonal(input, offset=0, dim1=0, dim2=1), fill_value)
    return input


METHODS = ["diagonal", "diag_embed", "diag", "diagflat", "trace"]
TENSOR_METHODS = {"fill_diagonal_": fill_diagonal_}

__all__ = [*METHODS, "tril_indices", "triu_indices"]  # noqa: PLE0604 - strings all
