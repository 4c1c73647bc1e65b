"""Convolution on the CPU by im2col: windows of pieces of the input are copied, and multiplied as matrices."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array
from gradcore.devices.host.kernels import planes
from gradcore.devices.kernels import split_workspace
from gradcore.tiling import Pair, is_pointwise, windows_at_once


@functools.lru_cache(maxsize=256)
def _spans(size: int, start: int, count: int, kernel: int, stride: int, padding: int,
           dilation: int) -> list[tuple[slice, slice]]:
    """Along one dimension, for each position in the window: for which of ``count`` windows from ``start`` on it is inside, and
    the elements there. Cached, since it is the same for each piece of a call, and for each call."""
    found = []
    for k in range(kernel):
        offset = k * dilation - padding
        first = min(max(start, -(offset // stride)), start + count)
        last = max(first, min((size - 1 - offset) // stride + 1, start + count))
        at = first * stride + offset
        found.append((slice(first - start, last - start),
                      slice(at, at + (last - first - 1) * stride + 1 if last > first else at, stride)))
    return found


def window_parts(image: Array, start: int, count: int, width: int, kernel: Pair, stride: Pair, padding: Pair,
                 dilation: Pair) -> Iterator[tuple[int, int, slice, slice, Any]]:
    """For each position in the window: the windows for which it is inside the image, and a view of these elements of ``image``.

    ``image`` is [.., H, W]; the windows are rows ``start`` to ``start + count`` of ``width``.
    """
    h, w = image.shape[-2:]
    columns = _spans(w, 0, width, kernel[1], stride[1], padding[1], dilation[1])
    for i, (rows, down) in enumerate(_spans(h, start, count, kernel[0], stride[0], padding[0], dilation[0])):
        for j, (here, across) in enumerate(columns):
            yield i, j, rows, here, image[..., down, across]


def _lay_out(image: Array, columns: Array, start: int, stride: Pair, padding: Pair, dilation: Pair) -> None:
    """Fill ``columns`` [.., kH, kW, rows, width] with the windows of ``image`` [.., H, W]."""
    kernel, (count, width) = columns.shape[-4:-2], columns.shape[-2:]
    for i, j, rows, cols, inside in window_parts(image, start, count, width, kernel, stride, padding, dilation):
        place = columns[..., i, j, :, :]
        # Zeros for windows that extend over the edge.
        if rows.start > 0:
            place[..., :rows.start, :] = 0
        if rows.stop < count:
            place[..., rows.stop:, :] = 0
        if cols.start > 0:
            place[..., rows, :cols.start] = 0
        if cols.stop < width:
            place[..., rows, cols.stop:] = 0
        place[..., rows, cols] = inside


def _pieces(images: int, depth: int, rows: int, width: int) -> Iterator[tuple[slice, int, int]]:
    """(images, first row of windows, rows of windows) of each piece."""
    some, count = windows_at_once(depth, images, rows, width)
    for n in range(0, images, max(some, 1)):
        for start in range(0, rows, count):
            yield slice(n, min(n + some, images)), start, min(count, rows - start)


def conv2d(x: Array, weight: Array, bias: Array | None, out: Array, workspace: Array, *, stride: Pair, padding: Pair,
           dilation: Pair, groups: int) -> None:
    pointwise = is_pointwise(weight.shape, stride, padding)
    if stride == (1, 1) and not pointwise:
        planes.conv2d(x, weight, bias, out, workspace, padding, dilation, groups)
        return
    n, _, rows, width = out.shape
    o, c, kh, kw = weight.shape
    matrix = weight.reshape(groups, o // groups, c * kh * kw)
    images = x.reshape(n, groups, c, *x.shape[2:])
    outs = out.reshape(n, groups, o // groups, rows * width)
    room = workspace.view(x.dtype)
    for part, start, count in _pieces(n, groups * c * kh * kw, rows, width):
        size = part.stop - part.start
        target = outs[part, :, :, start * width:(start + count) * width]
        if pointwise:
            columns = images.reshape(n, groups, c, -1)[part, :, :, start * width:(start + count) * width]
        else:
            shape = (size, groups, c, kh, kw, count, width)
            columns = room[:size * groups * c * kh * kw * count * width].reshape(shape)
            _lay_out(images[part], columns, start, stride, padding, dilation)
            columns = columns.reshape(size, groups, c * kh * kw, count * width)
        np.matmul(matrix, columns, out=target)
        if bias is not None:
            np.add(target, bias.reshape(groups, o // groups, 1), target)


def conv2d_input_grad(dy: Array, weight: Array, out: Array, workspace: Array, *, shape: tuple[int, ...], stride: Pair,
                      padding: Pair, dilation: Pair, groups: int) -> None:
    pointwise = is_pointwise(weight.shape, stride, padding)
    if stride == (1, 1) and not pointwise:
        planes.conv2d_input_grad(dy, weight, out, workspace, padding, dilation, groups)
        return
    n, _, rows, width = dy.shape
    o, c, kh, kw = weight.shape
    matrix = weight.reshape(groups, o // groups, c * kh * kw).swapaxes(1, 2)
    given = dy.reshape(n, groups, o // groups, rows * width)
    images = out.reshape(n, groups, c, *shape[2:])
    if pointwise:
        np.matmul(matrix, given, out=images.reshape(n, groups, c, -1))
        return
    out.fill(0)
    room = workspace.view(dy.dtype)
    for part, start, count in _pieces(n, groups * c * kh * kw, rows, width):
        size = part.stop - part.start
        columns = room[:size * groups * c * kh * kw * count * width].reshape(size, groups, c * kh * kw, count * width)
        np.matmul(matrix, given[part, :, :, start * width:(start + count) * width], out=columns)
        windowed = columns.reshape(size, groups, c, kh, kw, count, width)
        for i, j, r, w, inside in window_parts(images[part], start, count, width, (kh, kw), stride, padding, dilation):
            np.add(inside, windowed[:, :, :, i, j, r, w], inside)


def conv2d_weight_grad(dy: Array, x: Array, out: Array, workspace: Array, *, shape: tuple[int, ...], stride: Pair,
                       padding: Pair, dilation: Pair, groups: int) -> None:
    if stride == (1, 1):
        planes.conv2d_weight_grad(dy, x, out, workspace, padding, dilation, groups)
        return
    n, o, rows, width = dy.shape
    _, c, kh, kw = shape
    depth = groups * c * kh * kw
    some, most = windows_at_once(depth, n, rows, width)
    room, turned, product, total = split_workspace(
        workspace, (some * most * width * depth, x.dtype), (some * most * width * o, x.dtype),
        (out.size, x.dtype), (out.size, x.dtype))
    product = product.reshape(groups, c * kh * kw, o // groups)
    total = total.reshape(product.shape)
    total.fill(0)
    images = x.reshape(n, groups, c, *x.shape[2:])
    for part, start, count in _pieces(n, depth, rows, width):
        size = part.stop - part.start
        # Windows are the last dimension, over all images of the piece, so that one product handles all.
        columns = room[:depth * size * count * width].reshape(groups, c, kh, kw, size, count, width)
        _lay_out(images[part], columns.transpose(4, 0, 1, 2, 3, 5, 6), start, stride, padding, dilation)
        slope = turned[:o * size * count * width].reshape(o, size, count, width)
        slope[...] = dy[part, :, start:start + count].swapaxes(0, 1)
        planes.add_product(columns, slope, product, total)
    out.reshape(groups, o // groups, c * kh * kw)[...] = total.swapaxes(1, 2)
