"""Losses on the CPU, in pieces that stay in a core's cache."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from gradcore.devices.host.extremes import extreme
from gradcore.devices.host.kernel import PIECE_ROWS, Array, few_rows, kernel, pieces, slices, with_room
from gradcore.devices.host.kernels.softmax import NARROW, largest, row_sums
from gradcore.devices.kernels import split_workspace

#: The least value of a logarithm, as in PyTorch, so that the loss is finite for probabilities of 0.
LEAST_LOG = -100.0


@kernel
def huber(x: Array, delta: Any, out: Array, workspace: Array) -> None:
    # With m = min(|x|, delta): m (|x| - m / 2).
    for xs, outs, m in with_room(workspace, 1, x, out):
        np.absolute(xs, outs)
        extreme(np.minimum, outs, delta, m)
        np.multiply(m, -0.5, m)
        np.add(outs, m, outs)
        np.multiply(outs, m, outs)
        np.multiply(outs, -2, outs)


@kernel
def bce(x: Array, target: Array, out: Array, workspace: Array) -> None:
    for xs, ts, outs, a, b in with_room(workspace, 2, x, target, out):
        for name, part in (("input", xs), ("target", ts)):
            low, high = np.minimum.reduce(part), np.maximum.reduce(part)
            # Written so that NaN fails too.
            if not (low >= 0 and high <= 1):
                raise RuntimeError(f"all elements of {name} should be between 0 and 1, but there are {low} and {high}")
        np.negative(xs, a)
        np.log1p(a, a)
        extreme(np.maximum, a, LEAST_LOG, a)
        np.subtract(ts, 1, b)
        np.multiply(a, b, a)
        np.log(xs, outs)
        extreme(np.maximum, outs, LEAST_LOG, outs)
        np.multiply(outs, ts, outs)
        np.subtract(a, outs, outs)


@kernel
def bce_logits(x: Array, target: Any, out: Array, workspace: Array) -> None:
    both = (x, out, target) if isinstance(target, np.ndarray) else (x, out)
    for xs, outs, *rest, t in with_room(workspace, 1, *both):
        np.absolute(xs, outs)
        np.negative(outs, outs)
        np.exp(outs, outs)
        np.log1p(outs, outs)
        # max(x, 0) - target x as one product: as a difference it would have no digits left for a large x and a target of 1.
        np.greater(xs, 0, out=t)
        np.subtract(t, rest[0] if rest else target, out=t)
        np.multiply(xs, t, t)
        np.add(outs, t, outs)


@kernel
def mse_loss(x: Array, target: Array, out: Array, workspace: Array, *, reduction: str = "mean") -> None:
    room = workspace.view(x.dtype)
    total = 0.0
    for xs, ts in pieces(x, target):
        d = room[:xs.size]
        np.subtract(xs, ts, d)
        total += float(np.dot(d, d))
    out[...] = total if reduction == "sum" else total / x.size if x.size else math.nan


@kernel
def mse_grad(dy: Array, x: Any, target: Array, out: Array, *, reduction: str) -> None:
    np.subtract(x, target, out)
    np.multiply(out, 2.0 / max(x.size, 1) if reduction == "mean" else 2.0, out)
    np.multiply(out, dy, out)


# -- cross-entropy -------------------------------------------------------------------------------------------------------


def _plain_labels(target: Array, classes: int, ignore_index: int) -> bool:
    """Is every label a class, and none ignored? Raises IndexError in PyTorch's words for a label that is neither."""
    # A negative label is a large unsigned number, so one comparison checks both bounds.
    unsigned = f"u{target.itemsize}"
    if target.size and np.maximum.reduce(target.view(unsigned)) >= classes:
        for (part,) in pieces(target, length=PIECE_ROWS):
            outside = part[(part.view(unsigned) >= classes) & (part != ignore_index)]
            if outside.size:
                raise IndexError(f"Target {outside[0]} is out of bounds: expected class indices from 0 to {classes - 1}, or "
                                 f"ignore_index={ignore_index}")
        return False
    return not 0 <= ignore_index < classes or not any(ignore_index in part for (part,) in pieces(target))


def _shifted(part: Array, room: Array, fold: Array) -> tuple[Array, int]:
    """A piece of logits less the largest of each row, which is left in ``fold``, in the layout that is fastest; and the axis of
    the classes.
    """
    count, classes = part.shape
    if classes <= NARROW:  # transposed, since a reduction along each row has a fixed cost
        values = room.reshape(classes, count)
        np.copyto(values, part.T)
        np.maximum.reduce(values, 0, out=fold)
        np.subtract(values, fold, values)
        return values, 0
    values = room.reshape(count, classes)
    largest(part, values, fold)
    np.subtract(part, fold[:, None], values)
    return values, 1


def add_up(values: Array, axis: int, fold: Array) -> None:
    """Write the sum over the classes, along ``axis``, of each sample to ``fold``."""
    if axis:
        row_sums(values, fold)
    else:
        np.add.reduce(values, 0, out=fold)


def _places(labels: Array, classes: int, plain: bool) -> Array:
    """The flat position of each row's label in what :func:`_shifted` returns, of class 0 if the label is ignored."""
    count = len(labels)
    if not plain:
        labels = np.where((labels < 0) | (labels >= classes), 0, labels)
    if classes > NARROW:
        return labels + _multiples(classes)[:count]
    # Labels of bytes would wrap around.
    return np.multiply(labels, count, dtype=np.int64) + _multiples(1)[:count]


@functools.lru_cache(maxsize=16)
def _multiples(step: int) -> Array:
    return np.arange(0, PIECE_ROWS * step, step)


@kernel
def cross_entropy(logits: Array, target: Array, weight: Array | None, out: Array, workspace: Array, *,
                  reduction: str = "mean", ignore_index: int = -100) -> None:
    count, classes = logits.shape
    plain = _plain_labels(target, classes, ignore_index)
    step = few_rows(classes)
    room, losses = split_workspace(workspace, (min(logits.size, step * classes), logits.dtype), (count, logits.dtype))
    for some in slices(count, step):
        part, loss = logits[some], losses[some]
        flat = room[:part.size]
        values, axis = _shifted(part, flat, loss)
        chosen = flat.take(_places(target[some], classes, plain))
        np.exp(values, values)
        add_up(values, axis, loss)
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
    for some in slices(losses.size, PIECE_ROWS):
        loss = losses[some]
        weights = _sample_weights(target[some], weight, ignore_index, losses.dtype)
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
    scale = dy / count if even and reduction == "mean" else dy
    whole = 1.0
    if reduction == "mean" and not even:
        whole = sum(float(np.add.reduce(_sample_weights(target[some], weight, ignore_index, out.dtype)))
                    for some in slices(count, PIECE_ROWS))
    step = few_rows(classes)
    room, folds = split_workspace(workspace, (min(logits.size, step * classes), logits.dtype), (count, logits.dtype))
    for some in slices(count, step):
        part, fold, labels = logits[some], folds[some], target[some]
        flat = room[:part.size]
        values, axis = _shifted(part, flat, fold)
        np.exp(values, values)
        add_up(values, axis, fold)
        flat[_places(labels, classes, plain)] -= fold
        if not even:
            weights = _sample_weights(labels, weight, ignore_index, out.dtype) / whole
            scale = np.multiply(weights, dy[some] if reduction == "none" else dy, weights)
        np.true_divide(scale, fold, fold)
        np.multiply(values if axis else values.T, fold[:, None], out[some])
        if not plain:
            # For every cotangent, and also if the total weight is 0.
            out[some][labels == ignore_index] = 0
