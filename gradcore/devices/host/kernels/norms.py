"""Layer, group and RMS norm on the CPU, in rows that stay in a core's cache."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array, few_rows, kernel, rows, slices
from gradcore.devices.host.kernels.products import ones
from gradcore.devices.kernels import split_workspace


@kernel
def layer_norm(x: Array, weight: Array | None, bias: Array | None, out: Array, mean: Array, rstd: Array,
               workspace: Array, *, dims: int, eps: float) -> None:
    if not x.size:
        return
    width = math.prod(x.shape[x.ndim - dims:])
    for _, y in _normalized(x.reshape(-1, width), out.reshape(-1, width), mean.reshape(-1), rstd.reshape(-1), eps):
        _scale(y, weight, bias)


def _few(count: int, width: int, groups: int) -> Iterable[slice]:
    """Pieces of rows, of which so many are one sample's: whole samples, or parts of one."""
    most = few_rows(width)
    if most >= groups:
        return slices(count, most - most % groups)
    return (slice(k + part.start, k + min(part.stop, groups)) for k in range(0, count, groups) for part in slices(groups, most))


def _normalized(xs: Array, outs: Array, means: Array | None, rstds: Array, eps: float,
                groups: int = 1) -> Iterator[tuple[int, Array]]:
    """Write rows with mean 0 and variance 1, or without ``means`` with mean square 1.

    Yields the first row and the rows of each piece while they are in cache.
    """
    count, width = xs.shape
    one = ones(width, xs.dtype)
    for part in _few(count, width, groups):
        x, r, y = xs[part], rstds[part], outs[part]
        if means is not None:
            m = means[part]
            np.matmul(x, one, out=m)
            np.multiply(m, 1 / width, m)
            np.subtract(x, m[:, None], y)
            x = y
        np.vecdot(x, x, out=r)
        np.multiply(r, 1 / width, r)
        np.add(r, eps, r)
        np.sqrt(r, r)
        np.reciprocal(r, r)
        np.multiply(x, r[:, None], y)
        yield part.start, y


@kernel
def layer_norm_apply(x: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array, out: Array, *,
                     dims: int) -> None:
    width = math.prod(x.shape[x.ndim - dims:])
    if not x.size:
        return
    xs, outs = x.reshape(-1, width), out.reshape(-1, width)
    means, rstds = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    for part in slices(len(xs), few_rows(width)):
        y = outs[part]
        _to_hat(xs[part], means[part], rstds[part], y)
        _scale(y, weight, bias)


def _to_hat(x: Array, mean: Array | None, rstd: Array, out: Array) -> None:
    """(x - mean) * rstd, or x * rstd without a mean."""
    if mean is not None:
        np.subtract(x, mean, out)
        x = out
    np.multiply(x, rstd, out)


def _scale(y: Array, weight: Array | None, bias: Array | None) -> None:
    if weight is not None:
        np.multiply(y, weight.reshape(-1), y)
    if bias is not None:
        np.add(y, bias.reshape(-1), y)


@kernel
def layer_norm_grad(dy: Array, x: Array, weight: Array | None, mean: Array, rstd: Array, dx: Array, dweight: Array,
                    dbias: Array, workspace: Array, *, dims: int, needs: Any) -> None:
    _rows_grad(dy, x, weight, mean, rstd, dx if needs[0] else None, (dweight, dbias), workspace, dims)


def _hats(dy: Array, x: Array, mean: Array | None, rstd: Array, dx: Array | None, width: int, hats: Array, room: Array,
          groups: int = 1) -> Iterator[tuple[int, Array, Array, Array, Array, Array]]:
    """By pieces of rows: the first row; the cotangent; the normalized rows, in ``hats``; the products of both, in ``room``; dx,
    or the normalized rows without it; and rstd as a column."""
    xs, dys, dxs = x.reshape(-1, width), dy.reshape(-1, width), None if dx is None else dx.reshape(-1, width)
    means, rstds = None if mean is None else mean.reshape(-1, 1), rstd.reshape(-1, 1)
    for part in _few(len(xs), width, groups):
        g = dys[part]
        hat, t = hats[:g.size].reshape(g.shape), room[:g.size].reshape(g.shape)
        _to_hat(xs[part], None if means is None else means[part], rstds[part], hat)
        np.multiply(g, hat, t)
        yield part.start, g, hat, t, hat if dxs is None else dxs[part], rstds[part]


def _rows_grad(dy: Array, x: Array, weight: Array | None, mean: Array | None, rstd: Array,
               dx: Array | None, totals: tuple[Array, ...], workspace: Array, dims: int) -> None:
    """The gradients of x and, in ``totals``, of weight and bias; without ``mean`` those of RMS norm, which has no bias."""
    width = math.prod(x.shape[x.ndim - dims:])
    length = min(x.size, rows(width) * width)
    room, hats = split_workspace(workspace, (length, x.dtype), (length, x.dtype))
    for total in totals:
        total.fill(0)
    if not x.size:
        return
    for _, g, hat, t, d, r in _hats(dy, x, mean, rstd, dx, width, hats, room):
        down = ones(len(g), x.dtype)
        # Without a bias there is one total.
        for total, terms in zip(totals, (t, g), strict=False):
            # The first row of dx is not written yet, so it can hold a row of sums. Without dx, nothing reads these rows again.
            np.matmul(down, terms, out=d[0])
            np.add(total.reshape(-1), d[0], total.reshape(-1))
        if dx is None:
            continue
        if weight is None:
            np.copyto(d, g)
        else:
            np.multiply(g, weight.reshape(-1), d)
        _to_dx(d, hat, t, r, mean is not None)


def _to_dx(d: Array, hat: Array, room: Array, rstd: Array, centered: bool = True) -> None:
    """rstd * (gw - mean(gw) - hat * mean(gw * hat)) by rows, where ``d`` holds gw = dy * weight. The others are overwritten.

    Without mean(gw) unless ``centered``.
    """
    count, width = d.shape
    mean_of = room.reshape(-1)[:count]
    np.vecdot(d, hat, out=mean_of)
    np.multiply(mean_of, 1 / width, mean_of)
    np.multiply(hat, mean_of[:, None], hat)
    if centered:
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
    for start, y in _normalized(xs, outs, mean.reshape(-1), rstd.reshape(-1), eps, groups):
        _by_channel(np.multiply, y, weight, start, groups)
        _by_channel(np.add, y, bias, start, groups)


def _by_channel(function: Any, rows: Array, numbers: Array | None, start: int, groups: int) -> None:
    """Combine rows, each a group of channels, the first of which is row ``start`` of all, with a number for each channel."""
    if numbers is not None:
        each = numbers.reshape(groups, -1, 1)[start % groups:][:len(rows)]
        parts = rows.reshape(-1, *each.shape[:2], rows.shape[1] // each.shape[1])
        function(parts, each, parts)


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
    each = channels // groups
    one = ones(width // each, x.dtype)
    for start, g, hat, t, d, r in _hats(dy, x, mean, rstd, dx if needs[0] else None, width, hats, room, groups):
        for sums, terms in ((slopes, t), (levels, g)):
            np.matmul(terms.reshape(-1, one.size), one, out=sums[start * each:(start + len(g)) * each])
        if not needs[0]:
            continue
        np.copyto(d, g)
        _by_channel(np.multiply, d, weight, start, groups)
        _to_dx(d, hat, t, r)
    for total, sums in ((dweight, slopes), (dbias, levels)):
        np.add.reduce(sums.reshape(samples, channels), axis=0, out=total)


# -- RMS norm ----------------------------------------------------------------------------------------------------------


@kernel
def rms_norm(x: Array, weight: Array | None, out: Array, rstd: Array, *, dims: int, eps: float) -> None:
    if not x.size:
        return
    width = math.prod(x.shape[x.ndim - dims:])
    for _, y in _normalized(x.reshape(-1, width), out.reshape(-1, width), None, rstd.reshape(-1), eps):
        _scale(y, weight, None)


@kernel
def rms_norm_grad(dy: Array, x: Array, weight: Array | None, rstd: Array, dx: Array, dweight: Array, workspace: Array, *,
                  dims: int, needs: Any) -> None:
    _rows_grad(dy, x, weight, None, rstd, dx if needs[0] else None, (dweight,), workspace, dims)
