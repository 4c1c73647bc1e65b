"""Cross-entropy and layer norm on the CPU, in rows that stay in a core's cache."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from gradcore.devices.host_kernels import PIECE_ROWS, Array, kernel, pieces, rows
from gradcore.devices.host_products import ones
from gradcore.devices.kernels import split_workspace


def _plain_labels(target: Array, classes: int, ignore_index: int) -> bool:
    """Is every label a class, and none ignored? Raises IndexError in PyTorch's words for a label that is neither."""
    # A negative label is a large unsigned number, so one comparison checks both bounds.
    if target.size and np.maximum.reduce(target.view(f"u{target.itemsize}")) >= classes:
        for label in target.tolist():
            if label != ignore_index and not 0 <= label < classes:
                raise IndexError(f"Target {label} is out of bounds: expected class indices from 0 to {classes - 1}, or "
                                 f"ignore_index={ignore_index}")
        return False
    return not 0 <= ignore_index < classes or not any(ignore_index in part for (part,) in pieces(target))


#: Rows of at most so many classes are processed transposed, since a reduction along each row has a fixed cost.
NARROW = 32


class _Rows:
    """A piece of the rows of logits, shifted so that the largest in each is 0, in the layout that is fastest."""

    def __init__(self, part: Array, room: Array, fold: Array) -> None:
        count, classes = part.shape
        self.narrow = classes <= NARROW
        self.axis = 0 if self.narrow else 1
        self.values = room[:part.size].reshape((classes, count) if self.narrow else (count, classes))
        #: Room for a number for each row.
        self.fold = fold.reshape((1, count) if self.narrow else (count, 1))
        if self.narrow:
            np.copyto(self.values, part.T)
            part = self.values
        np.maximum.reduce(part, axis=self.axis, out=self.fold, keepdims=True)
        np.subtract(part, self.fold, self.values)

    def add_up(self) -> None:
        np.add.reduce(self.values, axis=self.axis, out=self.fold, keepdims=True)

    def chosen(self, labels: Array, plain: bool) -> Array:
        """The flat position in ``values`` of each row's label, of class 0 if the label is ignored."""
        count, classes = labels.size, self.values.size // labels.size
        if not plain:
            labels = np.where((labels < 0) | (labels >= classes), 0, labels)
        return _multiples(1)[:count] + labels * count if self.narrow else _multiples(classes)[:count] + labels


@functools.lru_cache(maxsize=16)
def _multiples(step: int) -> Array:
    return np.arange(0, PIECE_ROWS * step, step)


@kernel
def cross_entropy(logits: Array, target: Array, weight: Array | None, out: Array, workspace: Array, *,
                  reduction: str = "mean", ignore_index: int = -100) -> None:
    count, classes = logits.shape
    plain = _plain_labels(target, classes, ignore_index)
    step = min(rows(classes), PIECE_ROWS)
    room, losses = split_workspace(workspace, (min(logits.size, step * classes), logits.dtype), (count, logits.dtype))
    for start in range(0, count, step):
        labels, loss = target[start:start + step], losses[start:start + step]
        part = _Rows(logits[start:start + step], room, loss)
        chosen = room.take(part.chosen(labels, plain))
        np.exp(part.values, part.values)
        part.add_up()
        np.log(loss, loss)
        np.subtract(loss, chosen, loss)
    if weight is None and plain and reduction != "none" and count:
        np.add.reduce(losses, out=out)
        if reduction == "mean":
            np.multiply(out, 1 / count, out)
    else:
        _reduce_weighted(losses, target, weight, out, reduction, ignore_index)


def _reduce_weighted(losses: Array, target: Array, weight: Array | None, out: Array, reduction: str,
                     ignore_index: int) -> None:
    """Sum or mean of the losses with the weights of their classes, in pieces, since the weights are temporaries."""
    total = whole = 0.0
    for start in range(0, losses.size, PIECE_ROWS):
        loss = losses[start:start + PIECE_ROWS]
        weights = _sample_weights(target[start:start + PIECE_ROWS], weight, ignore_index, losses.dtype)
        # With a weight of 0, an infinite loss must not make the sum NaN.
        np.copyto(loss, 0, where=weights == 0)
        np.multiply(loss, weights, loss)
        total += float(np.add.reduce(loss))
        whole += float(np.add.reduce(weights))
    if reduction == "none":
        out[...] = losses
    else:
        out[...] = total if reduction == "sum" else np.float64(total) / np.float64(whole)


def _sample_weights(labels: Array, weight: Array | None, ignore_index: int, dtype: Any) -> Array:
    """The weight of each of at most ``PIECE_ROWS`` samples."""
    kept = labels != ignore_index
    return kept.astype(dtype) if weight is None else np.where(kept, weight[np.where(kept, labels, 0)], 0)


@kernel
def cross_entropy_grad(dy: Array, logits: Array, target: Array, weight: Array | None, out: Array, workspace: Array, *,
                       reduction: str, ignore_index: int) -> None:
    count, classes = logits.shape
    plain = _plain_labels(target, classes, ignore_index)
    even = weight is None and plain and reduction != "none"
    scale = dy / count if even and reduction == "mean" else dy if even else 1
    step = min(rows(classes), PIECE_ROWS)
    room, folds = split_workspace(workspace, (min(logits.size, step * classes), logits.dtype), (count, logits.dtype))
    for start in range(0, count, step):
        labels = target[start:start + step]
        part = _Rows(logits[start:start + step], room, folds[start:start + step])
        np.exp(part.values, part.values)
        part.add_up()
        np.true_divide(part.values, part.fold, part.values)
        room[part.chosen(labels, plain)] -= 1
        np.multiply(part.values.T if part.narrow else part.values, scale, out[start:start + step])
    if not even:
        _scale_weighted(out, dy, target, weight, reduction, ignore_index)


def _scale_weighted(out: Array, dy: Array, target: Array, weight: Array | None, reduction: str,
                    ignore_index: int) -> None:
    """Multiply each row by its sample's weight and the cotangent, and divide by the total weight for a mean."""
    starts = range(0, target.size, PIECE_ROWS)
    whole = 1.0
    if reduction == "mean":
        whole = sum(float(np.add.reduce(_sample_weights(target[i:i + PIECE_ROWS], weight, ignore_index, out.dtype)))
                    for i in starts)
    for i in starts:
        part = out[i:i + PIECE_ROWS]
        labels = target[i:i + PIECE_ROWS]
        weights = _sample_weights(labels, weight, ignore_index, out.dtype) / whole
        np.multiply(weights, dy[i:i + PIECE_ROWS] if reduction == "none" else dy, weights)
        np.multiply(part, weights.astype(out.dtype).reshape(-1, 1), part)
        # For every cotangent, and also if the total weight is 0.
        np.copyto(part, 0, where=(labels == ignore_index).reshape(-1, 1))


@kernel
def mse_loss(x: Array, target: Array, out: Array, workspace: Array, *, reduction: str = "mean") -> None:
    room = workspace.view(x.dtype)
    total = 0.0
    for xs, ts in pieces(x, target):
        d = room[:xs.size]
        np.subtract(xs, ts, d)
        total += float(np.dot(d, d))
    out[...] = total if reduction == "sum" else total / x.size if x.size else math.nan


def _norm_rows(width: int) -> int:
    """Rows of a piece: few enough that a temporary with a number for each need not be declared."""
    return min(rows(width), PIECE_ROWS)


def _normalize_rows(x: Array, mean: Array, rstd: Array, out: Array) -> None:
    np.subtract(x, mean, out)
    np.multiply(out, rstd, out)


@kernel
def layer_norm(x: Array, weight: Array | None, bias: Array | None, out: Array, mean: Array, rstd: Array,
               workspace: Array, *, dims: int, eps: float) -> None:
    width = math.prod(x.shape[x.ndim - dims:])
    if not x.size:
        return
    xs, outs = x.reshape(-1, width), out.reshape(-1, width)
    means, rstds = mean.reshape(-1), rstd.reshape(-1)
    one = ones(width, x.dtype)
    for start in range(0, len(xs), _norm_rows(width)):
        part = slice(start, start + _norm_rows(width))
        m, r, y = means[part], rstds[part], outs[part]
        np.matmul(xs[part], one, out=m)
        np.multiply(m, 1 / width, m)
        np.subtract(xs[part], m[:, None], y)
        np.vecdot(y, y, out=r)
        np.multiply(r, 1 / width, r)
        np.add(r, eps, r)
        np.sqrt(r, r)
        np.reciprocal(r, r)
        np.multiply(y, r[:, None], y)
        _scale(y, weight, bias)


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
    one = ones(width, x.dtype)
    for start in range(0, len(xs), _norm_rows(width)):
        part = slice(start, start + _norm_rows(width))
        g, d = dys[part], dxs[part]
        hat, t = hats[:g.size].reshape(g.shape), room[:g.size].reshape(g.shape)
        _normalize_rows(xs[part], means[part], rstds[part], hat)
        np.multiply(g, hat, t)
        down = ones(len(g), x.dtype)
        for total, terms in ((dweight, t), (dbias, g)):
            # The first row of dx is not written yet, so it can hold a row of sums.
            np.matmul(down, terms, out=d[0])
            np.add(total.reshape(-1), d[0], total.reshape(-1))
        # dx = rstd * (gw - mean(gw) - hat * mean(gw * hat)), with gw = dy * weight
        if weight is None:
            np.copyto(d, g)
        else:
            np.multiply(g, weight.reshape(-1), d)
        mean_of = t.reshape(-1)[:len(g)]
        np.vecdot(d, hat, out=mean_of)
        np.multiply(mean_of, 1 / width, mean_of)
        np.multiply(hat, mean_of[:, None], hat)
        np.matmul(d, one, out=mean_of)
        np.multiply(mean_of, 1 / width, mean_of)
        np.subtract(d, mean_of[:, None], d)
        np.subtract(d, hat, d)
        np.multiply(d, rstds[part], d)
