"""Matrix products on the CPU, and sums that are fastest as products."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import PIECE_ROWS, Array, kernel

#: The functions that compute products.
PRODUCTS = np.dot, np.matmul


def product(a: Array, b: Array, out: Array) -> None:
    """``out = a @ b``. For matrices np.dot makes the same BLAS call as np.matmul, with less overhead; spaced ones it copies."""
    plain = a.ndim <= 2 and b.ndim <= 2 and out.flags.c_contiguous and (a.flags.forc or not _spaced(a)) and (
        b.flags.forc or not _spaced(b))
    (np.dot if plain else np.matmul)(a, b, out)


def _spaced(x: Array) -> bool:
    """Does BLAS read an array in place that is not contiguous: a matrix such as ``x[:, :4]`` or ``x[::2]``?"""
    if x.ndim < 2:
        return False
    (rows, columns), (down, across) = x.shape, x.strides
    return (across == x.itemsize and down >= columns * across) or (down == x.itemsize and across >= rows * down)


@functools.lru_cache(maxsize=16)
def ones(length: int, dtype: Any) -> Array:
    """A vector of ones, for sums as products, which are faster than sums along a dimension."""
    return np.ones(length, dtype)


def column_sums(x: Array, out: Array) -> None:
    """The sum of each column of a matrix."""
    if len(x) <= PIECE_ROWS:
        product(ones(len(x), x.dtype), x, out)
    else:
        np.add.reduce(x, axis=0, out=out)


@kernel
def matmul(a: Array, b: Array, out: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> None:
    product(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b, out)


@kernel
def linear(x: Array, weight: Array, bias: Any, out: Array) -> None:
    if x.ndim > 2 and x.flags.c_contiguous:
        # One product for all rows, instead of one for each matrix.
        rows = math.prod(x.shape[:-1])
        product(x.reshape(rows, x.shape[-1]), weight.T, out.reshape(rows, out.shape[-1]))
    else:
        product(x, weight.T, out)
    if bias is not None:
        np.add(out, bias, out)


@kernel
def linear_grad(dy: Array, x: Array, weight: Array, *outputs: Array, needs: tuple[bool, bool, bool]) -> None:
    found = iter(outputs)
    rows = math.prod(dy.shape[:-1])
    dy = dy.reshape(rows, dy.shape[-1])
    if needs[0]:
        product(dy, weight, next(found).reshape(rows, weight.shape[1]))
    if needs[1]:
        product(dy.T, x.reshape(rows, x.shape[-1]), next(found))
    if needs[2]:
        column_sums(dy, next(found))
