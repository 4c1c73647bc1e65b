"""Connectionist temporal classification: the loss of labels without times."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.engine.owners import constant
from gradcore.engine.value import Value
from gradcore.errors import SpecError
from gradcore.functional import mean, sum
from gradcore.functional.losses import check_reduction
from gradcore.functional.shape import unsqueeze
from gradcore.ops import ctc, elementwise, movement
from gradcore.spec import TensorSpec

__all__ = ["ctc_loss"]

Tensor = Any
_INDEX = TensorSpec.of((), np.dtype(np.int64))


def _lengths(name: str, given: Any, log_probs: Tensor, most: int | None) -> Tensor:
    """Lengths as a tensor [N] beside ``log_probs``; those of a tuple are checked here."""
    if isinstance(given, Value):
        if given.spec.dtype.kind not in "iu":
            raise SpecError(f"{name} must be integral, but is {given.spec.dtype.name}")
        return _beside(movement.reshape(given, (-1,)) if not given.spec.ndim else given, log_probs)
    if not isinstance(given, (tuple, list)) or not all(isinstance(n, (int, np.integer)) for n in given):
        raise TypeError(f"ctc_loss(): expected {name} to be a tensor or a tuple of ints, but got {given!r}")
    for n in given:
        if n < 0 or (most is not None and n > most):
            bound = f"at least 0, but got value {n}" if n < 0 else f"at most {most}, but got value {n}"
            raise SpecError(f"Expected {name} to have value {bound}")
    return constant("ctc_loss", np.array(given, np.int64), log_probs)


def _beside(x: Tensor, log_probs: Tensor) -> Tensor:
    """Integers as int64, on the device of ``log_probs``."""
    x = movement.cast_to(x, _INDEX)
    return x if x.storage.device is log_probs.storage.device else x.to(log_probs.storage.device)


def ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
             reduction: str = "mean", zero_infinity: bool = False) -> Tensor:
    """-log of the probability of a sample's labels at any times: log-probabilities [T, N, C] or [T, C], in float32 or float64.

    ``targets`` is [N, S], or the labels of all samples in a row; lengths are [N], as tensors or tuples. A mean is over the
    samples, after division by their ``target_lengths``. A loss is infinite where the labels need more steps than there are;
    ``zero_infinity`` makes it and its gradient 0. Graves et al., Connectionist Temporal Classification, ICML 2006.

    As in PyTorch, the gradient takes ``log_probs`` for a result of :func:`log_softmax`, and cannot be differentiated again.
    Backward keeps 2 S + 1 numbers for each step of a sample. On the CPU, raises RuntimeError for lengths that do not fit, and
    IndexError for a label that is no class; on a GPU the loss is NaN.
    """
    check_reduction(reduction)
    lone = log_probs.spec.ndim == 2
    given = unsqueeze(log_probs, 1) if lone else log_probs
    steps = given.spec.shape[0] if given.spec.ndim == 3 else None
    ins, outs = _lengths("input_lengths", input_lengths, given, steps), _lengths("target_lengths", target_lengths, given, None)
    loss = ctc.ctc_loss(given, _beside(targets, given), ins, outs, blank=blank, zero_infinity=zero_infinity)
    if zero_infinity:
        loss = elementwise.where(elementwise.eq(loss, math.inf), 0.0, loss)
    if reduction == "none":
        return movement.reshape(loss, ()) if lone else loss
    if reduction == "sum":
        return sum(loss)
    return mean(loss / movement.cast(elementwise.clamp(outs, 1, None), dtype=loss.spec.dtype))
