"""Batch norm kernels over ``xp``, by pieces of whole samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from gradcore.devices.kernels import split_workspace
from gradcore.tiling import samples_at_once

#: Rows of at least so many elements are added up by a matrix product.
_LONG = 32


def _blocks(*arrays: Any) -> Iterator[list[Any]]:
    """Pieces [n, C, rest] of arrays [N, C, ...]."""
    shape = arrays[0].shape
    flat = [a.reshape(*shape[:2], math.prod(shape[2:])) for a in arrays]
    step = samples_at_once(shape)
    for start in range(0, shape[0], max(step, 1)):
        yield [a[start:start + step] for a in flat]


def build_batch_norm(xp: Any) -> dict[str, Callable[..., Any]]:
    """The kernels over one array library."""

    def add_up(piece: Any, total: Any, part: Any, one: Any, row: Any) -> None:
        """Add the sums over samples and places of a piece [n, C, rest] to ``total``, by way of ``part``."""
        if piece.shape[2] < _LONG:
            xp.sum(piece, axis=(0, 2), out=part)
        else:
            # A product with ones is the fastest way to add rows up.
            sums = row[:piece.shape[0] * piece.shape[1]].reshape(piece.shape[:2])
            xp.matmul(piece, one, out=sums)
            xp.sum(sums, axis=0, out=part)
        xp.add(total, part, total)

    def scratch(x: Any, workspace: Any, temporaries: int, channels: int) -> tuple[list[Any], Any, Any]:
        """Pieces of ``x`` and vectors of a number a channel; ones as long as a row, and a number for each row of a piece."""
        count = samples_at_once(x.shape)
        size, length = x.size // x.shape[0], x.size // max(x.shape[0] * x.shape[1], 1)
        *parts, one, row = split_workspace(workspace, *[(count * size, x.dtype)] * temporaries,
                                           *[(x.shape[1], x.dtype)] * channels, (length, x.dtype),
                                           (count * x.shape[1], x.dtype))
        one.fill(1)
        return parts, one, row

    def normalise(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, out: Any, factor: Any, term: Any) -> None:
        """out = x * factor + term: what forward does, and what makes the same bits again in backward."""
        if weight is None:
            factor[...] = rstd
        else:
            xp.multiply(rstd, weight, factor)
        xp.multiply(mean, factor, term)
        xp.negative(term, term)
        if bias is not None:
            xp.add(term, bias, term)
        for xs, ys in _blocks(x, out):
            xp.multiply(xs, factor.reshape(-1, 1), ys)
            xp.add(ys, term.reshape(-1, 1), ys)

    def batch_norm(x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, out: Any, mean: Any, rstd: Any,
                   workspace: Any, *, momentum: float, eps: float) -> None:
        count = x.size // x.shape[1]
        (room, var, factor, term), one, row = scratch(x, workspace, 1, 3)
        mean.fill(0)
        for xs, in _blocks(x):
            add_up(xs, mean, term, one, row)
        xp.multiply(mean, 1.0 / count, mean)
        # The squares of what is left without the mean: a difference of two large sums would lose the small variances.
        var.fill(0)
        for xs, in _blocks(x):
            square = room[:xs.size].reshape(xs.shape)
            xp.subtract(xs, mean.reshape(-1, 1), square)
            xp.multiply(square, square, square)
            add_up(square, var, term, one, row)
        xp.multiply(var, 1.0 / count, var)
        xp.add(var, eps, rstd)
        xp.sqrt(rstd, rstd)
        xp.reciprocal(rstd, rstd)
        for running, now, scale in ((running_mean, mean, momentum), (running_var, var, momentum * count / (count - 1))):
            if running is not None:
                xp.multiply(running, 1 - momentum, running)
                xp.multiply(now, scale, term)
                xp.add(running, term, running)
        normalise(x, weight, bias, mean, rstd, out, factor, term)

    def batch_norm_apply(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any, out: Any, workspace: Any) -> None:
        factor, term = split_workspace(workspace, *[(x.shape[1], x.dtype)] * 2)
        normalise(x, weight, bias, mean, rstd, out, factor, term)

    def batch_norm_grad(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any,
                        workspace: Any, *, needs: Any) -> None:
        count = x.size // x.shape[1]
        (room, part, own, slope, term), one, row = scratch(x, workspace, 1, 4)
        dweight.fill(0)
        dbias.fill(0)
        for gs, xs in _blocks(dy, x):
            product = room[:xs.size].reshape(xs.shape)
            xp.subtract(xs, mean.reshape(-1, 1), product)
            xp.multiply(product, gs, product)
            add_up(product, dweight, part, one, row)
            add_up(gs, dbias, part, one, row)
        xp.multiply(dweight, rstd, dweight)
        if not needs[0]:
            return
        # dx = own * dy + slope * x + term: the means of dy and of dy * hat are taken away, hat = (x - mean) * rstd.
        if weight is None:
            own[...] = rstd
        else:
            xp.multiply(rstd, weight, own)
        xp.multiply(dweight, rstd, slope)
        xp.multiply(slope, own, slope)
        xp.multiply(slope, -1.0 / count, slope)
        xp.multiply(slope, mean, term)
        xp.multiply(dbias, own, part)
        xp.multiply(part, 1.0 / count, part)
        xp.add(term, part, term)
        xp.negative(term, term)
        for gs, xs, ds in _blocks(dy, x, dx):
            product = room[:xs.size].reshape(xs.shape)
            xp.multiply(gs, own.reshape(-1, 1), ds)
            xp.multiply(xs, slope.reshape(-1, 1), product)
            xp.add(ds, product, ds)
            xp.add(ds, term.reshape(-1, 1), ds)

    return {f.__name__: f for f in (batch_norm, batch_norm_apply, batch_norm_grad)}
