"""Kernels of the CPU that do the work of several instructions of a program, with the same bits; see ``program.fusion``."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gradcore.devices import host_networks as networks
from gradcore.devices.calls import Call
from gradcore.devices.host_erf import gelu_with_grad
from gradcore.devices.host_kernels import PIECE_ROWS, rows
from gradcore.devices.host_pieces import region
from gradcore.devices.host_products import PRODUCTS
from gradcore.devices.host_tape import noted
from gradcore.devices.kernels import split_workspace
from gradcore.spec import PIECE

#: Elements of a piece, below which calls cost more than the arithmetic that is saved.
_SHORTEST = 4096


Array = np.ndarray[Any, Any]
Steps = list[list[Call]]


def fused(kind: str, steps: Steps) -> Steps | None:
    """The calls of some instructions that ``program.fusion`` names, with the same results in less time; None for no better."""
    if kind not in KINDS:
        return None
    kernel, given = steps[0][0]
    if not isinstance(kernel, partial) or not isinstance(given[0], np.ndarray) or given[0].itemsize < 4:
        # Floats of 16 bits go through kernels of 32.
        return None
    return KINDS[kind](steps)


def gelu_with_slopes(steps: Steps) -> Steps | None:
    """gelu made again, the product that its gradient waits for, that gradient: both come from one bend of each piece.

    The gradient is made where its cotangent lies, and the product that is filled last is room until then.
    """
    (first,), products, (second,) = steps
    (x, out, _), (slopes, _, result, _) = first[1], second[1]
    if len(products) < 2 or any(f not in PRODUCTS for f, _ in products[:2]) or region(products[0][1][-1]) != region(slopes):
        return None
    spare = products[1][1][-1]
    length = min(spare.size // 6, PIECE) // 16 * 16
    if length < _SHORTEST or not all(a.flags.c_contiguous for a in (x, out, slopes, spare)) or spare.dtype != x.dtype:
        return None
    room = [spare.reshape(-1)[k * length:(k + 1) * length] for k in range(6)]
    both = partial(gelu_with_grad, **first[0].keywords)  # type: ignore[attr-defined]
    arrays = [x, out, slopes, *room]
    return [[], [products[0], *(noted(both, arrays) or [(both, arrays)]), *products[1:]],
            [] if region(result) == region(slopes) else [(np.copyto, [result, slopes])]]


def loss_with_slopes(steps: Steps) -> Steps | None:
    """What makes cross-entropy and its gradient for a cotangent of 1 from the same exponentials and their sums.

    None where a batch is not one piece of plain rows. Labels that turn out not to be plain are left to the kernels themselves.
    """
    (first,), cotangent, (second,) = steps
    how = first[0].keywords  # type: ignore[attr-defined]
    reduction, ignore_index = how["reduction"], how["ignore_index"]
    logits, target, weight, loss, other = first[1]
    *_, slopes, workspace = second[1]
    count, classes = logits.shape
    if (weight is not None or reduction == "none" or 0 <= ignore_index < classes or not 0 < count <= PIECE_ROWS
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
    axis, step = 0 if narrow else 1, np.asarray(count if narrow else 1)
    bases = np.arange(count) * (1 if narrow else classes)
    one, share = np.ones((), loss.dtype), np.asarray(1 / count, loss.dtype)
    scale = one / count if reduction == "mean" else one
    largest: Any = np.maximum.reduce
    add_up: Any = np.add.reduce

    # A run may bring its own logits and labels: every array over them is an argument.
    def run(logits: Array, given: Array, target: Array, labels: Array) -> None:
        if largest(labels) >= classes:
            # In the second's workspace: the first's may be somebody else's by then.
            first[0](logits, target, weight, loss, workspace)
            second[0](second[1][0], logits, target, weight, slopes, workspace)
            return
        np.copyto(values, given)
        largest(values, axis, None, folds)
        np.subtract(values, fold, values)
        np.multiply(target, step, places)
        np.add(places, bases, places)
        chosen = room.take(places)
        np.exp(values, values)
        add_up(values, axis, None, folds)
        np.log(folds, losses)
        np.subtract(losses, chosen, losses)
        add_up(losses, 0, None, loss)
        if reduction == "mean":
            np.multiply(loss, share, loss)
        np.true_divide(values, fold, values)
        room[places] -= 1
        np.multiply(result, scale, slopes)

    return [[], cotangent, [(run, [logits, given, target, target.view(f"u{target.itemsize}")])]]


KINDS = {"gelu with slopes": gelu_with_slopes, "loss with slopes": loss_with_slopes}
