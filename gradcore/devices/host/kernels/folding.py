"""Rows that are folded into the rows of a table at given places, in order: by np.add, say, for the gradient of an embedding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array, slices
from gradcore.devices.host.scratch import KEPT, lent

#: Positions that are made Python's integers at a time.
LISTED = 1024
#: The most elements at a position that are added one by one: NumPy takes 2 ns for each, and Python 0.5 us for a slice.
NARROW = 256
#: Two numbers as one, for which ``np.add.at`` takes as long: it adds complex numbers as so many pairs.
_PAIRS = {np.dtype(np.float32): np.dtype(np.complex64), np.dtype(np.float64): np.dtype(np.complex128)}
#: Elements whose places are computed at a time.
_PLACED = 3072
#: Rows whose places rise that are grouped at a time; the least elements of rows to be grouped, and of each row.
_GROUPED, _ENOUGH, _WIDE = 4096, 1 << 16, 32
#: Calls of NumPy take the time of so many elements that are added one by one; a row that is folded alone takes three.
_CALL, _ALONE = 3072, 3


def numbered(where: Array) -> Iterator[tuple[int, int]]:
    """The number of each position and the position, in order. A list of all at once would take 36 bytes for each."""
    flat = where.reshape(-1)
    for first in range(0, flat.size, LISTED):
        yield from enumerate(flat[first:first + LISTED].tolist(), first)


def fold_rows(by: Any, target: Array, places: Array, rows: Array) -> None:
    """Fold each of ``rows``, by np.add for example, into the row of ``target`` at its place: in order, so that sums are the
    same in every run. The arrays are contiguous, and ``places`` has one dimension."""
    width = target.shape[1]
    first = places[:LISTED]
    # Groups have room for two rows or more.
    if (not _WIDE <= width <= KEPT // rows.itemsize // 2 or rows.size < _ENOUGH or rows.dtype != target.dtype
            or target.dtype.char not in "fd" or (not (rising := bool((first[1:] >= first[:-1]).all())) and width < NARROW)):
        _fold_each(by, target, places, rows)
        return
    for part in slices(len(places), _GROUPED if rising else LISTED):
        if not _fold_groups(by, target, places[part], rows[part], rising):
            _fold_each(by, target, places[part], rows[part])


def _fold_each(by: Any, target: Array, places: Array, rows: Array) -> None:
    """One row after the other."""
    pair = _PAIRS.get(target.dtype)
    if by is np.add and pair and rows.dtype == target.dtype and target.shape[1] % 2 == 0:
        target, rows = target.view(pair), rows.view(pair)
    width = target.shape[1]
    if width >= NARROW:
        for k, place in numbered(places):
            row = target[place]
            by(row, rows[k], out=row)
    elif width == 1:
        by.at(target.reshape(-1), places, rows.reshape(-1))
    elif 0 < len(places) * width <= LISTED:
        by.at(target.reshape(-1), (places[:, None] * width + np.arange(width)).reshape(-1), rows.reshape(-1))
    elif width and len(places):
        flat, across = target.reshape(-1), _across(width)
        with lent(across.size, across.dtype) as room:
            where = room.reshape(-1, width)
            for part in slices(len(places), len(across)):
                here = where[:len(rows[part])]
                # Copied, then added to as many: NumPy makes a buffer of the result's size for each operand that it repeats.
                np.copyto(here, places[part, None] * width)
                np.add(here, across[:len(here)], here)
                by.at(flat, here.reshape(-1), rows[part].reshape(-1))


@functools.lru_cache(maxsize=16)
def _across(width: int) -> Array:
    """The numbers of a row's elements, in some rows."""
    return np.tile(np.arange(width), (_PLACED // width, 1))


def _fold_groups(by: Any, target: Array, places: Array, rows: Array, rising: bool) -> bool:
    """The first row of each place at once, then the second of each: with the same bits, since a place has its rows in order.
    False if that takes longer, as it does if a place has many of them, or where most rows would have to be sorted."""
    count, width = rows.shape
    order = None
    if not rising or (places[1:] < places[:-1]).any():
        if width < NARROW or count > LISTED:
            return False
        # NumPy sorts small integers in a few passes.
        order = np.argsort(places.astype(np.uint16) if len(target) <= 1 << 16 else places, kind="stable")
        places = places[order]
    new = places[1:] != places[:-1]
    groups = int(np.count_nonzero(new)) + 1
    if order is None and groups > LISTED:
        return False
    begins = np.concatenate([[0], np.flatnonzero(new) + 1])
    lengths = np.diff(begins, append=count)
    # The longest groups first. Of these some are folded one by one, in which the others would wait for them.
    longest = np.argsort(-lengths, kind="stable")
    begins, lengths = begins[longest], lengths[longest]
    del longest, new
    alone = int((lengths + _ALONE * np.arange(groups)).argmin())
    calls = int(lengths[alone]) + _ALONE * alone
    if _ALONE * groups < calls:
        alone, calls = groups, _ALONE * groups
    if calls * _CALL > rows.size:
        return False

    def read(at: Any, out: Array) -> None:
        if order is None and isinstance(at, slice):
            np.copyto(out, rows[at])
        else:
            np.take(rows, at if order is None else order[at], 0, out=out, mode="clip")

    with lent(KEPT // rows.itemsize // width * width, rows.dtype) as room:
        lines = room.reshape(-1, width)
        for begin, length in zip(begins[:alone].tolist(), lengths[:alone].tolist(), strict=True):
            _fold_line(by, target[places[begin]], lines, begin, length, read)
        for some in slices(groups - alone, len(lines) // 2):
            starts, left = begins[alone:][some], lengths[alone:][some].tolist()
            here, many = places[starts], len(left)
            sums, next_rows = lines[:many], lines[many:2 * many]
            np.take(target, here, 0, out=sums, mode="clip")
            for k in range(left[0]):
                while left[many - 1] <= k:
                    many -= 1
                read(starts[:many] + k, next_rows[:many])
                by(sums[:many], next_rows[:many], out=sums[:many])
            target[here] = sums
    return True


def _fold_line(by: Any, line: Array, lines: Array, begin: int, length: int, read: Callable[[slice, Array], None]) -> None:
    """Fold ``length`` rows, in the room of ``lines``, into one. NumPy folds along the first dimension row by row."""
    for some in slices(length, len(lines) - 1):
        stop = min(some.stop, length)
        part = lines[:stop - some.start + 1]
        np.copyto(part[0], line)
        read(slice(begin + some.start, begin + stop), part[1:])
        by.reduce(part, 0, out=line)
