"""Convolution of stride 1 on the CPU over padded planes, in which each window position of some rows is contiguous."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array
from gradcore.devices.kernels import split_workspace
from gradcore.tiling import Pair, WidePieces, plane


class _Piece:
    """A piece of work: rows of windows of some images, and the rows of the image that these read."""

    def __init__(self, images: slice, start: int, rows: int, weight: tuple[int, ...], height: int, padding: Pair,
                 dilation: Pair) -> None:
        self.images = images
        self.size = images.stop - images.start
        self.windows = slice(start, start + rows)
        self.rows = rows
        self.reach = rows + dilation[0] * (weight[2] - 1)
        top = start - padding[0]
        self.inside = slice(min(max(top, 0), height), max(min(top + self.reach, height), 0))
        self.there = slice(self.inside.start - top, self.inside.stop - top)


def _pieces(wide: WidePieces, x: tuple[int, ...], weight: tuple[int, ...], rows: int, padding: Pair,
            dilation: Pair) -> Iterator[_Piece]:
    for n in range(0, x[0], max(wide.images, 1)):
        for start in range(0, rows, wide.rows):
            yield _Piece(slice(n, min(n + wide.images, x[0])), start, min(wide.rows, rows - start), weight, x[2], padding,
                         dilation)


def _planes(room: Array, piece: _Piece, channels: int, weight: tuple[int, ...], wide: WidePieces,
            dilation: Pair) -> tuple[Any, Any]:
    """Room for padded planes, set to zeros, and a view of it by rows."""
    length = plane(piece.rows, wide.width, weight, dilation)
    made = room[:piece.size * channels * length].reshape(piece.size, channels, length)
    made.fill(0)
    return made, made[..., :piece.reach * wide.width].reshape(piece.size, channels, piece.reach, wide.width)


def _windows_of(padded: Array, piece: _Piece, weight: tuple[int, ...], wide: WidePieces, dilation: Pair) -> Any:
    """All windows [images, channels, kH, kW, windows] as a view: each position is the same range of memory, shifted."""
    image, channel, one = padded.strides
    return np.lib.stride_tricks.as_strided(
        padded, (*padded.shape[:2], *weight[2:], piece.rows * wide.width),
        (image, channel, dilation[0] * wide.width * one, dilation[1] * one, one))


def _rooms(workspace: Array, dtype: Any, x: tuple[int, ...], weight: tuple[int, ...], wide: WidePieces,
           more: int = 0) -> list[Any]:
    """Room for padded planes, for copied windows and for a plane for each output channel; and for two products if needed."""
    windows = wide.rows * wide.width
    return split_workspace(workspace, (wide.images * x[1] * wide.plane, dtype),
                           (wide.images * x[1] * weight[2] * weight[3] * windows, dtype),
                           (wide.images * weight[0] * windows, dtype), *[(more, dtype)] * (2 if more else 0))


def _padded_input(room: Array, x: Array, piece: _Piece, weight: tuple[int, ...], wide: WidePieces, padding: Pair,
                  dilation: Pair) -> Any:
    padded, grid = _planes(room, piece, x.shape[1], weight, wide, dilation)
    grid[:, :, piece.there, padding[1]:padding[1] + x.shape[3]] = x[piece.images, :, piece.inside]
    return padded


def conv2d(x: Array, weight: Array, bias: Array | None, out: Array, workspace: Array, padding: Pair, dilation: Pair,
           groups: int) -> None:
    o, c, kh, kw = weight.shape
    wide = WidePieces.of(x.shape, weight.shape, padding, dilation, out.shape[2])
    room, laid, products = _rooms(workspace, x.dtype, x.shape, weight.shape, wide)
    matrix = weight.reshape(groups, o // groups, c * kh * kw)
    for piece in _pieces(wide, x.shape, weight.shape, out.shape[2], padding, dilation):
        padded = _padded_input(room, x, piece, weight.shape, wide, padding, dilation)
        windows = _windows_of(padded, piece, weight.shape, wide, dilation)
        columns = laid[:windows.size].reshape(windows.shape)
        columns[...] = windows
        count = piece.rows * wide.width
        made = products[:piece.size * o * count].reshape(piece.size, groups, o // groups, count)
        np.matmul(matrix, columns.reshape(piece.size, groups, c * kh * kw, count), out=made)
        shown = made.reshape(piece.size, o, piece.rows, wide.width)[..., :out.shape[3]]
        target = out[piece.images, :, piece.windows]
        if bias is None:
            target[...] = shown
        else:
            np.add(shown, bias.reshape(-1, 1, 1), target)


def _padded_slopes(dy: Array, room: Array, piece: _Piece, wide: WidePieces, turned: bool) -> Any:
    """The cotangent of a piece, 0 for windows over row ends, which have no result: [images, O, ..] or [O, images, ..]."""
    given = dy[piece.images, :, piece.windows]
    if turned:
        given = given.swapaxes(0, 1)
    made = room[:given.shape[0] * given.shape[1] * piece.rows * wide.width].reshape(*given.shape[:3], wide.width)
    made[..., :given.shape[3]] = given
    made[..., given.shape[3]:] = 0
    return made


def conv2d_input_grad(dy: Array, weight: Array, out: Array, workspace: Array, padding: Pair, dilation: Pair,
                      groups: int) -> None:
    o, c, kh, kw = weight.shape
    wide = WidePieces.of(out.shape, weight.shape, padding, dilation, dy.shape[2])
    room, laid, products = _rooms(workspace, dy.dtype, out.shape, weight.shape, wide)
    matrix = weight.reshape(groups, o // groups, c * kh * kw).swapaxes(1, 2)
    out.fill(0)
    for piece in _pieces(wide, out.shape, weight.shape, dy.shape[2], padding, dilation):
        count = piece.rows * wide.width
        slopes = _padded_slopes(dy, products, piece, wide, False).reshape(piece.size, groups, o // groups, count)
        columns = laid[:piece.size * groups * c * kh * kw * count].reshape(piece.size, groups, c * kh * kw, count)
        np.matmul(matrix, slopes, out=columns)
        parts = columns.reshape(piece.size, groups * c, kh, kw, count)
        padded, grid = _planes(room, piece, groups * c, weight.shape, wide, dilation)
        for i in range(kh):
            for j in range(kw):
                at = i * dilation[0] * wide.width + j * dilation[1]
                np.add(padded[..., at:at + count], parts[:, :, i, j], padded[..., at:at + count])
        target = out[piece.images, :, piece.inside]
        np.add(target, grid[:, :, piece.there, padding[1]:padding[1] + out.shape[3]], target)


def add_product(windows: Array, slopes: Array, product: Array, total: Array) -> None:
    """Add the products of windows and slopes over all windows to ``total`` [groups, C * kH * kW, O / groups], by way of
    ``product``. BLAS is faster with the longer side first."""
    groups, depth, each = total.shape
    np.matmul(windows.reshape(groups, depth, -1), slopes.reshape(groups, each, -1).swapaxes(1, 2), out=product)
    np.add(total, product, total)


def conv2d_weight_grad(dy: Array, x: Array, out: Array, workspace: Array, padding: Pair, dilation: Pair, groups: int) -> None:
    o, c, kh, kw = out.shape
    wide = WidePieces.of(x.shape, out.shape, padding, dilation, dy.shape[2])
    room, laid, turned, product, total = _rooms(workspace, x.dtype, x.shape, out.shape, wide, out.size)
    product = product.reshape(groups, c * kh * kw, o // groups)
    total = total.reshape(product.shape)
    total.fill(0)
    for piece in _pieces(wide, x.shape, out.shape, dy.shape[2], padding, dilation):
        padded = _padded_input(room, x, piece, out.shape, wide, padding, dilation)
        # Windows are the last dimension, over all images of the piece, so that one product handles all.
        windows = _windows_of(padded, piece, out.shape, wide, dilation).transpose(1, 2, 3, 0, 4)
        columns = laid[:windows.size].reshape(windows.shape)
        columns[...] = windows
        slopes = _padded_slopes(dy, turned, piece, wide, True)
        add_product(columns, slopes, product, total)
    out.reshape(groups, o // groups, c * kh * kw)[...] = total.swapaxes(1, 2)
