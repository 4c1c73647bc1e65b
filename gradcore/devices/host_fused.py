"""Kernels of the CPU that do the work of several instructions of a program, with the same bits; see ``program.fusion``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices import host_networks as networks
from gradcore.devices.host_kernels import Array, rows
from gradcore.devices.kernels import split_workspace


def cross_entropy_with_grad(logits: Array, target: Array, weight: Array | None, loss: Array, slopes: Array, workspace: Array, *,
                            reduction: str, ignore_index: int) -> None:
    """The loss, and the slopes of the logits where its own is 1."""
    how = {"reduction": reduction, "ignore_index": ignore_index}
    networks.cross_entropy(logits, target, weight, loss, workspace, **how)
    networks.cross_entropy_grad(np.ones((), loss.dtype), logits, target, weight, slopes, workspace, **how)


def bind_cross_entropy(logits: Array, target: Array, weight: Array | None, loss: Array, slopes: Array, workspace: Array, *,
                       reduction: str, ignore_index: int) -> Callable[[], None]:
    """The same on given arrays. Of a batch that is one piece the exponentials and their sums are made once."""
    count, classes = logits.shape

    def whole() -> None:
        cross_entropy_with_grad(logits, target, weight, loss, slopes, workspace, reduction=reduction, ignore_index=ignore_index)

    if (weight is not None or reduction == "none" or 0 <= ignore_index < classes or not 0 < count <= networks.PIECE_ROWS
            or count > rows(classes) or slopes.nbytes < -(-count // 2) * 16 + count * loss.itemsize):
        return whole
    narrow = classes <= networks.NARROW
    room, folds = split_workspace(workspace, (logits.size, logits.dtype), (count, logits.dtype))
    # Room that is written last: until then it holds where each row's label stands, and the losses.
    places, losses = split_workspace(slopes.reshape(-1).view(np.uint8), (count, np.dtype(np.int64)), (count, logits.dtype))
    values, fold, given = ((room.reshape(classes, count), folds.reshape(1, count), logits.T) if narrow
                           else (room.reshape(count, classes), folds.reshape(count, 1), logits))
    result = values.T if narrow else values
    labels, axis, step = target.view(f"u{target.itemsize}"), 0 if narrow else 1, count if narrow else 1
    bases = np.arange(count) * (1 if narrow else classes)
    largest: Any = np.maximum.reduce
    add_up: Any = np.add.reduce
    copy = np.copyto
    scale = np.ones((), loss.dtype) / count if reduction == "mean" else np.ones((), loss.dtype)
    share = np.asarray(1 / count, loss.dtype) if reduction == "mean" else None

    def run() -> None:
        if largest(labels) >= classes:
            whole()
            return
        copy(values, given)
        largest(values, axis, None, fold, True)
        np.subtract(values, fold, values)
        np.multiply(target, step, places)
        np.add(places, bases, places)
        chosen = room.take(places)
        np.exp(values, values)
        add_up(values, axis, None, fold, True)
        np.log(folds, losses)
        np.subtract(losses, chosen, losses)
        add_up(losses, 0, None, loss)
        if share is not None:
            np.multiply(loss, share, loss)
        np.true_divide(values, fold, values)
        room[places] -= 1
        np.multiply(result, scale, slopes)

    return run


#: By op: the kernel, and what makes of it a call on given arrays.
FUSED: dict[str, Callable[..., Any]] = {"cross_entropy_with_grad": cross_entropy_with_grad}
BINDERS: dict[str, Callable[..., Callable[[], None]]] = {"cross_entropy_with_grad": bind_cross_entropy}
