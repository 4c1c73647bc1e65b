"""Layer, group and RMS norm on the CPU, in rows that stay in a core's cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradcore.devices.host_kernels import PIECE_ROWS, Array, kernel, rows
from gradcore.devices.host_products import ones
from gradcore.devices.kernels import split_workspace


def _norm_rows(width: int) -> int:
    """Rows of a piece: few enough that a temporary with a number for each need not be declared."""
    return min(rows(width), PIECE_ROWS)


@kernel
def layer_norm(x: Array, weight: Array | None, bias: Array | None, out: Array, mean: Array, rstd: Array,
               workspace: Array, *, dims: int, eps: float) -> None:
    if not x.size:
        return
    width = math.prod(x.shape[x.ndim - dims:])
    for _, y in _normalized(x.reshape(-1, width), out.reshape(-1, width), mean.reshape(-1), rstd.reshape(-1), eps):
        _scale(y, weight, bias)


def _normalized(xs: Array, outs: Array, means: Array, rstds: Array, eps: float) -> Iterator[tuple[int, Array]]:
    """Write rows with mean 0 and variance 1; yields the first row and the rows of each piece while they are in cache."""
    count, width = xs.shape
    one = ones(width, xs.dtype)
    for start in range(0, count, _norm_rows(width)):
        part = slice(start, start + _norm_rows(width))
        m, r, y = means[part], rstds[part], outs[part]
        np.matmul(xs[part], one, out=m)
        np.multiply(m, 1 / width, m)
        np.subtract(xs[part], m[:, None], y)
        np.vecdot(y, y, out=r)
        _to_rstd(r, width, eps)
        np.multiply(y, r[:, None], y)
        yield start, y


def _to_rstd(squares: Array, width: int, eps: float) -> None:
    """Sums of ``width`` squares become 1 / sqrt(mean + eps)."""
    np.multiply(squares, 1 / width, squares)
    np.add(squares, eps, squares)
    np.sqrt(squares, squares)
    np.reciprocal(squares, squares)


@kernel
def layer_norm_apply(x: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array, out: Array, *,
                     dims: int) -> None:
    width = math.prod(x.shape[x.ndim - dims:])
    if not x.size:
        return
    xs, outs = x.reshape(-1, width), out.reshape(-1, width)
    means, rstds = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    for start in range(0, len(xs), _norm_rows(width)):
        part = slice(start, start + _norm_rows(width))
        y = outs[part]
        np.subtract(xs[part], means[part], y)
        np.multiply(y, rstds[part], y)
        _scale(y, weight, bias)


def _scale(y: Array, weight: Array | None, bias: Array | None) -> None:
    if weight is not None:
        np.multiply(y, weight.reshape(-1), y)
    if bias is not None:
        np.add(y, bias.reshape(-1), y)


@kernel
def layer_norm_grad(dy: Array, x: Array, weight: Array | None, mean: Array, rstd: Array, dx: Array, dweight: Array,
                    dbias: Array, workspace: Array, *, dims: int, needs: Any) -> None:
    width = math.prod(x.shape[x.ndim - dims:])
    length = min(x.size, rows(width) * width)
    room, hats = split_workspace(workspace, (length, x.dtype), (length, x.dtype))
    dweight.fill(0)
    dbias.fill(0)
    if not x.size:
        return
    xs, dys, dxs = x.reshape(-1, width), dy.reshape(-1, width), dx.reshape(-1, width)
    means, rstds = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    for start in range(0, len(xs), _norm_rows(width)):
        part = slice(start, start + _norm_rows(width))
        g, d = dys[part], dxs[part]
        hat, t = hats[:g.size].reshape(g.shape), room[:g.size].reshape(g.shape)
        np.subtract(xs[part], means[part], hat)
        np.multiply(hat, rstds[part], hat)
        np.multiply(g, hat, t)
        # The first row of dx is not written yet, so it can hold a row of sums.
        _add_column_sums(dweight, t, d[0])
        _add_column_sums(dbias, g, d[0])
        _weighted(d, g, weight)
        _to_dx(d, hat, t, rstds[part])


def _add_column_sums(total: Array, terms: Array, room: Array) -> None:
    np.matmul(ones(len(terms), terms.dtype), terms, out=room)
    np.add(total.reshape(-1), room, total.reshape(-1))


def _weighted(d: Array, g: Array, weight: Array | None) -> None:
    if weight is None:
        np.copyto(d, g)
    else:
        np.multiply(g, weight.reshape(-1), d)


def _to_dx(d: Array, hat: Array, room: Array, rstd: Array) -> None:
    """rstd * (gw - mean(gw) - hat * mean(gw * hat)) by rows, where ``d`` holds gw = dy * weight. The others are overwritten."""
    count, width = d.shape
    mean_of = room.reshape(-1)[:count]
    np.vecdot(d, hat, out=mean_of)
    np.multiply(mean_of, 1 / width, mean_of)
    np.multiply(hat, mean_of[:, None], hat)
    np.matmul(d, ones(width, d.dtype), out=mean_of)
    np.multiply(mean_of, 1 / width, mean_of)
    np.subtract(d, mean_of[:, None], d)
    np.subtract(d, hat, d)
    np.multiply(d, rstd, d)


# -- groups of channels ------------------------------------------------------------------------------------------------


@kernel
def group_norm(x: Array, weight: Array | None, bias: Array | None, out: Array, mean: Array, rstd: Array, workspace: Array, *,
               groups: int, eps: float) -> None:
    if not x.size:
        return
    xs, outs = x.reshape(mean.size, -1), out.reshape(mean.size, -1)
    for start, y in _normalized(xs, outs, mean.reshape(-1), rstd.reshape(-1), eps):
        _by_channel(np.multiply, y, weight, start, groups)
        _by_channel(np.add, y, bias, start, groups)


def _by_channel(function: Any, rows: Array, numbers: Array | None, start: int, groups: int) -> None:
    """Combine rows, each a group of channels, the first of which is row ``start`` of all, with a number for each channel."""
    if numbers is None:
        return
    if start % groups == 0 and len(rows) % groups == 0:
        samples = rows.reshape(len(rows) // groups, numbers.size, -1)
        function(samples, numbers[:, None], samples)
        return
    each = numbers.reshape(groups, -1, 1)
    for k, row in enumerate(rows.reshape(len(rows), each.shape[1], -1)):
        function(row, each[(start + k) % groups], row)


@kernel
def group_norm_grad(dy: Array, x: Array, weight: Array | None, mean: Array, rstd: Array, dx: Array, dweight: Array,
                    dbias: Array, workspace: Array, *, groups: int, needs: Any) -> None:
    samples, channels = x.shape[:2]
    width = x.size // max(mean.size, 1)
    length = min(x.size, rows(width) * width)
    room, hats, slopes, levels = split_workspace(
        workspace, *[(n, x.dtype) for n in (length, length, samples * channels, samples * channels)])
    if not x.size:
        dweight.fill(0)
        dbias.fill(0)
        return
    xs, dys, dxs = x.reshape(-1, width), dy.reshape(-1, width), dx.reshape(-1, width)
    means, rstds = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    each = channels // groups
    one = ones(width // each, x.dtype)
    for start in range(0, len(xs), _norm_rows(width)):
        part = slice(start, start + _norm_rows(width))
        g, d = dys[part], dxs[part]
        hat, t = hats[:g.size].reshape(g.shape), room[:g.size].reshape(g.shape)
        np.subtract(xs[part], means[part], hat)
        np.multiply(hat, rstds[part], hat)
        np.multiply(g, hat, t)
        for sums, terms in ((slopes, t), (levels, g)):
            np.matmul(terms.reshape(-1, one.size), one, out=sums[start * each:(start + len(g)) * each])
        np.copyto(d, g)
        _by_channel(np.multiply, d, weight, start, groups)
        _to_dx(d, hat, t, rstds[part])
    for total, sums in ((dweight, slopes), (dbias, levels)):
        np.add.reduce(sums.reshape(samples, channels), axis=0, out=total)


# -- RMS norm ----------------------------------------------------------------------------------------------------------


@kernel
def rms_norm(x: Array, weight: Array | None, out: Array, rstd: Array, *, dims: int, eps: float) -> None:
    if not x.size:
        return
    width = math.prod(x.shape[x.ndim - dims:])
    xs, outs, rstds = x.reshape(-1, width), out.reshape(-1, width), rstd.reshape(-1)
    for start in range(0, len(xs), _norm_rows(width)):
        part = slice(start, start + _norm_rows(width))
        r, y = rstds[part], outs[part]
        np.vecdot(xs[part], xs[part], out=r)
        _to_rstd(r, width, eps)
        np.multiply(xs[part], r[:, None], y)
        _scale(y, weight, None)


@kernel
def rms_norm_grad(dy: Array, x: Array, weight: Array | None, rstd: Array, dx: Array, dweight: Array, workspace: Array, *,
                  dims: int, needs: Any) -> None:
    """dx is rstd * (gw - hat * mean(gw * hat)), with gw = dy * weight and hat = x * rstd."""
    dweight.fill(0)
    if not x.size:
        return
    width = math.prod(x.shape[x.ndim - dims:])
    length = min(x.size, rows(width) * width)
    room, hats = split_workspace(workspace, (length, x.dtype), (length, x.dtype))
    xs, dys, dxs = x.reshape(-1, width), dy.reshape(-1, width), dx.reshape(-1, width)
    rstds = rstd.reshape(-1, 1)
    for start in range(0, len(xs), _norm_rows(width)):
        part = slice(start, start + _norm_rows(width))
        g, d = dys[part], dxs[part]
        hat, t = hats[:g.size].reshape(g.shape), room[:g.size].reshape(g.shape)
        np.multiply(xs[part], rstds[part], hat)
        np.multiply(g, hat, t)
        _add_column_sums(dweight, t, d[0])
        _weighted(d, g, weight)
        mean_of = room[:len(g)]
        np.vecdot(d, hat, out=mean_of)
        np.multiply(mean_of, 1 / width, mean_of)
        np.multiply(hat, mean_of[:, None], hat)
        np.subtract(d, hat, d)
        np.multiply(d, rstds[part], d)
