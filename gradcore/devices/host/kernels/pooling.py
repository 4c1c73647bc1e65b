"""Pooling on the CPU: one pass for each position in the window, in pieces of whole planes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import PIECE_ROWS, Array, cut, kernel, slices
from gradcore.devices.host.kernels.columns import window_parts
from gradcore.devices.host.kernels.products import add_over
from gradcore.devices.host.scratch import KEPT, lent
from gradcore.devices.kernels import split_workspace
from gradcore.tiling import Pair, parts_of, planes_at_once


def _blocks(small: Array, *arrays: Array) -> Iterator[list[Any]]:
    """Pieces of whole planes of ``small`` [N, C, h, w] and of arrays with the same N and C."""
    flat = [a.reshape(-1, *a.shape[2:]) for a in (small, *arrays)]
    count = flat[0].shape[0]
    for some in slices(count, max(planes_at_once(count, small.shape[2] * small.shape[3]), 1)):
        yield [a[some] for a in flat]


def _counts(size: int, out: int, kernel: int, stride: int, padding: int, count_pad: bool) -> list[int]:
    """The number of elements in each window along one dimension."""
    found = []
    for k in range(out):
        start = k * stride - padding
        end = min(start + kernel, size + padding)
        found.append(end - start if count_pad else min(end, size) - max(start, 0))
    return found


def _runs(counts: list[int]) -> Iterator[tuple[slice, int]]:
    at = 0
    for value, group in groupby(counts):
        length = len(list(group))
        yield slice(at, at + length), value
        at += length


def _pieces_of(workspace: Array, small: Array, index: Array) -> tuple[Any, Any]:
    """Room for the elements of a piece at one position, in the dtype of ``small`` and in that of the index."""
    size = small.shape[2] * small.shape[3]
    room = planes_at_once(small.shape[0] * small.shape[1], size) * size
    values, numbers = split_workspace(workspace, (room, small.dtype), (room, index.dtype))
    return values, numbers


def _chosen(where: Array, position: int, values: Array, numbers: Array, target: Array) -> None:
    """``values`` where ``where`` is ``position``, else 0; by a mask of bits, since 0 times infinity would be NaN."""
    mask = numbers[:where.size].reshape(where.shape)
    np.equal(where, position, out=mask)
    np.negative(mask, mask)
    bits = f"i{values.itemsize}"
    np.bitwise_and(values.view(bits), mask.view(f"i{mask.itemsize}"), target.view(bits))


@kernel
def max_pool2d(x: Array, out: Array, index: Array, workspace: Array, *, kernel: Pair, stride: Pair, padding: Pair,
               dilation: Pair, ceil_mode: bool) -> None:
    rows, width = out.shape[2:]
    if kernel == x.shape[2:] and (rows, width, *padding, *dilation) == (1, 1, 0, 0, 1, 1):
        _whole_planes(x, out, index)
        if not np.isnan(np.sum(out)):
            return
    values, numbers = _pieces_of(workspace, out, index)
    index.fill(0)
    for o, where, xs in _blocks(out, index, x):
        parts = list(window_parts(xs, 0, rows, width, kernel, stride, padding, dilation))
        later = parts
        if any(padding):
            o.fill(-np.inf)
            # Each window starts with its first element inside the image, which may be the largest.
            for i, j, r, c, _ in reversed(parts):
                where[:, r, c] = i * kernel[1] + j
        else:
            # Each window has its first element.
            np.copyto(o, parts[0][-1])
            later = parts[1:]
        for i, j, r, c, inside in later:
            here = values[:inside.size].reshape(inside.shape)
            larger = numbers[:inside.size].reshape(inside.shape)
            here[...] = inside
            # Positions grow, so the position of the maximum is the largest of those that exceeded all before them.
            np.greater(here, o[:, r, c], out=larger)
            np.multiply(larger, i * kernel[1] + j, larger)
            np.maximum(where[:, r, c], larger, out=where[:, r, c])
            np.maximum(o[:, r, c], here, out=o[:, r, c])
        if not o.size or np.maximum.reduce(o, axis=None) == np.maximum.reduce(o, axis=None):
            continue
        # NaN is the maximum: the last NaN's position is taken.
        for i, j, r, c, inside in parts:
            larger = numbers[:inside.size].reshape(inside.shape)
            np.not_equal(inside, inside, out=larger)
            np.multiply(larger, i * kernel[1] + j, larger)
            np.maximum(where[:, r, c], larger, out=where[:, r, c])


def _whole_planes(x: Array, out: Array, index: Array) -> None:
    """The largest element of each plane, and its place."""
    planes, flat, places = x.reshape(-1, x.shape[2] * x.shape[3]), out.reshape(-1), index.reshape(-1)
    for some in slices(len(planes), PIECE_ROWS):
        found = np.argmax(planes[some], 1)
        places[some] = found
        flat[some] = np.take_along_axis(planes[some], found.reshape(-1, 1), 1)[:, 0]


@kernel
def max_pool2d_grad(dy: Array, index: Array, out: Array, workspace: Array, *, shape: Any, kernel: Pair, stride: Pair,
                    padding: Pair, dilation: Pair) -> None:
    rows, width = dy.shape[2:]
    # A dilated window in the padding may step over the whole image: then its index leads to none of its elements.
    if kernel[0] * kernel[1] > 4 and not (any(padding) and max(dilation) > 1):
        _add_at_places(dy, index, out, kernel, stride, padding, dilation)
        return
    values, numbers = _pieces_of(workspace, dy, index)
    apart = stride[0] >= (kernel[0] - 1) * dilation[0] + 1 and stride[1] >= (kernel[1] - 1) * dilation[1] + 1
    out.fill(0)
    for g, where, dx in _blocks(dy, index, out):
        for i, j, r, c, inside in window_parts(dx, 0, rows, width, kernel, stride, padding, dilation):
            here = values[:inside.size].reshape(inside.shape)
            _chosen(where[:, r, c], i * kernel[1] + j, g[:, r, c], numbers, here)
            if apart:
                inside[...] = here
            else:
                np.add(inside, here, inside)


@kernel
def max_pool2d_take(x: Array, index: Array, out: Array, workspace: Array, *, kernel: Pair, stride: Pair, padding: Pair,
                    dilation: Pair) -> None:
    rows, width = out.shape[2:]
    values, numbers = _pieces_of(workspace, out, index)
    out.fill(0)
    for o, where, xs in _blocks(out, index, x):
        for i, j, r, c, inside in window_parts(xs, 0, rows, width, kernel, stride, padding, dilation):
            here = values[:inside.size].reshape(inside.shape)
            here[...] = inside
            _chosen(where[:, r, c], i * kernel[1] + j, here, numbers, here)
            np.add(o[:, r, c], here, o[:, r, c])


def _steps(shape: Any, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, out: tuple[int, ...]) -> list[Array]:
    """What a position in the window adds to the place in the flat plane, and what rows and columns of ``out`` add."""
    width = shape[3]
    inside = np.add.outer(np.arange(kernel[0]) * (dilation[0] * width), np.arange(kernel[1]) * dilation[1]).reshape(-1)
    y, x = (np.arange(out[2 + d]) * stride[d] - padding[d] for d in (0, 1))
    return [inside, (y * width).reshape(-1, 1), x]


def _add_at_places(dy: Array, index: Array, out: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> None:
    """Add cotangents where the maxima were, some at a time: one pass for each position takes longer for more than a few."""
    out.fill(0)
    size = out.shape[2] * out.shape[3]
    inside, y, x = _steps(out.shape, kernel, stride, padding, dilation, dy.shape)
    flat, planes, where = out.reshape(-1), dy.reshape(-1, *dy.shape[2:]), index.reshape(-1, *dy.shape[2:])
    for at in cut(planes.shape, 2048):
        place = inside[where[at]]
        np.add(place, y[at[1]], place)
        np.add(place, x[at[2]], place)
        np.add(place, np.arange(at[0].start, at[0].start + len(place)).reshape(-1, 1, 1) * size, place)
        np.add.at(flat, place.reshape(-1), planes[at].reshape(-1))


@kernel
def max_pool2d_places(index: Array, out: Array, *, shape: Any, kernel: Pair, stride: Pair, padding: Pair,
                      dilation: Pair) -> None:
    inside, y, x = _steps(shape, kernel, stride, padding, dilation, out.shape)
    out[...] = index
    for plane in out.reshape(-1, *out.shape[2:]):
        plane[...] = inside[plane]
    np.add(out, y, out)
    np.add(out, x, out)


def _scale(block: Array, image: Pair, kernel: Pair, stride: Pair, padding: Pair, count_pad: bool,
           divisor: int | None) -> None:
    """Divide each element of [planes, h, w] by the size of its window."""
    down, across = (_counts(image[d], block.shape[1 + d], kernel[d], stride[d], padding[d], count_pad) for d in (0, 1))
    for r, height in _runs(down):
        for c, width in _runs(across):
            part = block[:, r, c]
            np.multiply(part, 1.0 / (divisor or height * width), part)


@kernel
def avg_pool2d(x: Array, out: Array, *, kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool, count_pad: bool,
               divisor: int | None) -> None:
    rows, width = out.shape[2:]
    for o, xs in _blocks(out, x):
        parts = window_parts(xs, 0, rows, width, kernel, stride, padding, (1, 1))
        if any(padding) or not o.size:
            o.fill(0)
        else:
            # Each window has its first element.
            np.copyto(o, next(parts)[-1])
        for _, _, r, c, inside in parts:
            np.add(o[:, r, c], inside, o[:, r, c])
        _scale(o, x.shape[2:], kernel, stride, padding, count_pad, divisor)


@kernel
def avg_pool2d_grad(dy: Array, out: Array, workspace: Array, *, shape: Any, kernel: Pair, stride: Pair, padding: Pair,
                    ceil_mode: bool, count_pad: bool, divisor: int | None) -> None:
    rows, width = dy.shape[2:]
    room = workspace.view(dy.dtype)
    apart = stride[0] >= kernel[0] and stride[1] >= kernel[1]
    out.fill(0)
    for g, dx in _blocks(dy, out):
        scaled = room[:g.size].reshape(g.shape)
        scaled[...] = g
        _scale(scaled, shape[2:], kernel, stride, padding, count_pad, divisor)
        for _, _, r, c, inside in window_parts(dx, 0, rows, width, kernel, stride, padding, (1, 1)):
            if apart:
                np.copyto(inside, scaled[:, r, c])
            else:
                np.add(inside, scaled[:, r, c], inside)


#: The most rows or columns of a cell that are added one after the other: a reduction has a cost for each of its results.
_FEW = 32


def _cells(image: Pair, size: Pair) -> list[list[Pair]]:
    """For rows and for columns: where each cell of an adaptive pooling begins and ends."""
    return [parts_of(n, count) for n, count in zip(image, size, strict=True)]


def _lengths(dtype: Any, *cells: list[Pair]) -> list[Array]:
    return [np.array([stop - start for start, stop in some], dtype) for some in cells]


def _room(planes: Array, cells: Array) -> int:
    """Elements in which a plane is folded along one dimension, and those of its cells."""
    size: int = cells.shape[-2] * (planes.shape[-1] + cells.shape[-1])
    return size


def _is_small(planes: Array, cells: Array) -> bool:
    """Are there several cells, of few rows and columns, and several planes in a piece?"""
    (h, w), (rows, columns) = planes.shape[2:], cells.shape[2:]
    return rows * columns > 1 and max(h / rows, w / columns) < _FEW and _room(planes, cells) * planes.itemsize <= KEPT // 8


def _folded(planes: Array, cells: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Pieces of planes [P, H, W] and of their cells [P, h, w], with room for [p, h, W] and for [p, h, w].

    Cells are all pairs of a range of rows and one of columns, so planes are folded along one dimension, then along the other.
    """
    each = _room(planes, cells)
    for some in slices(len(planes), KEPT // max(each * planes.itemsize, 1)):
        xs, ys = planes[some], cells[some]
        with lent(len(xs) * each, planes.dtype) as room:
            yield xs, ys, room[ys.size:].reshape(*ys.shape[:2], xs.shape[2]), room[:ys.size].reshape(ys.shape)


def _add_parts(x: Array, parts: list[Pair], out: Array) -> None:
    """The sum of each part of the first dimension."""
    for (start, stop), total in zip(parts, out, strict=True):
        np.copyto(total, x[start])
        for k in range(start + 1, stop):
            np.add(total, x[k], total)


def _add_to_parts(slopes: Array, parts: list[Pair], out: Array) -> None:
    """Add a slope to each row of its part of the first dimension."""
    for (start, stop), slope in zip(parts, slopes, strict=True):
        for k in range(start, stop):
            np.add(out[k], slope, out[k])


def _window(image: Pair, size: Pair) -> Pair | None:
    """The size of the cells if all have one, and there are more of them than positions in one."""
    (h, w), (rows, columns) = image, size
    return (h // rows, w // columns) if h * w < (rows * columns) ** 2 and not (h % rows or w % columns) else None


@kernel
def adaptive_avg_pool2d(x: Array, out: Array, *, size: Pair) -> None:
    if window := _window(x.shape[2:], size):
        avg_pool2d(x, out, kernel=window, stride=window, padding=(0, 0), ceil_mode=False, count_pad=True, divisor=None)
        return
    rows, columns = _cells(x.shape[2:], size)
    if not _is_small(x, out):
        for (i, some), (j, across) in itertools.product(enumerate(rows), enumerate(columns)):
            part, cell = x[:, :, slice(*some), slice(*across)], out[:, :, i, j]
            add_over(part, (2, 3), cell)
            np.divide(cell, part.shape[2] * part.shape[3], cell)
        return
    heights, widths = _lengths(x.dtype, rows, columns)
    for xs, ys, folded, cells in _folded(x.reshape(-1, *x.shape[2:]), out.reshape(-1, *size)):
        _add_parts(xs.transpose(1, 0, 2), rows, folded.transpose(1, 0, 2))
        _add_parts(folded.transpose(2, 0, 1), columns, cells.transpose(2, 0, 1))
        np.divide(cells, heights[:, None], cells)
        np.divide(cells, widths, ys)


@kernel
def adaptive_avg_pool2d_grad(dy: Array, out: Array, workspace: Array, *, shape: Any) -> None:
    if window := _window(shape[2:], dy.shape[2:]):
        for i, j in np.ndindex(window):
            np.multiply(dy, 1.0 / math.prod(window), out[:, :, i::window[0], j::window[1]])
        return
    rows, columns = _cells(shape[2:], dy.shape[2:])
    out.fill(0)
    if not _is_small(out, dy):
        cell = workspace.view(dy.dtype).reshape(*dy.shape[:2], 1, 1)
        for (i, some), (j, across) in itertools.product(enumerate(rows), enumerate(columns)):
            part = out[:, :, slice(*some), slice(*across)]
            np.multiply(dy[:, :, i:i + 1, j:j + 1], 1.0 / (part.shape[2] * part.shape[3]), cell)
            np.add(part, cell, part)
        return
    heights, widths = _lengths(dy.dtype, rows, columns)
    for dx, gs, folded, cells in _folded(out.reshape(-1, *shape[2:]), dy.reshape(-1, *dy.shape[2:])):
        np.divide(gs, heights[:, None], cells)
        np.divide(cells, widths, cells)
        folded.fill(0)
        _add_to_parts(cells.transpose(2, 0, 1), columns, folded.transpose(2, 0, 1))
        _add_to_parts(folded.transpose(1, 0, 2), rows, dx.transpose(1, 0, 2))
