"""Reads and writes at positions, on the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradcore.devices.host_kernels import Array, kernel
from gradcore.devices.kernels import check_bounds, split_workspace

#: Positions that are made Python's integers at a time.
LISTED = 1024
#: The most elements at a position that are added one by one: NumPy takes 5 ns for each, and Python 1 us for a slice.
NARROW = 128
#: Elements whose places are computed at a time.
_PLACED = 3072


def positions(index: Array, length: int, workspace: Array, wrap: bool = False) -> Array:
    """Positions counted from the front; with ``wrap`` negative ones count from the end. Raises IndexError for one outside."""
    found: Array = split_workspace(workspace, (index.size, np.dtype(np.int64)))[0].reshape(index.shape)
    if index.size:
        low, high = int(index.min()), int(index.max())
        check_bounds(low, high, length, wrap)
        if low < 0:
            np.remainder(index, length, found)
        else:
            found[...] = index
    return found


def _numbered(where: Array) -> Iterator[tuple[int, int]]:
    """The number of each position and the position, in order. A list of all at once would take 36 bytes for each."""
    flat = where.reshape(-1)
    for first in range(0, flat.size, LISTED):
        yield from enumerate(flat[first:first + LISTED].tolist(), first)


def fold_rows(by: Any, target: Array, places: Array, rows: Array) -> None:
    """Fold each of ``rows``, by np.add for example, into the row of ``target`` at its place: in order, so that sums are the
    same in every run. The arrays are contiguous, and ``places`` has one dimension."""
    width = target.shape[1]
    if width > NARROW:
        for k, place in _numbered(places):
            row = target[place]
            by(row, rows[k], out=row)
    elif width:
        flat, across, some = target.reshape(-1), np.arange(width), _PLACED // width
        for first in range(0, len(places), some):
            at = places[first:first + some, None] * width + across
            by.at(flat, at.reshape(-1), rows[first:first + some].reshape(-1))


@kernel
def take(x: Array, index: Array, out: Array, workspace: Array, *, dim: int, wrap: bool = True) -> None:
    np.take(x, positions(index, x.shape[dim], workspace, wrap), axis=dim, out=out, mode="clip")


@kernel
def take_grad(dy: Array, index: Array, out: Array, workspace: Array, *, shape: Any, dim: int) -> None:
    out.fill(0)
    where = positions(index, shape[dim], workspace, wrap=True)
    lead = math.prod(shape[:dim])
    tail = math.prod(shape[dim + 1:])
    source = dy.reshape(lead, index.size, tail)
    target = out.reshape(lead, shape[dim], tail)
    if lead * tail <= NARROW:
        for part, rows in zip(target, source, strict=True):
            fold_rows(np.add, part, where.reshape(-1), rows)
        return
    # One position at a time: positions may repeat, and a fixed order keeps sums the same from run to run.
    for k, position in _numbered(where):
        target[:, position] += source[:, k]


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
        flat = out.reshape(index.size, weight.shape[1])
        for k, place in _numbered(positions(index, weight.shape[0], workspace)):
            if place == padding:
                flat[k] = 0


@kernel
def put_(x: Array, index: Array, values: Array, workspace: Array, *, dim: int, wrap: bool = True) -> None:
    where = positions(index, x.shape[dim], workspace, wrap)
    source = np.broadcast_to(values, (*x.shape[:dim], *index.shape, *x.shape[dim + 1:]))
    first = range(index.ndim)
    # In order: of repeated positions the last wins.
    np.moveaxis(x, dim, 0)[where] = np.moveaxis(source, [dim + d for d in first], first)


def _along(index: Array, shape: Any, dim: int, workspace: Array, wrap: bool) -> Array:
    """Flat positions in an array of ``shape`` that ``take_along`` reads."""
    flat = positions(index, shape[dim], workspace, wrap)
    if not index.size:
        return flat  # an empty dimension has a stride of 0, which np.arange refuses
    strides = np.cumprod([1, *shape[:0:-1]])[::-1].tolist()
    np.multiply(flat, strides[dim], flat)
    for d, n in enumerate(index.shape):
        if d != dim:
            for start in range(0, n, 512):
                part = np.moveaxis(flat, d, -1)[..., start:start + 512]
                np.add(part, np.arange(start * strides[d], (start + part.shape[-1]) * strides[d], strides[d]), part)
    return flat


@kernel
def take_along(x: Array, index: Array, out: Array, workspace: Array, *, dim: int, wrap: bool = True) -> None:
    np.take(x.reshape(-1), _along(index, x.shape, dim, workspace, wrap), out=out, mode="clip")


@kernel
def take_along_grad(dy: Array, index: Array, out: Array, workspace: Array, *, shape: Any, dim: int) -> None:
    out.fill(0)
    target, order = out.reshape(-1), _along(index, shape, dim, workspace, wrap=True).reshape(-1)
    for start in range(0, order.size, 1024):
        np.add.at(target, order[start:start + 1024], dy.reshape(-1)[start:start + 1024])
