"""Batch norm on the CPU, in pieces of whole samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array, kernel, slices
from gradcore.devices.host.kernels.products import column_sums
from gradcore.devices.kernels import split_workspace
from gradcore.tiling import samples_at_once


def _blocks(*arrays: Array) -> Iterator[list[Any]]:
    """Pieces [n, C, rest] of arrays [N, C, ...]."""
    shape = arrays[0].shape
    flat = [a.reshape(*shape[:2], math.prod(shape[2:])) for a in arrays]
    for some in slices(shape[0], max(samples_at_once(shape), 1)):
        yield [a[some] for a in flat]


def _add_up(piece: Array, total: Array, part: Array, one: Array, row: Array) -> None:
    """Add the sums over samples and places of a piece [n, C, rest] to ``total``, by way of ``part``."""
    rows, count = piece.shape[:2], piece.shape[0] * piece.shape[1]
    if piece.shape[2] == 1:
        sums = piece.reshape(rows)
    else:
        # A product with ones is the fastest way to add rows up.
        sums = np.matmul(piece, one, out=row[:count].reshape(rows))
    column_sums(sums, part)
    np.add(total, part, total)


def _scratch(x: Array, workspace: Array, channels: int) -> tuple[list[Any], Any, Any]:
    """Room for a piece of ``x`` and for vectors of one number for each channel; ones for a row; a number for each row."""
    count = samples_at_once(x.shape)
    size, length = x.size // x.shape[0], x.size // max(x.shape[0] * x.shape[1], 1)
    *parts, one, row = split_workspace(workspace, (count * size, x.dtype), *[(x.shape[1], x.dtype)] * channels,
                                       (length, x.dtype), (count * x.shape[1], x.dtype))
    one.fill(1)
    return parts, one, row


def _scale(rstd: Array, weight: Array | None, factor: Array) -> None:
    if weight is None:
        factor[...] = rstd
    else:
        np.multiply(rstd, weight, factor)


def _normalize(x: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array, out: Array, factor: Array,
               term: Array) -> None:
    """out = x * factor + term, in forward and with the same bits in the recomputation in backward."""
    _scale(rstd, weight, factor)
    np.multiply(mean, factor, term)
    np.negative(term, term)
    if bias is not None:
        np.add(term, bias, term)
    for xs, ys in _blocks(x, out):
        np.multiply(xs, factor.reshape(-1, 1), ys)
        np.add(ys, term.reshape(-1, 1), ys)


@kernel
def batch_norm(x: Array, weight: Array | None, bias: Array | None, running_mean: Array | None, running_var: Array | None,
               out: Array, mean: Array, rstd: Array, workspace: Array, *, momentum: float, eps: float) -> None:
    count = x.size // x.shape[1]
    (room, var, factor, term), one, row = _scratch(x, workspace, 3)
    mean.fill(0)
    for xs, in _blocks(x):
        _add_up(xs, mean, term, one, row)
    np.multiply(mean, 1.0 / count, mean)
    # Squares of deviations from the mean, since a difference of two large sums would lose small variances.
    var.fill(0)
    for xs, in _blocks(x):
        square = room[:xs.size].reshape(xs.shape)
        np.subtract(xs, mean.reshape(-1, 1), square)
        np.multiply(square, square, square)
        _add_up(square, var, term, one, row)
    np.multiply(var, 1.0 / count, var)
    np.add(var, eps, rstd)
    np.sqrt(rstd, rstd)
    np.reciprocal(rstd, rstd)
    for running, now, scale in ((running_mean, mean, momentum), (running_var, var, momentum * count / (count - 1))):
        if running is not None:
            np.multiply(running, 1 - momentum, running)
            np.multiply(now, scale, term)
            np.add(running, term, running)
    _normalize(x, weight, bias, mean, rstd, out, factor, term)


@kernel
def batch_norm_apply(x: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array, out: Array,
                     workspace: Array) -> None:
    factor, term = split_workspace(workspace, *[(x.shape[1], x.dtype)] * 2)
    _normalize(x, weight, bias, mean, rstd, out, factor, term)


@kernel
def batch_norm_grad(dy: Array, x: Array, weight: Array | None, mean: Array, rstd: Array, dx: Array, dweight: Array,
                    dbias: Array, workspace: Array, *, needs: Any) -> None:
    count = x.size // x.shape[1]
    (room, part, own, slope, term), one, row = _scratch(x, workspace, 4)
    dweight.fill(0)
    dbias.fill(0)
    for gs, xs in _blocks(dy, x):
        product = room[:xs.size].reshape(xs.shape)
        np.subtract(xs, mean.reshape(-1, 1), product)
        np.multiply(product, gs, product)
        _add_up(product, dweight, part, one, row)
        _add_up(gs, dbias, part, one, row)
    np.multiply(dweight, rstd, dweight)
    if not needs[0]:
        return
    # dx = own * dy + slope * x + term, with the means of dy and of dy * hat subtracted, hat = (x - mean) * rstd.
    _scale(rstd, weight, own)
    np.multiply(dweight, rstd, slope)
    np.multiply(slope, own, slope)
    np.multiply(slope, -1.0 / count, slope)
    np.multiply(slope, mean, term)
    np.multiply(dbias, own, part)
    np.multiply(part, 1.0 / count, part)
    np.add(term, part, term)
    np.negative(term, term)
    for gs, xs, ds in _blocks(dy, x, dx):
        product = room[:xs.size].reshape(xs.shape)
        np.multiply(gs, own.reshape(-1, 1), ds)
        np.multiply(xs, slope.reshape(-1, 1), product)
        np.add(ds, product, ds)
        np.add(ds, term.reshape(-1, 1), ds)
