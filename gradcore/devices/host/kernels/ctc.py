"""Connectionist temporal classification on the CPU: a step at once for all samples, whose labels stand side by side.

A row has a column for each label of each sample, and for a blank before, between and after them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gradcore.devices.host.kernel import Array, kernel
from gradcore.devices.kernels import split_workspace


def _check_lengths(input_lengths: Array, target_lengths: Array, steps: int, targets: Array) -> None:
    """Raise RuntimeError, in PyTorch's words, for lengths that do not fit."""
    for name, lengths, most in (("input_lengths", input_lengths, steps), ("target_lengths", target_lengths, math.inf)):
        low, high = int(np.minimum.reduce(lengths)), int(np.maximum.reduce(lengths))
        if low < 0 or high > most:
            bound = f"at least 0, but got value {low}" if low < 0 else f"at most {most}, but got value {high}"
            raise RuntimeError(f"ctc_loss: Expected {name} to have value {bound}")
    if targets.ndim == 2 and high > targets.shape[1]:
        raise RuntimeError(f"ctc_loss: Expected tensor to have size at least {high} at dimension 1, but got size "
                           f"{targets.shape[1]} for argument #2 'targets'")
    if targets.ndim == 1 and np.add.reduce(target_lengths) != targets.size:
        raise RuntimeError(f"ctc_loss: Expected tensor to have size {np.add.reduce(target_lengths)} at dimension 0, but got "
                           f"size {targets.size} for argument #2 'targets'")


def _samples(targets: Array, input_lengths: Array, target_lengths: Array) -> Iterator[tuple[int, int, int, int, Array]]:
    """Each sample's first column, the one after its last label and blank, and after all of its own; its steps; its labels."""
    padded, start = targets.ndim == 2, 0
    for b, (steps, count) in enumerate(zip(input_lengths.tolist(), target_lengths.tolist(), strict=True)):
        first = b + 2 * (b * targets.shape[1] if padded else start)
        end = first + 2 * count + 1
        yield first, end, first + 2 * targets.shape[1] + 1 if padded else end, steps, (
            targets[b, :count] if padded else targets[start:start + count])
        start += count


def _label(places: Array, barred: Array, samples: list[tuple[int, int, int, int, Array]], classes: int, blank: int) -> None:
    """Write for each column the place of its class among those of a step, and whether no step leads to it from two columns
    before: there it has the same label, or belongs to another sample."""
    for b, (first, _, last, _, labels) in enumerate(samples):
        places[first:last] = b * classes + blank
        if labels.size:
            low, high = int(np.minimum.reduce(labels)), int(np.maximum.reduce(labels))
            if low < 0 or high >= classes:
                raise IndexError(f"Target {low if low < 0 else high} is out of bounds: expected labels from 0 to {classes - 1}")
            np.add(labels, b * classes, out=places[first + 1:first + 2 * labels.size:2])
    np.equal(places[2:], places[:-2], out=barred[2:])
    for first, *_ in samples:
        barred[first:first + 2] = True


@kernel
def ctc_loss(log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, out: Array, alpha: Array,
             workspace: Array, *, blank: int = 0, zero_infinity: bool = False) -> None:
    steps, _, classes = log_probs.shape
    columns, dtype = alpha.shape[1], log_probs.dtype
    _check_lengths(input_lengths, target_lengths, steps, targets)
    samples = list(_samples(targets, input_lengths, target_lengths))
    places, flags, own, moved = split_workspace(workspace, (columns, np.dtype(np.int64)), (columns, np.dtype(np.uint8)),
                                                (columns, dtype), (columns, dtype))
    barred, values = flags.view(np.bool_), log_probs.reshape(steps, -1)
    _label(places, barred, samples, classes, blank)
    firsts = [first for first, *_ in samples]
    # -inf less -inf is no number, which logaddexp knows.
    with np.errstate(invalid="ignore"):
        row = alpha[0]
        row.fill(-math.inf)
        for first, end, *_ in samples:
            row[first:min(first + 2, end)] = values[0].take(places[first:min(first + 2, end)])
        for t in range(1, steps):
            before, row = row, alpha[t]
            moved[1:] = before[:-1]
            moved[firsts] = -math.inf
            np.logaddexp(before, moved, out=row)
            moved[2:] = before[:-2]
            np.copyto(moved, -math.inf, where=barred)
            np.logaddexp(row, moved, out=row)
            np.take(values[t], places, out=own, mode="clip")
            np.add(row, own, row)
        for b, (first, end, last, count, labels) in enumerate(samples):
            alpha[count:, first:last] = -math.inf
            alpha[:, end:last] = -math.inf
            if not count:
                out[b] = math.inf if labels.size else 0
                continue
            whole = alpha[count - 1, end - 1]
            out[b] = -np.logaddexp(whole, alpha[count - 1, end - 2]) if labels.size else -whole


@kernel
def ctc_loss_grad(dy: Array, log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, loss: Array,
                  alpha: Array, out: Array, workspace: Array, *, blank: int, zero_infinity: bool) -> None:
    steps, _, classes = log_probs.shape
    columns, dtype = alpha.shape[1], log_probs.dtype
    _check_lengths(input_lengths, target_lengths, steps, targets)
    samples = list(_samples(targets, input_lengths, target_lengths))
    places, flags, beta, ahead, moved, losses, slopes = split_workspace(
        workspace, (columns, np.dtype(np.int64)), (columns, np.dtype(np.uint8)), *[(columns, dtype)] * 5)
    barred, values = flags.view(np.bool_), log_probs.reshape(steps, -1)
    _label(places, barred, samples, classes, blank)
    lasts = [last - 1 for _, _, last, _, _ in samples]
    ending: dict[int, list[int]] = {}
    for b, (first, end, last, count, labels) in enumerate(samples):
        losses[first:last] = loss[b] if np.isfinite(loss[b]) else 0
        slopes[first:last] = dy[b]
        ending.setdefault(count - 1, []).extend((end - 1, end - 2) if labels.size else (end - 1,))
    with np.errstate(invalid="ignore", over="ignore"):
        for t in range(steps - 1, -1, -1):
            if t == steps - 1:
                beta.fill(-math.inf)
            else:
                np.take(values[t + 1], places, out=ahead, mode="clip")
                np.add(beta, ahead, ahead)
                moved[:-1] = ahead[1:]
                moved[lasts] = -math.inf
                np.logaddexp(ahead, moved, out=beta)
                moved[:-2] = ahead[2:]
                np.copyto(moved[:-2], -math.inf, where=barred[2:])
                moved[-2:] = -math.inf
                np.logaddexp(beta, moved, out=beta)
            beta[ending.get(t, [])] = 0
            np.add(alpha[t], beta, moved)
            np.add(moved, losses, moved)
            np.exp(moved, moved)
            np.multiply(moved, slopes, moved)
            np.exp(log_probs[t], out[t])
            np.multiply(out[t], dy.reshape(-1, 1), out[t])
            np.subtract.at(out[t].reshape(-1), places, moved)
    for b, (_, _, _, count, _) in enumerate(samples):
        out[count:, b] = 0
        if not np.isfinite(loss[b]):
            out[:count, b] = 0 if zero_infinity and loss[b] == math.inf else math.nan
