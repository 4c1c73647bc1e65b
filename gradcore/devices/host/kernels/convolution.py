"""Convolution of stride 1 on the CPU: rows of the image with their shifted copies, so that windows overlap in memory.

A row is stored once for each column of the window, [rows, kW, C, width]. The windows for one row of results are consecutive
rows, a matrix without further copies, and take a third of the memory of windows of 3x3 (Cho and Brand, MEC, ICML 2017).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gradcore.devices.host.kernel import Array, kernel
from gradcore.devices.host.kernels import columns, depthwise
from gradcore.devices.host.kernels.products import add_over
from gradcore.devices.kernels import split_workspace
from gradcore.spec import PIECE
from gradcore.tiling import COLUMNS, Pair

#: The least width of results: for narrower ones the products of single rows cost more than the general kernel's copies.
_NARROWEST = 8
#: The least number of windows of an image for weight gradients: with fewer, the products for single images are too short.
_SHORTEST = 256

def _fitting_rows(room: int, stride: Pair, dilation: Pair, groups: int, kernel: Pair, row: int, rows: int, width: int) -> int:
    """Rows of results for which ``room`` elements of workspace and a core's cache suffice; 0 if another kernel is better."""
    if stride != (1, 1) or dilation[0] != 1 or groups != 1 or kernel == (1, 1) or width < _NARROWEST:
        return 0
    return max(min(min(room, COLUMNS) // max(row, 1) - kernel[0] + 1, rows), 0)


def _fill(laid: Array, image: Array, top: int, left: int, dilation: int) -> None:
    """Copy rows from ``top`` on of ``image`` [H, C, W] to ``laid`` [rows, kW, C, width], whose edges are zeros already."""
    height, _, width = image.shape
    first, last = max(top, 0), min(top + laid.shape[0], height)
    for j in range(laid.shape[1]):
        shift = left + j * dilation
        start, stop = max(-shift, 0), min(width - shift, laid.shape[3])
        if last > first and stop > start:
            laid[first - top:last - top, j, :, start:stop] = image[first:last, :, start + shift:stop + shift]


def _correlate(x: Array, matrix: Array, bias: Array | None, out: Array, room: Array, kernel: Pair, padding: Pair,
               dilation: int, most: int) -> None:
    """Products of ``matrix`` [O, kH * kW * C] with the windows of ``x`` [N, C, H, W], ``most`` rows of ``out`` at a time."""
    channels, (rows, width) = x.shape[1], out.shape[2:]
    for start in range(0, rows, most):
        count = min(most, rows - start)
        laid = room[:(count + kernel[0] - 1) * kernel[1] * channels * width].reshape(-1, kernel[1], channels, width)
        laid.fill(0)
        windows = as_strided(laid, (count, kernel[0] * kernel[1] * channels, width), (laid.strides[0], *laid.strides[2:]))
        for image, target in zip(x, out[:, :, start:start + count], strict=True):
            _fill(laid, image.swapaxes(0, 1), start - padding[0], -padding[1], dilation)
            np.matmul(matrix, windows, out=target.swapaxes(0, 1))
            if bias is not None:
                np.add(target, bias.reshape(-1, 1, 1), target)


def _with_matrix(workspace: Array, weight: Array) -> tuple[Array, Array]:
    """Room for a matrix as large as the weight, and the rest of the workspace; empty arrays if it is too small."""
    dtype = weight.dtype
    left = max(workspace.size // dtype.itemsize - weight.size - 16 // dtype.itemsize, 0)
    matrix, room = split_workspace(workspace, (weight.size if left else 0, dtype), (left, dtype))
    return matrix, room


def _planes(result: Array, workspace: Array, size: Pair, stride: Pair, padding: Pair,
            dilation: Pair) -> depthwise.Planes | None:
    room = workspace.size // result.itemsize
    return depthwise.Planes.of(result.shape, room, size, stride, padding, dilation)


def _slow_by_products(result: Array, size: Pair, stride: Pair) -> bool:
    """Do products for single channels take long in the general kernel: those whose windows are large and overlap by far, or
    many with small planes?"""
    large = size[0] * size[1] > max(9, 4 * stride[0] * stride[1])
    small = stride == (1, 1) and result.shape[2] * result.shape[3] <= 256
    return size[0] > 1 and result.size >= PIECE and (large or small)


def _short_rows(channels: int, out: int, size: Pair, width: int) -> bool:
    """Does a product for each row of results take longer than what a product for several images takes: copies of all windows,
    and one of the results? As measured: it has so many elements more to copy for a row."""
    return width * (channels * (size[0] - 1) * size[1] + 3 * out + 40) <= 2300


@kernel
def conv2d(x: Array, weight: Array, bias: Array | None, out: Array, workspace: Array, *, stride: Pair, padding: Pair,
           dilation: Pair, groups: int) -> None:
    (o, c), size = weight.shape[:2], weight.shape[2:]
    if not x.size:
        out[...] = 0 if bias is None else bias.reshape(-1, 1, 1)
        return
    single = groups == o == x.shape[1] and _slow_by_products(out, size, stride)
    if single and (planes := _planes(out, workspace, size, stride, padding, dilation)):
        depthwise.conv2d(planes, x, weight, bias, out, workspace.view(x.dtype))
        return
    matrix, room = _with_matrix(workspace, weight)
    most = _fitting_rows(room.size, stride, dilation, groups, size, size[1] * c * out.shape[3], *out.shape[2:])
    if not most or (len(x) > 1 and _short_rows(c, o, size, out.shape[3])):
        columns.conv2d(x, weight, bias, out, workspace, stride=stride, padding=padding, dilation=dilation, groups=groups)
        return
    matrix.reshape(o, *size, c)[...] = weight.transpose(0, 2, 3, 1)
    _correlate(x, matrix.reshape(o, -1), bias, out, room, size, padding, dilation[1], most)


@kernel
def conv2d_input_grad(dy: Array, weight: Array, out: Array, workspace: Array, *, shape: tuple[int, ...], stride: Pair,
                      padding: Pair, dilation: Pair, groups: int) -> None:
    (o, c), size = weight.shape[:2], weight.shape[2:]
    if not out.size:
        return
    if groups == o == shape[1] and (planes := _planes(dy, workspace, size, stride, padding, dilation)):
        depthwise.input_grad(planes, dy, weight, out, workspace.view(dy.dtype))
        return
    matrix, room = _with_matrix(workspace, weight)
    most = _fitting_rows(room.size, stride, dilation, groups, size, size[1] * o * out.shape[3], *out.shape[2:])
    if not most:
        columns.conv2d_input_grad(dy, weight, out, workspace, shape=shape, stride=stride, padding=padding,
                                       dilation=dilation, groups=groups)
        return
    # The gradient of a correlation is the correlation with the rotated window.
    matrix.reshape(c, *size, o)[...] = weight[:, :, ::-1, ::-1].transpose(1, 2, 3, 0)
    around = size[0] - 1 - padding[0], (size[1] - 1) * dilation[1] - padding[1]
    _correlate(dy, matrix.reshape(c, -1), None, out, room, size, around, dilation[1], most)


@kernel
def conv2d_weight_grad(dy: Array, x: Array, out: Array, *sums_and_workspace: Array, shape: Any, stride: Pair,
                       padding: Pair, dilation: Pair, groups: int, bias: bool = False) -> None:
    *sums, workspace = sums_and_workspace
    for total in sums:
        add_over(dy, (0, 2, 3), total)
    (o, c), size = shape[:2], shape[2:]
    if not x.size:
        out.fill(0)
        return
    if groups == o == x.shape[1] and (planes := _planes(dy, workspace, size, stride, padding, dilation)):
        depthwise.weight_grad(planes, dy, x, out, workspace.view(x.dtype))
        return
    rows, width = dy.shape[2:]
    left = workspace.size // x.itemsize - 2 * (out.size + 16 // x.itemsize)
    most = _fitting_rows(left, stride, dilation, groups, size, size[1] * c * width, rows, width)
    if most * width < _SHORTEST:
        columns.conv2d_weight_grad(dy, x, out, workspace, shape=shape, stride=stride, padding=padding,
                                        dilation=dilation, groups=groups)
        return
    product, total, room = split_workspace(workspace, *[(out.size, x.dtype)] * 2, (left, x.dtype))
    product, total = (a.reshape(size[0], size[1] * c, o) for a in (product, total))
    total.fill(0)
    slopes = dy.reshape(len(dy), o, rows * width)
    for start in range(0, rows, most):
        count = min(most, rows - start)
        # Whole planes are contiguous here, so the dimension that a product sums over, all windows of the piece, is contiguous
        # too.
        laid = room[:(count + size[0] - 1) * size[1] * c * width].reshape(size[1], c, -1, width)
        laid.fill(0)
        windows = as_strided(laid, (size[0], size[1] * c, count * width), (*laid.strides[2:0:-1], laid.itemsize))
        for image, slope in zip(x, slopes[:, :, start * width:(start + count) * width], strict=True):
            _fill(laid.transpose(2, 0, 1, 3), image.swapaxes(0, 1), start - padding[0], -padding[1], dilation[1])
            np.matmul(windows, slope.T, out=product)
            np.add(total, product, total)
    out.transpose(2, 3, 1, 0)[...] = total.reshape(*size, c, o)
