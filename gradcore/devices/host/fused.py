"""Fused calls on the CPU: one kernel for several instructions of a program, with the same bits; see ``program.fusion``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gradcore.devices.calls import Steps
from gradcore.devices.host.kernel import PIECE_ROWS, Array, rows
from gradcore.devices.host.kernels.erf import gelu_with_grad
from gradcore.devices.host.kernels.losses import add_up
from gradcore.devices.host.kernels.products import PRODUCTS
from gradcore.devices.host.kernels.softmax import NARROW
from gradcore.devices.host.tape import noted
from gradcore.devices.kernels import split_workspace
from gradcore.spec import PIECE

#: The least elements of a piece: with fewer, calls cost more than the saved arithmetic.
_SHORTEST = 4096


def fused(kind: str, steps: Steps) -> Steps | None:
    """Faster calls for a group of instructions of ``program.fusion``, with the same results; None if there are none."""
    if kind not in KINDS:
        return None
    kernel, given = steps[0][0]
    if not isinstance(kernel, partial) or not isinstance(given[0], np.ndarray) or given[0].itemsize < 4:
        # Kernels for 16-bit floats convert their operands.
        return None
    return KINDS[kind](steps)


def _bytes(array: Array) -> tuple[int, int]:
    """Where a contiguous array begins in memory, and its length."""
    return array.ctypes.data, array.nbytes


def _in_place_of(a: Any, old: Array, new: Array) -> Any:
    """An argument, or if it shows all of a contiguous array, the same of another one."""
    return as_strided(new, a.shape, a.strides) if isinstance(a, np.ndarray) and _bytes(a) == _bytes(old) else a


def gelu_with_slopes(steps: Steps, over: bool = False) -> Steps | None:
    """gelu recomputed, a linear layer's gradient, and gelu's gradient: gelu and its gradient share one evaluation of erf.

    The gradient is written over its cotangent; the product that is written last serves as workspace until then. gelu is written
    ``over`` its input if that is not read later: the plan may have put the cotangent in gelu's own place.
    """
    (first,), (*products, cotangent), (second,) = steps
    (x, out, _), (slopes, _, result, _) = first[1], second[1]
    if over:
        products = [(f, [_in_place_of(a, out, x) for a in args]) for f, args in products]
        out = x
    if not products or any(f not in PRODUCTS for f, _ in (products[0], cotangent)) or (
            _bytes(cotangent[1][-1]) != _bytes(slopes) or np.may_share_memory(slopes, out)):
        return None
    spare = products[0][1][-1]
    length = min(spare.size // 6, PIECE) // 16 * 16
    if length < _SHORTEST or not all(a.flags.c_contiguous for a in (x, out, slopes, spare)) or spare.dtype != x.dtype:
        return None
    room = [spare.reshape(-1)[k * length:(k + 1) * length] for k in range(6)]
    both = partial(gelu_with_grad, **first[0].keywords)  # type: ignore[attr-defined]
    arrays = [x, out, slopes, *room]
    return [[], [cotangent, *(noted(both, arrays) or [(both, arrays)]), *products],
            [] if _bytes(result) == _bytes(slopes) else [(np.copyto, [result, slopes])]]


def loss_with_slopes(steps: Steps) -> Steps | None:
    """Cross-entropy and its gradient for a cotangent of 1, from the same exponentials and their sums.

    None if a batch is not one piece of plain rows. If labels are ignored in a run, the separate kernels are called.
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
    narrow = classes <= NARROW
    room, folds = split_workspace(workspace, (logits.size, logits.dtype), (count, logits.dtype))
    # The gradient is written last: until then its memory holds the position of each row's label, and the losses.
    places, losses = split_workspace(slopes.reshape(-1).view(np.uint8), (count, np.dtype(np.int64)), (count, logits.dtype))
    values, given = (room.reshape(classes, count), logits.T) if narrow else (room.reshape(count, classes), logits)
    result, column = values.T if narrow else values, folds.reshape(count, 1)
    axis, step = 0 if narrow else 1, np.asarray(count if narrow else 1)
    bases = np.arange(count) * (1 if narrow else classes)
    one, share = np.ones((), loss.dtype), np.asarray(1 / count, loss.dtype)
    scale = one / count if reduction == "mean" else one
    largest: Any = np.maximum.reduce

    # Logits and labels may differ in each run, so all arrays over them are arguments.
    def run(logits: Array, given: Array, target: Array, labels: Array) -> None:
        if largest(labels) >= classes:
            # In the second kernel's workspace, since the first's may be reused by then.
            first[0](logits, target, weight, loss, workspace)
            second[0](second[1][0], logits, target, weight, slopes, workspace)
            return
        np.copyto(values, given)
        largest(values, axis, None, folds)
        np.subtract(result, column, result)
        np.multiply(target, step, places)
        np.add(places, bases, places)
        chosen = room.take(places)
        np.exp(values, values)
        add_up(values, axis, folds)
        np.log(folds, losses)
        np.subtract(losses, chosen, losses)
        np.add.reduce(losses, 0, None, loss)
        if reduction == "mean":
            np.multiply(loss, share, loss)
        room[places] -= folds
        np.true_divide(scale, folds, folds)
        np.multiply(result, column, slopes)

    return [[], cotangent, [(run, [logits, given, target, target.view(f"u{target.itemsize}")])]]


KINDS: dict[str, Callable[[Steps], Steps | None]] = {
    "gelu with slopes": gelu_with_slopes, "gelu over its input with slopes": partial(gelu_with_slopes, over=True),
    "loss with slopes": loss_with_slopes}
