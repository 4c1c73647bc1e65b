"""Running sums and extremes, and order statistics on the CPU; see ``ops.scan`` and ``ops.order``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array, kernel, rows, slices
from gradcore.devices.host.scratch import KEPT, lent

#: The least number of elements after the accumulated dimension for which a call for each of its rows pays off; and where such
#: rows lie side by side, of a row and of all at one position.
_WIDE, _BESIDE, _ALL = 512, 64, 1024
#: The longest lines that are accumulated side by side, an element of each at a time, and the least number of them.
_SHORT, _LINES = 32, 512
#: The longest running sum in float32, in which errors grow with the length.
_BRIEF = 16
#: Elements of which NumPy may have copies in float64.
_SMALL = 1024


def _backwards(x: Array, dim: int, reverse: bool) -> Array:
    return np.flip(x, dim) if reverse else x


@kernel
def cumsum(x: Array, out: Array, *, dim: int, reverse: bool = False) -> None:
    _accumulate(np.add, x, out, dim, reverse)


@kernel
def cumprod(x: Array, out: Array, *, dim: int) -> None:
    _accumulate(np.multiply, x, out, dim, False)


@kernel
def cumextreme(x: Array, out: Array, *, dim: int, largest: bool) -> None:
    _accumulate(np.maximum if largest else np.minimum, x, out, dim, False)


def _accumulate(fold: np.ufunc, x: Array, out: Array, dim: int, reverse: bool) -> None:
    if not out.ndim or x.dtype != out.dtype:
        # Converted here, since accumulate would allocate a converted copy.
        out[...] = x
        x = out
    if out.dtype == np.float32 and fold in (np.add, np.multiply) and out.size and out.ndim and out.shape[dim] > _BRIEF:
        if out.size > _SMALL:
            _in_double(fold, x, out, dim, -1 if reverse else 1)
        else:
            fold.accumulate(_backwards(x, dim, reverse), dim, np.float64, _backwards(out, dim, reverse))
    elif out.ndim > 1 and _by_rows(x, dim):
        _fold_rows(fold, *(np.moveaxis(_backwards(t, dim, reverse), dim, 0) for t in (x, out)))
    elif out.ndim:
        fold.accumulate(_backwards(x, dim, reverse), axis=dim, out=_backwards(out, dim, reverse))


def _by_rows(x: Array, dim: int) -> bool:
    tail = math.prod(x.shape[dim + 1:])
    if tail == 1 and 1 < x.shape[dim] <= _SHORT and x.size >= _LINES * x.shape[dim]:
        return True
    return x.size > 0 and (tail >= _WIDE or (tail >= _BESIDE and x.size >= _ALL * x.shape[dim]))


def _fold_rows(fold: np.ufunc, x: Array, out: Array) -> None:
    """Accumulate along the first dimension a row at a time: NumPy accumulates across rows one element at a time."""
    np.copyto(out[:1], x[:1])
    # NumPy has buffers for rows that lie apart, of up to 8192 elements.
    for some in slices(out.shape[1], max(2048 // math.prod(out.shape[2:]), 1)) if out.ndim > 2 else (slice(None),):
        for k in range(1, len(out)):
            fold(out[k - 1, some], x[k, some], out=out[k, some])


def _in_double(fold: np.ufunc, x: Array, out: Array, dim: int, step: int) -> None:
    """Accumulate pieces in float64, as PyTorch does."""
    if not x.flags.c_contiguous:
        np.copyto(out, x)
        x = out
    n, tail = out.shape[dim], math.prod(out.shape[dim + 1:])
    source, target = (t.reshape(-1, n, tail)[:, ::step] for t in (x, out))
    across = min(tail, 4096)
    length = min(n, KEPT // 8 // across)
    for lead in slices(len(source), KEPT // 8 // (length * across)):
        for columns in slices(tail, across):
            _accumulate_piece(fold, source[lead, :, columns], target[lead, :, columns], length)


def _accumulate_piece(fold: np.ufunc, x: Array, out: Array, length: int) -> None:
    """The same along the second dimension, ``length`` elements of it at a time."""
    last: Any = None
    for along in slices(x.shape[1], length):
        with lent(x[:, along].size, np.dtype(np.float64)) as room:
            wide = room.reshape(x[:, along].shape)
            np.copyto(wide, x[:, along])
            if last is not None:
                fold(wide[:, 0], last, wide[:, 0])
            if _by_rows(wide, 1):
                _fold_rows(fold, wide.swapaxes(0, 1), wide.swapaxes(0, 1))
            else:
                fold.accumulate(wide, axis=1, out=wide)
            np.copyto(out[:, along], wide, casting="same_kind")
            last = wide[:, -1].copy() if along.stop < x.shape[1] else None


@kernel
def recurrence(b: Array, a: Array, out: Array, *, dim: int, reverse: bool = False) -> None:
    b, a, out = (np.moveaxis(_backwards(t, dim, reverse), dim, 0) for t in (b, a, out))
    if len(b) and out[0].size <= min(len(b) // 8, _BRIEF):
        for lane in np.ndindex(out.shape[1:]):
            _recur(*(t[(slice(None), *lane)] for t in (b, a[:-1] if reverse else a[1:], out)))
        return
    for i in range(len(b)):
        here = out[i, ...]
        if i:
            np.multiply(a[i - 1 if reverse else i], out[i - 1], here)
            np.add(here, b[i], here)
        else:
            here[...] = b[i]


def _recur(b: Array, a: Array, out: Array) -> None:
    """The same for vectors, where ``a`` begins with the second element's factor, in Python's numbers: a step of NumPy's takes
    as long as twenty of them."""
    out[0] = b[0]
    last = float(b[0])
    for some in slices(len(a), 256):
        made = []
        for term, factor in zip(b[1:][some].tolist(), a[some].tolist(), strict=True):
            last = term + factor * last
            made.append(last)
        out[1:][some] = made


# -- ranks -------------------------------------------------------------------------------------------------------------


@kernel
def ranked(x: Array, values: Array, indices: Array, workspace: Array, *, dim: int, start: int, length: int,
           descending: bool) -> None:
    if not x.ndim:
        values[...], indices[...] = x, 0
        return
    n = x.shape[dim]
    # Along the last dimension all lines are rows of one array.
    lines, found, places = (np.moveaxis(t, dim, -1) if dim < t.ndim - 1 else t.reshape(math.prod(t.shape[:-1]), t.shape[-1])
                            for t in (x, values, indices))
    for lead in np.ndindex(lines.shape[:-2]):
        for part in slices(lines.shape[-2], rows(n)):
            some, best, at = (t[(*lead, part)] for t in (lines, found, places))
            # Where there is little to sort, the search for what to sort takes longer.
            if n < 64 or some.size < 8192 or not 0 < length <= n // 4:
                _rank(some, best, at, start, length, descending)
            elif start + length > n // 16 or not _rank_first(some, best, at, start, length, descending):
                _rank_few(some, best, at, start, length, descending)


def _rank_first(x: Array, values: Array, indices: Array, start: int, length: int, descending: bool) -> bool:
    """Some of the first ranks of each row, among the elements up to a bound; False if these are many, or if there is NaN."""
    if x.dtype.kind == "f" and np.isnan(x).any():
        return False
    count, n = x.shape
    first, extreme = start + length, np.maximum if descending else np.minimum
    # Rows are folded. Of the columns as many as there are ranks have an element up to the bound, so a row has as many too.
    folded, width = x, n
    while width >= 16 * first:
        width //= 2
        folded = extreme(folded[:, :width], folded[:, width:2 * width], out=None if folded is x else folded[:, :width])
    last = width - first if descending else first - 1
    bound = np.partition(folded, last, axis=1)[:, last:last + 1]
    places = np.flatnonzero(x >= bound if descending else x <= bound)
    begins = np.searchsorted(places, np.arange(count + 1) * n)
    most = int(np.diff(begins).max())
    if most > 4 * first + 16:
        return False
    row, places = np.divmod(places, n)
    column = np.arange(len(row)) - begins[row]
    # Behind the elements of a row, which keep their order, none is better.
    some = np.full((count, most), bound.min() if descending else bound.max())
    at = np.zeros(some.shape, np.int64)
    some[row, column], at[row, column] = x[row, places], places
    order = np.empty(values.shape, np.int64)
    _rank(some, values, order, start, length, descending)
    indices[...] = np.take_along_axis(at, order, 1)
    return True


def _rank_few(x: Array, values: Array, indices: Array, start: int, length: int, descending: bool) -> None:
    """A few ranks of each row: only elements between the values of the first and the last of them are sorted."""
    n = x.shape[1]
    first = n - start - length if descending else start
    parted = np.partition(x, (first, first + length - 1), axis=1)
    # Copies, so that the whole can go.
    low, high = parted[:, first:first + 1].copy(), parted[:, first + length - 1:first + length].copy()
    del parted
    between = (x >= low) & (x <= high)
    # A row has more of them if elements are equal, and fewer if some are NaN.
    plain = np.count_nonzero(between, axis=1) == length
    if x.dtype.kind == "f" and np.isnan(x).any():
        plain[:] = False
    for row in np.flatnonzero(~plain):
        _rank_equal(x[row], values[row], indices[row], between[row], high[row] if descending else low[row], start, descending)
    between[~plain] = False
    if not plain.any():
        return
    places = np.flatnonzero(between).reshape(-1, length)
    places %= n
    some = np.take_along_axis(x if plain.all() else x[plain], places, 1)
    best, order = np.empty_like(some), np.empty_like(places)
    _rank(some, best, order, 0, length, descending)
    values[plain], indices[plain] = best, np.take_along_axis(places, order, 1)


def _rank_equal(x: Array, values: Array, indices: Array, between: Array, edge: Array, start: int, descending: bool) -> None:
    """A few ranks of one line, of which some elements may be equal, or NaN."""
    # With many equal elements, as of an activation that is 0, these would be copied to be sorted.
    if np.count_nonzero(between) > x.size // 2 or (x.dtype.kind == "f" and np.isnan(x).any()):
        _rank(x, values, indices, start, values.size, descending)
        return
    some = np.flatnonzero(between)
    order = np.empty(some.size, np.int64)
    _rank(x[some], np.empty(some.size, x.dtype), order, 0, some.size, descending)
    # The ranks before that of the first value are skipped.
    skipped = start - np.count_nonzero(x > edge if descending else x < edge)
    indices[...] = some[order[skipped:skipped + values.size]]
    values[...] = x[indices]


def _rank(x: Array, values: Array, indices: Array, start: int, length: int, descending: bool) -> None:
    if descending:
        # Reversed twice, so that equal elements keep their order.
        order = np.flip(np.argsort(np.flip(x, -1), axis=-1, kind="stable"), -1)[..., start:start + length]
        np.subtract(x.shape[-1] - 1, order, indices)
    else:
        indices[...] = np.argsort(x, axis=-1, kind="stable")[..., start:start + length]
    values[...] = np.take_along_axis(x, indices, -1)
