"""Depthwise convolution on the CPU: weighted sums of runs of padded planes, which are the windows' elements at one position.

Planes are split by the stride, one for each remainder of a row and a column, and those of several images follow each other.
So what a position reads for all windows of a channel is one run of memory, whatever the stride.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradcore.devices.host.kernel import Array
from gradcore.devices.host.kernels.columns import window_parts
from gradcore.tiling import COLUMNS, Pair


@dataclass(frozen=True)
class Planes:
    """How a depthwise convolution with results [N, C, rows, width] is cut into pieces."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    #: Channels, images and rows of results of a piece.
    channels: int
    images: int
    rows: int
    #: Rows and columns of a plane beyond the results, which the last windows reach.
    beyond: Pair

    @staticmethod
    def of(result: tuple[int, ...], room: int, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Planes | None:
        """Pieces for which ``room`` elements of workspace and a core's cache suffice; None if there are none."""
        images, channels, rows, width = result
        down, across = ((kernel[d] - 1) * dilation[d] // stride[d] for d in (0, 1))
        # For results and products there is a plane each, and the results have as many zeros before them as windows reach.
        row, before = (math.prod(stride) + 2) * (width + across), down * (width + across) + across
        most = min(room - channels, COLUMNS)
        some = min((most - before) // row - down, rows)
        if some < 1:
            return None
        many = max(min((most - before) // (row * (some + down)), images), 1) if some == rows else 1
        each = max(min(most // (row * (some + down) * many + before), channels), 1)
        return Planes(kernel, stride, padding, dilation, each, many, some, (down, across))

    def pieces(self, room: Array, image: Array, result: Array) -> Iterator[_Piece]:
        images, channels, rows, _ = result.shape
        for c, n, start in itertools.product(range(0, channels, self.channels), range(0, images, self.images),
                                             range(0, rows, self.rows)):
            at = slice(n, n + self.images), slice(c, c + self.channels)
            some = result[at][:, :, start:start + self.rows]
            yield _Piece(self, room, image[at].swapaxes(0, 1), some.swapaxes(0, 1), start, at[1])

    def reading(self, d: int, remainder: int) -> list[int]:
        """Rows (``d`` 0) or columns (1) of the window that read the planes of a remainder, which are evenly spaced."""
        return [i for i in range(self.kernel[d]) if i * self.dilation[d] % self.stride[d] == remainder]


class _Piece:
    """Some channels of some images, [C, N, H, W], and rows of their results, with room for both as runs of a channel."""

    def __init__(self, planes: Planes, room: Array, image: Array, result: Array, start: int, channels: slice) -> None:
        self.planes, self.image, self.result, self.start, self.channels = planes, image, result, start, channels
        c, n, rows, width = result.shape
        self.grid = n, rows + planes.beyond[0], width + planes.beyond[1]
        #: By how much the last position of the window is behind the first, and from the first to the last window.
        self.reach = planes.beyond[0] * self.grid[2] + planes.beyond[1]
        length = math.prod(self.grid)
        self.windows = length - self.reach
        read = c * length * math.prod(planes.stride)
        #: What windows read, by remainders of row and column; and room for a run of each channel and for another one.
        self.read = room[:read].reshape(*planes.stride, c, length)
        self.one = room[read:read + c * length].reshape(c, length)
        self.rest = room[read + c * length:]

    def parts(self) -> Iterator[tuple[Array, Array]]:
        """Parts of what windows read, and the parts of the images that lie there."""
        p = self.planes
        for i, j, rows, columns, inside in window_parts(self.image, self.start, *self.grid[1:], p.stride, p.stride, p.padding,
                                                        (1, 1)):
            yield self.read[i, j].reshape(-1, *self.grid)[:, :, rows, columns], inside

    def fill(self) -> None:
        self.read.fill(0)
        for part, inside in self.parts():
            part[...] = inside

    def results(self, runs: Array) -> Array:
        """The results among the windows, which also go over the ends of rows and images."""
        rows, width = self.result.shape[2:]
        return runs.reshape(-1, *self.grid)[:, :, :rows, :width]

    def positions(self) -> Iterator[tuple[Array, int, int, list[int], int]]:
        """For each column of the window and plane: (the plane, begin of the first row's run, distance, rows, column)."""
        p = self.planes
        for up, left in np.ndindex(p.stride):
            rows = p.reading(0, up)
            starts = [i * p.dilation[0] // p.stride[0] * self.grid[2] for i in rows[:2]]
            for j in p.reading(1, left) if rows else ():
                yield (self.read[up, left], starts[0] + j * p.dilation[1] // p.stride[1], starts[-1] - starts[0], rows, j)


def _sums(runs: Array, begin: int, step: int, weights: Array, out: Array) -> None:
    """Sums, weighted by [C, rows], of runs of each channel [C, ..] that begin ``step`` after each other."""
    # In einsum's loops a run is multiplied and added at once; a ufunc takes 0.3 microseconds for each run.
    shifted: Array = np.ndarray((weights.shape[1], *out.shape), runs.dtype, runs, begin * runs.itemsize,
                                (step * runs.itemsize, *runs.strides))
    np.einsum("kct,ck->ct", shifted, weights, out=out)


def conv2d(planes: Planes, x: Array, weight: Array, bias: Array | None, out: Array, room: Array) -> None:
    for piece in planes.pieces(room, x, out):
        piece.fill()
        made, product = piece.one, piece.rest[:piece.one.size].reshape(piece.one.shape)
        made.fill(0)
        product[:, piece.windows:] = 0
        for k, (plane, begin, step, rows, j) in enumerate(piece.positions()):
            _sums(plane, begin, step, weight[piece.channels, 0, rows, j], (product if k else made)[:, :piece.windows])
            if k:
                np.add(made, product, made)
        shown = piece.results(made)
        if bias is None:
            piece.result[...] = shown
        else:
            np.add(shown, bias[piece.channels].reshape(-1, 1, 1, 1), piece.result)


def input_grad(planes: Planes, dy: Array, weight: Array, out: Array, room: Array) -> None:
    out.fill(0)
    for piece in planes.pieces(room, out, dy):
        product = piece.one
        channels, length = product.shape
        # An element was read by windows before it, of which there are none before the first.
        slopes = piece.rest[:channels * (piece.reach + length)].reshape(channels, -1)
        slopes.fill(0)
        piece.results(slopes[:, piece.reach:])[...] = piece.result
        piece.read.fill(0)
        for plane, begin, step, rows, j in piece.positions():
            _sums(slopes, piece.reach - begin, -step, weight[piece.channels, 0, rows, j], product)
            np.add(plane, product, plane)
        for part, inside in piece.parts():
            np.add(inside, part, inside)


def weight_grad(planes: Planes, dy: Array, x: Array, out: Array, room: Array) -> None:
    out.fill(0)
    for piece in planes.pieces(room, x, dy):
        piece.fill()
        slopes = piece.one
        slopes.fill(0)
        piece.results(slopes)[...] = piece.result
        total = piece.rest[:len(slopes)]
        for plane, begin, step, rows, j in piece.positions():
            for k, i in enumerate(rows):
                at = begin + k * step
                np.vecdot(plane[:, at:at + piece.windows], slopes[:, :piece.windows], out=total)
                target = out[piece.channels, 0, i, j]
                np.add(target, total, target)
