"""Softmax and its logarithm on the CPU: over the last dimension in rows that stay in a core's cache."""

from __future__ import annotations

import math

import numpy as np

from gradcore.devices.host.kernel import HOST_KERNELS, Array, kernel, rows, slices
from gradcore.devices.host.kernels.products import add_over, ones
from gradcore.devices.kernels import folded_shape, split_workspace
from gradcore.spec import FOLDED, PIECE

#: Rows of at most so many numbers are turned over to find the largest of each, since a reduction along a row has a fixed cost;
#: where there are at least so many.
NARROW, _MANY = 32, 64
#: Of longer rows, if they have at most so many numbers and there are at least so many, the place of the largest is found.
_MEDIUM, _SOME = 1024, 32


def _width(dim: int, *arrays: Array) -> int:
    """The length of rows, if these are what ``dim`` goes along and the arrays are contiguous; else 0."""
    if not all(x.flags.c_contiguous for x in arrays):
        return 0
    x = arrays[0]
    return 1 if not x.ndim else x.shape[-1] if dim == x.ndim - 1 else 0


def _some(width: int) -> int:
    """Rows of a piece: they need not fit in the core's own cache, since most of the time is spent on single passes."""
    return max(4 * PIECE // width, 1)


def largest(part: Array, room: Array, fold: Array) -> None:
    """Write the largest number of each row to ``fold``; ``room`` has as many elements as ``part``, and may be written over."""
    count, width = part.shape
    if width <= NARROW and count >= _MANY:
        turned = room.reshape(width, count)
        np.copyto(turned, part.T)
        np.maximum.reduce(turned, 0, out=fold)
    elif width <= _MEDIUM and count >= _SOME:
        # To start along a row costs NumPy a third of the time that a reduction takes to.
        places = part.argmax(1)
        places += np.arange(0, part.size, width)
        part.reshape(-1).take(places, out=fold, mode="clip")
    else:
        np.maximum.reduce(part, 1, out=fold)


def row_sums(part: Array, fold: Array) -> None:
    """Write the sum of each row to ``fold``: as a product, but for rows so long that a vector of ones is no small thing."""
    width = part.shape[1]
    if width > PIECE:
        np.add.reduce(part, 1, out=fold)
    else:
        np.matmul(part, ones(width, part.dtype), out=fold)


@kernel
def softmax(x: Array, out: Array, workspace: Array, *, dim: int) -> None:
    if not x.size:
        return
    folds, width = workspace.view(x.dtype), _width(dim, x)
    if not width:
        fold = folds.reshape(folded_shape(x.shape, dim))
        HOST_KERNELS["amax"](x, fold, dims=(dim,), keepdim=True)
        np.subtract(x, fold, out)
        np.exp(out, out)
        add_over(out, (dim,), fold)
        np.true_divide(out, fold, out)
        return
    xs, outs = x.reshape(-1, width), out.reshape(-1, width)
    for some in slices(len(xs), _some(width)):
        part, y = xs[some], outs[some]
        fold = folds[:len(part)]
        largest(part, y, fold)
        np.subtract(part, fold[:, None], y)
        np.exp(y, y)
        row_sums(y, fold)
        np.true_divide(y, fold[:, None], y)


@kernel
def softmax_grad(dy: Array, x: Array, out: Array, workspace: Array, *, dim: int) -> None:
    if not x.size:
        return
    folds, width = workspace.view(x.dtype), _width(dim, x, dy)
    if not width:
        axes = range(x.ndim)
        kept = [d for d in axes if d != dim]
        np.einsum(dy, axes, x, axes, kept, out=folds.reshape([x.shape[d] for d in kept]))
        fold = folds.reshape(folded_shape(x.shape, dim))
        np.subtract(dy, fold, out)
        np.multiply(out, x, out)
        return
    dys, xs, outs = (t.reshape(-1, width) for t in (dy, x, out))
    for some in slices(len(xs), _some(width)):
        g, y, d = dys[some], xs[some], outs[some]
        fold = folds[:len(g)]
        # The products are not written anywhere: the result may take the place of dy.
        np.vecdot(g, y, out=fold) if width > NARROW else np.einsum("ij,ij->i", g, y, out=fold)
        np.subtract(g, fold[:, None], d)
        np.multiply(d, y, d)


@kernel
def log_softmax(x: Array, out: Array, workspace: Array, *, dim: int) -> None:
    if not x.size:
        return
    width = _width(dim, x)
    if not width:
        _between(x, out, workspace, dim)
        return
    count = x.size // width
    exps, folds = split_workspace(workspace, (min(x.size, rows(width) * width), x.dtype), (count, x.dtype))
    xs, outs = x.reshape(-1, width), out.reshape(-1, width)
    for some in slices(count, rows(width)):
        part, y, fold = xs[some], outs[some], folds[some]
        e = exps[:part.size].reshape(part.shape)
        largest(part, e, fold)
        np.subtract(part, fold[:, None], y)
        np.exp(y, e)
        row_sums(e, fold)
        np.log(fold, fold)
        np.subtract(y, fold[:, None], y)


def _between(x: Array, out: Array, workspace: Array, dim: int) -> None:
    """log_softmax over a dimension that others follow."""
    count, inner = x.shape[dim], math.prod(x.shape[dim + 1:])
    xs, outs = x.reshape(-1, count, inner), out.reshape(-1, count, inner)
    step = min(max(FOLDED // (count * inner), 1), len(xs))
    exps, folds = split_workspace(workspace, (step * count * inner, x.dtype), (step * inner, x.dtype))
    for some in slices(len(xs), step):
        part, y = xs[some], outs[some]
        e, fold = exps[:part.size].reshape(part.shape), folds[:len(part) * inner].reshape(-1, 1, inner)
        HOST_KERNELS["amax"](part, fold, dims=(1,), keepdim=True)
        np.subtract(part, fold, y)
        np.exp(y, e)
        add_over(e, (1,), fold)
        np.log(fold, fold)
        np.subtract(y, fold, y)


@kernel
def log_softmax_grad(dy: Array, x: Array, out: Array, workspace: Array, *, dim: int) -> None:
    if not x.size:
        return
    folds, width = workspace.view(x.dtype), _width(dim, x, dy)
    if not width:
        fold = folds.reshape(folded_shape(x.shape, dim))
        add_over(dy, (dim,), fold)
        np.exp(x, out)
        np.multiply(out, fold, out)
        np.subtract(dy, out, out)
        return
    dys, xs, outs = (t.reshape(-1, width) for t in (dy, x, out))
    for some in slices(len(xs), _some(width)):
        g, y, d = dys[some], xs[some], outs[some]
        fold = folds[:len(g)]
        row_sums(g, fold)
        np.exp(y, d)
        np.multiply(d, fold[:, None], d)
        np.subtract(g, d, d)
