"""Reads and writes at positions, on the CPU; see ``ops.movement`` and ``ops.placing``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array, cut, kernel, slices
from gradcore.devices.host.kernels.folding import LISTED, NARROW, fold_rows, numbered
from gradcore.devices.host.pointwise import is_repeated
from gradcore.devices.host.scratch import lent
from gradcore.devices.kernels import check_bounds, split_workspace
from gradcore.spec import PIECE, contiguous_strides

#: Bytes from line to line from which on a few elements of each are not added at a position at a time: that is slow for a cache.
FAR = 2048
#: Lines more than which, and elements to be copied for which, a look for runs of positions pays off.
LINES, COPIED = 16, 4096
#: Positions, with a value each, that are written to at a time: temporaries of 32 bytes each.
_WRITTEN = 1536
#: The same for arrays that need not be copied: with a temporary of 8 bytes each.
_WRITTEN_AT_ONCE = 6144


def _counted(index: Array, length: int) -> bool:
    """Are all positions inside and counted from the front? False also for large ones of a dtype without a sign."""
    # As such, negative numbers are large ones.
    return int(index.view(f"u{index.itemsize}").max()) < min(length, 1 << 8 * index.itemsize - 1)


def positions(index: Array, length: int, workspace: Array, wrap: bool = False, copied: bool = False) -> Array:
    """Positions counted from the front, perhaps the index itself unless they are to be ``copied``; with ``wrap`` negative ones
    count from the end. Raises IndexError for one outside."""
    found: Array = split_workspace(workspace, (index.size, np.dtype(np.int64)))[0].reshape(index.shape)
    if not index.size:
        return found
    if _counted(index, length):
        if index.dtype == found.dtype and not copied:
            return index
        found[...] = index
        return found
    low = int(index.min())
    check_bounds(low, int(index.max()), length, wrap)
    np.remainder(index, length, found, dtype=found.dtype)
    return found


def _runs(where: Array) -> list[tuple[slice, slice]]:
    """The runs of consecutive positions, as slices of the index and of what it reads; none if they are many."""
    flat, starts = where.reshape(-1), [0]
    most = min(flat.size, LISTED) // 4
    if not most:
        return []
    for at in range(1, flat.size, LISTED):
        some = slice(at, min(at + LISTED, flat.size))
        starts += (np.flatnonzero(flat[some] - flat[at - 1:some.stop - 1] != 1) + at).tolist()
        if len(starts) > most:
            return []
    ends = zip(starts, (*starts[1:], flat.size), strict=True)
    return [(slice(a, b), slice(int(flat[a]), int(flat[a]) + b - a)) for a, b in ends]


@kernel
def take(x: Array, index: Array, out: Array, workspace: Array, *, dim: int, wrap: bool = True) -> None:
    where = positions(index, x.shape[dim], workspace, wrap)
    lead, tail = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1:])
    # NumPy copies the elements at each position in a call of its own. Runs of positions, as in padding, are copied at once.
    if lead > LINES and lead * where.size >= COPIED and (runs := _runs(where)):
        source, target = x.reshape(lead, x.shape[dim], tail), out.reshape(lead, index.size, tail)
        for here, there in runs:
            target[:, here] = source[:, there]
    else:
        np.take(x, where, axis=dim, out=out, mode="clip")


@kernel
def take_grad(dy: Array, index: Array, out: Array, workspace: Array, *, shape: Any, dim: int) -> None:
    out.fill(0)
    where = positions(index, shape[dim], workspace, wrap=True)
    lead = math.prod(shape[:dim])
    tail = math.prod(shape[dim + 1:])
    source = dy.reshape(lead, index.size, tail)
    target = out.reshape(lead, shape[dim], tail)
    # A line takes as long as a few positions.
    if lead * tail <= NARROW and 8 * lead <= max(where.size, 8):
        for part, rows in zip(target, source, strict=True):
            fold_rows(np.add, part, where.reshape(-1), rows)
        return
    if runs := _runs(where):
        for here, there in runs:
            part = target[:, there]
            np.add(part, source[:, here], part)
        return
    if _distinct(where, shape[dim]):
        target[:, where.reshape(-1)] = source
        return
    if tail <= 4 and target[0].nbytes >= FAR:
        _fold_lines(target.reshape(-1, tail), where.reshape(-1), source.reshape(-1, tail), shape[dim])
        return
    # One position at a time: positions may repeat, and a fixed order keeps sums the same from run to run.
    for k, position in numbered(where):
        target[:, position] += source[:, k]


def _fold_lines(target: Array, where: Array, rows: Array, length: int) -> None:
    """Add rows at the same positions of each of several lines, each of so many rows."""
    step = max(LISTED * (2 if target.shape[1] == 1 else 1) // max(where.size, 1), 1)
    for some in slices(len(target) // length, step):
        lines = np.arange(some.start, min(some.stop, len(target) // length)) * length
        part = rows[some.start * where.size:some.stop * where.size]
        if len(lines) == 1:
            fold_rows(np.add, target[some.start * length:some.stop * length], where, part)
        else:
            fold_rows(np.add, target, (lines[:, None] + where).reshape(-1), part)


def _distinct(where: Array, length: int) -> bool:
    """Is no position there twice? False also where it takes too much memory to find out."""
    return where.size <= length <= 2 * LISTED and int(np.bincount(where.reshape(-1), minlength=length).max(initial=0)) <= 1


@kernel
def embedding(weight: Array, index: Array, out: Array, workspace: Array, *, padding: int | None) -> None:
    take(weight, index, out, workspace, dim=0, wrap=False)


@kernel
def embedding_grad(dy: Array, index: Array, out: Array, workspace: Array, *, shape: Any, padding: int | None) -> None:
    out.fill(0)
    fold_rows(np.add, out, positions(index, shape[0], workspace).reshape(-1), dy.reshape(index.size, shape[1]))
    if padding is not None:
        out[padding] = 0


@kernel
def embedding_unpadded(weight: Array, index: Array, out: Array, workspace: Array, *, padding: int | None) -> None:
    take(weight, index, out, workspace, dim=0, wrap=False)
    if padding is not None:
        flat, places = out.reshape(index.size, weight.shape[1]), positions(index, weight.shape[0], workspace).reshape(-1)
        for some in slices(index.size, LISTED):
            flat[some][places[some] == padding] = 0


def _pieces(shape: Any, index: Array, dim: int, most: int, wrap: bool = False) -> Iterator[tuple[Array, tuple[slice, ...]]]:
    """Pieces of an index along ``dim``, in order: flat positions in an array of ``shape``, and the part of the index with them.

    Raises IndexError for a position outside, before the first piece.
    """
    if not index.size:
        return
    low = 0
    if not _counted(index, shape[dim]):
        low = int(index.min())
        check_bounds(low, int(index.max()), shape[dim], wrap)
    steps = contiguous_strides(shape)
    with lent(min(most, index.size), np.dtype(np.int64)) as room:
        for at in cut(index.shape, most):
            numbers = index[at]
            places = room[:numbers.size].reshape(numbers.shape)
            if low < 0:
                numbers = np.remainder(numbers, shape[dim], places, dtype=np.int64)
            np.multiply(numbers, steps[dim], places, dtype=np.int64)
            for d, part in enumerate(at):
                if d != dim and index.shape[d] > 1:
                    start, stop, _ = part.indices(index.shape[d])
                    for some in slices(stop - start, 4 * LISTED):
                        lines = places[(*(slice(None),) * d, some)]
                        first, last = ((start + n) * steps[d] for n in (some.start, min(some.stop, stop - start)))
                        # They have no name, under which they would stay while the next are made.
                        np.add(lines, np.arange(first, last, steps[d]).reshape(-1, *[1] * (index.ndim - 1 - d)), lines)
            yield places, at


@kernel
def take_along(x: Array, index: Array, out: Array, *, dim: int, wrap: bool = True) -> None:
    for places, at in _pieces(x.shape, index, dim, 2 * PIECE, wrap):
        np.take(x.reshape(-1), places, out=out[at], mode="clip")


@kernel
def take_along_grad(dy: Array, index: Array, out: Array, workspace: Any = None, *, shape: Any, dim: int) -> None:
    out.fill(0)
    for places, at in _pieces(shape, index, dim, PIECE, wrap=True):
        np.add.at(out.reshape(-1), places.reshape(-1), dy[at].reshape(-1))


# -- writes ------------------------------------------------------------------------------------------------------------


@kernel
def put_(x: Array, index: Array, values: Array, workspace: Array, *, dim: int, wrap: bool = True) -> None:
    where = positions(index, x.shape[dim], workspace, wrap, copied=True)
    source = np.broadcast_to(values, (*x.shape[:dim], *index.shape, *x.shape[dim + 1:]))
    first = range(index.ndim)
    # In order: of repeated positions the last wins.
    np.moveaxis(x, dim, 0)[where] = np.moveaxis(source, [dim + d for d in first], first)


def _at_once(*arrays: Array) -> int:
    """How many positions are written at once: parts of arrays that are not contiguous are copied."""
    return _WRITTEN_AT_ONCE if all(a.flags.c_contiguous or is_repeated(a) for a in arrays) else _WRITTEN


def _write_along(write: Callable[..., None], x: Array, index: Array, values: Array, dim: int) -> None:
    """Call ``write`` with an array, positions in it and values, in order: all of those along ``dim``, some at a time."""
    values = np.broadcast_to(values, index.shape)
    for places, at in _pieces(x.shape, index, dim, _at_once(index, values)):
        given = values[at]
        if x.flags.c_contiguous:
            # NumPy is faster with one index than with several, and with one dimension.
            write(x.reshape(-1), places.reshape(-1), given.reshape(-1))
        else:
            write(x, np.unravel_index(places, x.shape), given)


@kernel
def put_along_(x: Array, index: Array, values: Array, workspace: Any = None, *, dim: int) -> None:
    _write_along(operator.setitem, x, index, values, dim)


def _whole_rows(x: Array, index: Array, values: Array) -> bool:
    """Is ``index`` expanded from a number for each row, and ``values`` rows of the length of those of ``x``?"""
    return (index.ndim > 1 and is_repeated(index[0]) and x.shape[1:] == index.shape[1:] and values.shape == index.shape
            and values.dtype == x.dtype and values.flags.c_contiguous and x.flags.c_contiguous)


def _fold_along(by: Any, x: Array, index: Array, values: Array, dim: int) -> None:
    if dim == 0 and index.size and _whole_rows(x, index, values):
        numbers = index.reshape(len(index), -1)[:, 0]
        check_bounds(int(numbers.min()), int(numbers.max()), len(x), False)
        for part in slices(len(index), LISTED):
            places = numbers[part].astype(np.int64)
            fold_rows(by, x.reshape(len(x), -1), places, values[part].reshape(len(places), -1))
    else:
        _write_along(by.at, x, index, values, dim)


@kernel
def add_along_(x: Array, index: Array, values: Array, workspace: Any = None, *, dim: int) -> None:
    _fold_along(np.add, x, index, values, dim)


@kernel
def extreme_along_(x: Array, index: Array, values: Array, *, dim: int, largest: bool) -> None:
    _fold_along(np.maximum if largest else np.minimum, x, index, values, dim)


@kernel
def add_at_(x: Array, index: Array, values: Array, workspace: Any = None, *, dim: int, wrap: bool = True) -> None:
    if not index.size:
        return
    length, shape = x.shape[dim], (*x.shape[:dim], *index.shape, *x.shape[dim + 1:])
    check_bounds(int(index.min()), int(index.max()), length, wrap)
    flat = index.reshape(-1) if index.flags.c_contiguous else index.flat
    found = (np.remainder(flat[part], length, dtype=np.int64) for part in slices(index.size, LISTED))
    lead, tail = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1:])
    if (lead == 1 or lead * tail <= NARROW) and values.shape == shape and values.flags.c_contiguous and x.flags.c_contiguous:
        target, given = x.reshape(lead, length, tail), values.reshape(lead, index.size, tail)
        for k, places in enumerate(found):
            for part, rows in zip(target, given[:, k * LISTED:(k + 1) * LISTED], strict=True):
                fold_rows(np.add, part, places, rows)
        return
    before = (slice(None),) * dim
    source = np.broadcast_to(values, shape)
    # One position at a time, in order: positions may repeat, and a fixed order keeps sums the same from run to run.
    for spot, place in zip(np.ndindex(index.shape), chain.from_iterable(map(np.ndarray.tolist, found)), strict=True):
        part = x[(*before, place, ...)]
        np.add(part, source[(*before, *spot, ...)], part)
