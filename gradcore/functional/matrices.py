"""Diagonals of matrices, read, written and made into matrices; triangles and their indices; block-diagonal matrices."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from gradcore.devices.device import device_of_new
from gradcore.dtypes import default_float, promote
from gradcore.engine.owners import upload
from gradcore.engine.value import Value
from gradcore.errors import DimError, SpecError
from gradcore.functional import shape as sh
from gradcore.functional.padding import pad
from gradcore.ops import arrangement, creation, movement, reduce, scan
from gradcore.spec import contiguous_strides, normalize_dim

Tensor = Any


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two dimensions, with zeros above the diagonal number ``diagonal`` (0 is the main one)."""
    return arrangement.tril(input, diagonal=int_of("tril", "diagonal", diagonal))


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two dimensions, with zeros below the diagonal number ``diagonal`` (0 is the main one)."""
    return arrangement.triu(input, diagonal=int_of("triu", "diagonal", diagonal))


def int_of(name: str, argument: str, given: Any) -> int:
    """The second argument of a function as an int; a tensor of one integer is read. Raises TypeError for what is no int."""
    # A kernel that computed with a tensor would call another.
    if (isinstance(given, Value) and given.spec.numel != 1) or type(found := sh.plain(given)) is not int:
        raise TypeError(f"{name}(): argument {argument!r} (position 2) must be int, not {type(given).__name__}")
    return found


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of a diagonal of two dimensions, as the last dimension; ``offset`` > 0 is above the main diagonal, < 0 below."""
    offset = int_of("diagonal", "offset", offset)
    return arrangement.diagonal(input, offset=offset, dim1=sh.dim_of(dim1, input), dim2=sh.dim_of(dim2, input))


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last dimension of ``input`` on a diagonal of two new dimensions, and zeros elsewhere."""
    if not input.spec.ndim:
        raise DimError("diag_embed: expected a tensor of at least one dimension, but got a 0-d tensor")
    length, offset = input.spec.shape[-1], int_of("diag_embed", "offset", offset)
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
    return sh.clone(arrangement.diagonal(input, offset=int_of("diag", "diagonal", diagonal), dim1=0, dim2=1))


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements of ``input``, flattened, on a diagonal."""
    return diag_embed(sh.reshape(input, -1), offset)


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    if input.spec.ndim != 2:
        raise SpecError(f"trace: expected a matrix, but got tensor with dim {input.spec.ndim}")
    return reduce.sum(arrangement.diagonal(input, offset=0, dim1=0, dim2=1), dims=(0,), keepdim=False)


def _positions(name: str, row: int, col: int, offset: int, dtype: Any, device: Any) -> Tensor:
    if row < 0 or col < 0:
        raise SpecError(f"{name}: row and col must be non-negative, but got {row} and {col}")
    found = getattr(np, name)(row, offset, col)
    return upload(np.stack(found).astype(np.dtype(dtype)), device_of_new(device))


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = np.int64, device: Any = None) -> Tensor:
    """Row and column indices [2, N] of the lower triangle of a [row, col] matrix, row by row."""
    return _positions("tril_indices", row, col, offset, dtype, device)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = np.int64, device: Any = None) -> Tensor:
    """Row and column indices [2, N] of the upper triangle of a [row, col] matrix, row by row."""
    return _positions("triu_indices", row, col, offset, dtype, device)


def fill_diagonal_(input: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Write a number to the main diagonal, in place; returns the tensor. Raises NotImplementedError for ``wrap``."""
    if wrap or input.spec.ndim != 2:
        raise NotImplementedError(f"fill_diagonal_: only matrices without wrap, but got {list(input.spec.shape)}, wrap={wrap}")
    creation.fill_(arrangement.diagonal(input, offset=0, dim1=0, dim2=1), fill_value)
    return input


def block_diag(*tensors: Any) -> Tensor:
    """A matrix with the given ones along its diagonal and zeros elsewhere; 1-d tensors are rows, 0-d ones 1 x 1 matrices.

    Raises :class:`SpecError` for more than two dimensions.
    """
    given = sh.listed(tensors)
    for k, x in enumerate(given):
        if x.spec.ndim > 2:
            raise SpecError("torch.block_diag: Input tensors must have 2 or fewer dimensions. "
                            f"Input {k} has {x.spec.ndim} dimensions")
    if not given:
        return creation.empty(shape=(1, 0), dtype=default_float(), device=None)
    dtype = promote([x.spec for x in given])
    blocks = [sh.atleast_2d(x.to(dtype)) for x in given]
    whole, before, rows = sum(x.spec.shape[1] for x in blocks), 0, []
    for x in blocks:
        rows.append(pad(x, (before, whole - before - x.spec.shape[1])))
        before += x.spec.shape[1]
    return sh.cat(rows, 0)


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix [n, N] of a vector [n]: its powers as columns, the highest first unless ``increasing``.

    ``N`` is n by default.
    """
    if x.spec.ndim != 1:
        raise SpecError(f"x must be a one-dimensional tensor, but got {list(x.spec.shape)}")
    n, count = x.spec.shape[0], x.spec.shape[0] if N is None else N
    if count < 0:
        raise SpecError(f"N must be non-negative, but got {count}")
    dtype = x.spec.dtype if x.spec.floating else np.dtype(np.int64)
    one = creation.full(1, shape=(n, min(count, 1)), dtype=dtype, device=x.storage.device)
    if count < 2:
        return one
    again = movement.expand(sh.unsqueeze(x, 1), shape=(n, count - 1))
    powers = sh.cat([one, scan.cumprod(again, dim=1)], 1)
    return powers if increasing else arrangement.flip(powers, dims=(1,))


METHODS = ["diagonal", "diag_embed", "diag", "diagflat", "trace", "tril", "triu"]
TENSOR_METHODS = {"fill_diagonal_": fill_diagonal_}

__all__ = [*METHODS, "block_diag", "tril_indices", "triu_indices", "vander"]  # noqa: PLE0604 - strings all
