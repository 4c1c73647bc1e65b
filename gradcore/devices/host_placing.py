"""Sorting, windows and writes at positions on the CPU; see ``ops.arrangement`` and ``ops.placing``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from gradcore.devices.host_indexing import LISTED, NARROW, fold_rows
from gradcore.devices.host_kernels import Array, kernel
from gradcore.devices.kernels import check_bounds, turned

#: Bytes that temporary positions and values may take, and those of one.
_ROOM, _POSITION = 48 << 10, 32


@kernel
def flip(x: Array, out: Array, *, dims: tuple[int, ...]) -> None:
    out[...] = np.flip(x, dims)


@kernel
def roll(x: Array, out: Array, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> None:
    for source, target in turned(x.shape, shifts, dims):
        out[target] = x[source]


@kernel
def windows_grad(dy: Array, out: Array, *, shape: Any, dim: int, size: int, step: int, dilation: int) -> None:
    if not out.ndim:
        # One window of one element, or of none.
        np.sum(dy, out=out)
        return
    out.fill(0)
    reach = (dy.shape[dim] - 1) * step + 1
    for k in range(size):
        first = k * dilation
        target = out[(*(slice(None),) * dim, slice(first, first + reach, step))]
        np.add(target, dy[..., k], target)


# -- positions ---------------------------------------------------------------------------------------------------------


def _pieces(x: Array, index: Array, values: Array, dim: int) -> Iterator[tuple[Any, Array]]:
    """Pieces of an index along ``dim``, in order: the places in ``x`` that they write to, and the values.

    Raises IndexError for a position outside, before the first piece.
    """
    if not index.size:
        return
    check_bounds(int(index.min()), int(index.max()), x.shape[dim], False)
    values = np.broadcast_to(values, index.shape)
    steps = [math.prod(x.shape[d + 1:]) for d in range(x.ndim)]
    *lead, length = index.shape
    across = np.arange(length) * steps[-1] if dim < index.ndim - 1 else np.zeros(1, np.int64)
    # Several lines along the last dimension, or a part of one.
    some = min(length, _ROOM // _POSITION)
    lines, count = max(_ROOM // _POSITION // some, 1), math.prod(lead)
    flat = [a.reshape(-1, length) if a.flags.c_contiguous else None for a in (index, values)]
    for block in range(0, count, LISTED):
        size = min(LISTED, count - block)
        at = np.unravel_index(np.arange(block, block + size), lead) if lead else ()
        before = sum((c * step for d, (c, step) in enumerate(zip(at, steps, strict=False)) if d != dim), np.zeros(1, np.int64))
        for first in range(0, size, lines):
            here = slice(first, min(first + lines, size))
            # Arrays that are not contiguous are copied, by line.
            numbers, given = (a[tuple(c[here] for c in at)].reshape(-1, length) if f is None else f[block:][here]
                              for f, a in zip(flat, (index, values), strict=True))
            for start in range(0, length, some):
                part = slice(start, start + some)
                places = np.multiply(numbers[:, part], steps[dim], dtype=np.int64)
                places += before[here, None] if len(before) > 1 else before
                if dim < index.ndim - 1:
                    places += across[part]
                yield places, given[:, part]


def _spots(places: Array, x: Array) -> Any:
    return np.unravel_index(places, x.shape)


@kernel
def put_along_(x: Array, index: Array, values: Array, workspace: Any = None, *, dim: int) -> None:
    for places, given in _pieces(x, index, values, dim):
        if x.flags.c_contiguous:
            x.reshape(-1)[places.reshape(-1)] = given.reshape(-1)
        else:
            x[_spots(places, x)] = given


def _whole_rows(x: Array, index: Array, values: Array) -> bool:
    """Is ``index`` expanded from a number for each row, and ``values`` rows of the length of those of ``x``?"""
    return (index.ndim > 1 and not any(step for step, n in zip(index.strides[1:], index.shape[1:], strict=True) if n > 1)
            and x.shape[1:] == index.shape[1:] and values.shape == index.shape and values.dtype == x.dtype
            and values.flags.c_contiguous and x.flags.c_contiguous)


def _fold_along(by: Any, x: Array, index: Array, values: Array, dim: int) -> None:
    if dim == 0 and index.size and _whole_rows(x, index, values):
        numbers = index.reshape(len(index), -1)[:, 0]
        check_bounds(int(numbers.min()), int(numbers.max()), len(x), False)
        for k in range(0, len(index), LISTED):
            places = numbers[k:k + LISTED].astype(np.int64)
            fold_rows(by, x.reshape(len(x), -1), places, values[k:k + LISTED].reshape(len(places), -1))
        return
    for places, given in _pieces(x, index, values, dim):
        if x.flags.c_contiguous:
            # NumPy is faster with one index than with several, and with one dimension.
            by.at(x.reshape(-1), places.reshape(-1), given.reshape(-1))
        else:
            by.at(x, _spots(places, x), given)


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
    pieces = (np.remainder(index.flat[k:k + LISTED], length, dtype=np.int64) for k in range(0, index.size, LISTED))
    lead, tail = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1:])
    if lead * tail <= NARROW and values.shape == shape and values.flags.c_contiguous and x.flags.c_contiguous:
        target, given = x.reshape(lead, length, tail), values.reshape(lead, index.size, tail)
        for k, places in enumerate(pieces):
            for part, rows in zip(target, given[:, k * LISTED:(k + 1) * LISTED], strict=True):
                fold_rows(np.add, part, places, rows)
        return
    before = (slice(None),) * dim
    source = np.broadcast_to(values, shape)
    # One position at a time, in order: positions may repeat, and a fixed order keeps sums the same from run to run.
    for spot, place in zip(np.ndindex(index.shape), chain.from_iterable(map(np.ndarray.tolist, pieces)), strict=True):
        part = x[(*before, place, ...)]
        np.add(part, source[(*before, *spot, ...)], part)
