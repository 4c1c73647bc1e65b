"""Kernels of the CPU that do the work of several instructions of a program, with the same bits; see ``program.fusion``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices import host_networks as networks
from gradcore.devices.host_kernels import rows
from gradcore.devices.host_tape import Call
from gradcore.devices.kernels import split_workspace


def loss_with_slopes(first: Call, second: Call) -> Callable[[], None] | None:
    """What makes cross-entropy and its gradient for a cotangent of 1 from the same exponentials and their sums.

    None where a batch is not one piece of plain rows. Labels that turn out not to be plain are left to the kernels themselves.
    """
    how = first[0].keywords  # type: ignore[attr-defined]
    reduction, ignore_index = how["reduction"], how["ignore_index"]
    logits, target, weight, loss, other = first[1]
    *_, slopes, workspace = second[1]
    count, classes = logits.shape
    if (weight is not None or reduction == "none" or 0 <= ignore_index < classes or not 0 < count <= networks.PIECE_ROWS
            or count > rows(classes) or other.nbytes != workspace.nbytes
            or slopes.nbytes < -(-count // 2) * 16 + count * loss.itemsize):
        return None
    narrow = classes <= networks.NARROW
    room, folds = split_workspace(workspace, (logits.size, logits.dtype), (count, logits.dtype))
    # Room that is written last: until then it holds where each row's label stands, and the losses.
    places, losses = split_workspace(slopes.reshape(-1).view(np.uint8), (count, np.dtype(np.int64)), (count, logits.dtype))
    values, fold, given = ((room.reshape(classes, count), folds.reshape(1, count), logits.T) if narrow
                           else (room.reshape(count, classes), folds.reshape(count, 1), logits))
    result = values.T if narrow else values
    labels, axis, step = target.view(f"u{target.itemsize}"), 0 if narrow else 1, count if narrow else 1
    bases = np.arange(count) * (1 if narrow else classes)
    one = np.ones((), loss.dtype)
    largest: Any = np.maximum.reduce
    add_up: Any = np.add.reduce

    def run() -> None:
        if largest(labels) >= classes:
            # In the second's workspace: the first's may be somebody else's by then.
            first[0](logits, target, weight, loss, workspace)
            second[0](*second[1])
            return
        np.copyto(values, given)
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
        if reduction == "mean":
            np.multiply(loss, 1 / count, loss)
        np.true_divide(values, fold, values)
        room[places] -= 1
        np.multiply(result, one / count if reduction == "mean" else one, slopes)

    return run
