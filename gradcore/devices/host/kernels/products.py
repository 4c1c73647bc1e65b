"""Matrix products on the CPU, and sums that are fastest as products."""

from __future__ import annotations

import functools
import itertools
import math
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import PIECE_ROWS, Array, kernel, slices
from gradcore.devices.host.scratch import KEPT, lent

#: The functions that compute products.
PRODUCTS = np.dot, np.matmul
#: Of a matrix whose columns are added: the rows of a block, and the most columns at a time, for which a thread keeps many sums.
_BLOCK, _WIDTH = 256, 2048
#: Rows and columns of a block of integers, and the least number of products of a matrix of them.
_SIDE, _WORTH = 128, 1 << 16
#: The longest dimension that is summed as so many arrays, since NumPy's loop over a short one costs more than its sums, and the
#: least size of an array for this.
_SHORT, _AT_LEAST = 8, 4096
#: The least number of sums that are added in blocks, since errors grow with it.
_ROWS = 128
#: The longest row that is summed as a product with ones, a few times as fast as NumPy's sum, which has smaller errors. Columns
#: are summed so whatever their length, with smaller errors than NumPy's.
_ROW = 1024
#: The shortest row of which many are summed so before the sums are added.
_SHORTEST = 16
#: The least size of an array that is summed as rows of this length, then their sums.
_MANY = 1 << 15


def product(a: Array, b: Array, out: Array) -> None:
    """``out = a @ b``. For matrices np.dot makes the same BLAS call as np.matmul, with less overhead; spaced ones it copies."""
    if out.ndim > 2 and a.ndim > 1 < b.ndim and a.shape[-1] == 1 and (out.shape[-1] >= 8 or 1 in out.shape[-2:]):
        # All products of two vectors, for many pairs of them: BLAS takes several times as long for sums of one term, though not
        # in short rows.
        np.multiply(a, b, out)
        return
    if a.dtype.kind in "iu" and a.ndim > 1 < b.ndim and _whole_product(a, b, out):
        return
    plain = a.ndim <= 2 and b.ndim <= 2 and out.flags.c_contiguous and (a.flags.forc or not _spaced(a)) and (
        b.flags.forc or not _spaced(b))
    (np.dot if plain else np.matmul)(a, b, out)


def _whole_product(a: Array, b: Array, out: Array) -> bool:
    """The product of integers by blocks in float64, since BLAS has none of integers. False for small matrices, and if sums may
    have more digits than a double."""
    if min(out.shape[-2:]) < 8 or a.shape[-1] * math.prod(out.shape[-2:]) < _WORTH or not out.size:
        return False
    most_a, most_b = (max(int(x.max()), -int(x.min())) for x in (a, b))
    if most_a * most_b * a.shape[-1] > 1 << 53:
        return False
    a, b = (np.broadcast_to(x, (*out.shape[:-2], *x.shape[-2:])) for x in (a, b))
    out.fill(0)
    with lent(4 * _SIDE ** 2, np.dtype(np.float64)) as room:
        rooms = room.reshape(4, -1)
        for at in np.ndindex(out.shape[:-2]):
            for i, j, k in itertools.product(*[slices(n, _SIDE) for n in (*out.shape[-2:], a.shape[-1])]):
                x, y, target = a[at][i, k], b[at][k, j], out[at][i, j]
                made, wide_x, wide_y = (r[:t.size].reshape(t.shape) for r, t in zip(rooms, (target, x, y), strict=False))
                np.copyto(wide_x, x)
                np.copyto(wide_y, y)
                np.matmul(wide_x, wide_y, out=made)
                # In 64 bits, of which the last are those of the smaller integers.
                whole = rooms[3][:made.size].view(np.int64).reshape(made.shape)
                np.copyto(whole, made, casting="unsafe")
                np.add(whole, target, whole)
                np.copyto(target, whole, casting="unsafe")
    return True


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


def lent_for(x: Array, size: int) -> AbstractContextManager[Array]:
    """So many elements like those of ``x`` in the memory that the thread keeps, which other kernels write to between the calls
    of a replay: a kernel that needs them is not written out."""
    if type(x) is not np.ndarray:
        raise TypeError("a probe cannot record calls on the memory that a thread keeps")
    return lent(size, x.dtype)


def column_sums(x: Array, out: Array) -> None:
    """The sum of each column of a matrix: of many rows in blocks, since errors grow with the number of terms of a sum."""
    count, width = x.shape
    if count <= PIECE_ROWS:
        product(ones(count, x.dtype), x, out)
    else:
        for some in slices(width, _WIDTH):
            _long_sums(x[:, some], out[some])


def _long_sums(x: Array, out: Array) -> None:
    """The same for at most :data:`_WIDTH` columns; the sums of blocks are in memory that the thread keeps."""
    count, width = x.shape
    # No more than a block, which is added at once: the memory is lent once.
    most = min(KEPT // (width * x.itemsize), _BLOCK) - 2
    with lent_for(x, (most + 2) * width) as room:
        sums = room.reshape(-1, width)
        for some in slices(count, most * _BLOCK):
            part = x[some]
            blocks = len(part) // _BLOCK
            np.matmul(ones(_BLOCK, x.dtype), part[:blocks * _BLOCK].reshape(blocks, _BLOCK, width), out=sums[:blocks])
            np.add.reduce(part[blocks * _BLOCK:], 0, out=sums[blocks])
            sums[blocks + 1] = out if some.start else 0
            column_sums(sums[:blocks + 2], out)


def add_over(x: Array, dims: tuple[int, ...], out: Array) -> None:
    """Write the sums over ``dims`` to ``out``, which lacks these dimensions or has them with a size of 1."""
    target = out.reshape([n for d, n in enumerate(x.shape) if d not in dims])
    if x.ndim == 2 and len(dims) == 1 and x.strides[0] < x.strides[1]:
        x, dims = x.T, (1 - dims[0],)
    if x.size < _AT_LEAST or x.dtype != out.dtype or x.dtype.itemsize < 4:
        np.add.reduce(x, axis=dims, out=target)
        return
    floats, count = x.dtype.kind == "f", math.prod(x.shape[d] for d in dims)
    start, stop = (min(dims), max(dims) + 1) if dims else (0, 0)
    # Can the dimensions be merged, and those before them and behind them?
    plain = floats and target.size > 1 and stop - start == len(dims) and (x.flags.c_contiguous or (x.ndim == 2 and _spaced(x)))
    if len(dims) == 1 and start > 0 and 2 <= count <= _SHORT:
        lead: tuple[Any, ...] = (slice(None),) * start
        first, second, *others = (x[(*lead, k)] for k in range(count))
        np.add(first, second, target)
        for part in others:
            np.add(target, part, target)
    elif not any(x.strides[d] for d in dims):
        once = x[tuple(slice(1 if d in dims else None) for d in range(x.ndim))]
        np.multiply(once.reshape(target.shape), count, target)
    elif plain and stop < x.ndim and (not start or count > PIECE_ROWS):
        width = math.prod(x.shape[stop:])
        for part, sums in zip(x.reshape(-1, count, width), target.reshape(-1, width), strict=True):
            column_sums(part, sums)
    elif plain and 0 < count <= PIECE_ROWS and stop < x.ndim:
        rows = x.reshape(-1, count, math.prod(x.shape[stop:]))
        np.matmul(ones(count, x.dtype).reshape(1, count), rows, out=target.reshape(len(rows), 1, rows.shape[2]))
    elif plain and stop == x.ndim and count <= _ROW:
        np.matmul(x.reshape(-1, count), ones(count, x.dtype), out=target.reshape(-1))
    elif floats and target.size == 1 and x.flags.c_contiguous and _MANY <= x.size <= _ROW * (KEPT // 16):
        _add_all(x.reshape(-1), target)
    elif not (floats and len(dims) > 1 and target.size and (_add_planes(x, dims, target) or _add_blocks(x, dims, target))):
        np.add.reduce(x, axis=dims, out=target)


def _add_all(x: Array, out: Array) -> None:
    whole = x.size // _ROW * _ROW
    with lent_for(x, x.size // _ROW + 1) as sums:
        np.matmul(x[:whole].reshape(-1, _ROW), ones(_ROW, x.dtype), out=sums[:-1])
        sums[-1] = np.add.reduce(x[whole:])
        np.add.reduce(sums, out=out.reshape(()))


def _add_planes(x: Array, dims: tuple[int, ...], out: Array) -> bool:
    """The sums over the last dimensions, as of an image's planes, by products with ones; then those of these sums.
    False if the planes are small, or cannot be cut into equal rows, or if there are few of them."""
    behind = x.ndim
    while behind - 1 in dims:
        behind -= 1
    others = [d for d in dims if d < behind]
    if not others or x.size < _MANY // 2 or not x.flags.c_contiguous:
        return False
    plane = math.prod(x.shape[behind:])
    least = -(-plane // _ROW)
    cuts = next((k for k in range(least, 2 * least + _SHORTEST) if plane % k == 0), plane)
    row = plane // cuts
    if row < _SHORTEST or x.size // row > KEPT // x.itemsize:
        return False
    longest = max(others, key=lambda d: x.shape[d])
    with lent_for(x, x.size // row) as room:
        np.matmul(x.reshape(-1, row), ones(row, x.dtype), out=room)
        sums = room.reshape(*x.shape[:behind], cuts).swapaxes(0, longest)
        # By halves, since errors grow with the number of terms that are added one after the other.
        while len(sums) > _ROWS:
            half = len(sums) // 2
            np.add(sums[:half], sums[-half:], sums[:half])
            sums = sums[:-half]
        np.add.reduce(sums.swapaxes(0, longest), axis=(*others, behind), out=out)
    return True


def _add_blocks(x: Array, dims: tuple[int, ...], out: Array) -> bool:
    """The sum of the sums of blocks: NumPy adds those of the inner dimensions one after the other. False if a block is all."""
    d = max(dims, key=lambda d: abs(x.strides[d]))
    count = math.prod(x.shape[k] for k in dims if x.strides[k] != x.itemsize)
    blocks = min(math.isqrt(count), x.shape[d], x.size // _AT_LEAST, KEPT // (out.size * x.itemsize))
    if count < _ROWS or blocks < 2:
        return False
    length = -(-x.shape[d] // blocks)
    with lent_for(x, blocks * out.size) as room:
        sums = room.reshape(blocks, *out.shape)
        for k in range(blocks):
            np.add.reduce(x[(*(slice(None),) * d, slice(k * length, (k + 1) * length))], axis=dims, out=sums[k, ...])
        np.add.reduce(sums, 0, out=out)
    return True


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
    dx, dweight, dbias = [next(found) if needed else None for needed in needs]
    if dweight is not None:
        product(dy.T, x.reshape(rows, x.shape[-1]), dweight)
    if dbias is not None:
        column_sums(dy, dbias)
    if dx is not None:
        # Last, since it may take the place of x.
        product(dy, weight, dx.reshape(rows, weight.shape[1]))
