"""Group, instance and root-mean-square normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.engine.modes import no_grad
from gradcore.errors import SpecError
from gradcore.functional import mean
from gradcore.functional.folding import var
from gradcore.functional.images import batch_norm
from gradcore.functional.types import finfo
from gradcore.ops import movement, nn
from gradcore.ops import rms_norm as rms

__all__ = ["group_norm", "instance_norm", "rms_norm"]

Tensor = Any


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimensions, of shape ``normalized_shape``, times ``weight``.

    ``eps`` is by default the machine epsilon of the dtype of the sums. Backward keeps only input and weight. Zhang and
    Sennrich, arXiv:1910.07467.
    """
    shape = tuple(normalized_shape)
    if not shape or input.spec.shape[input.spec.ndim - len(shape):] != shape:
        raise SpecError(f"Given normalized_shape={list(shape)}, expected input with shape "
                        f"[{', '.join(['*', *map(str, shape)])}], but got input of size{list(input.spec.shape)}")
    least = float(finfo(np.promote_types(np.float32, input.spec.dtype)).eps) if eps is None else float(eps)
    return rms.rms_norm(input, weight, dims=len(shape), eps=least)


def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) over each group of neighbouring channels of [N, C, ...], times weight [C], plus bias [C].

    Wu and He, arXiv:1803.08494. Raises :class:`SpecError` for channels that do not divide into the groups.
    """
    shape = input.spec.shape
    if len(shape) < 2 or num_groups < 1 or shape[1] % num_groups:
        raise SpecError(f"Expected number of channels in input to be divisible by num_groups, but got input of shape "
                        f"{list(shape)} and num_groups={num_groups}")
    rows = movement.reshape(input, (shape[0], num_groups, math.prod(shape[1:]) // num_groups))
    return _affine(movement.reshape(nn.layer_norm(rows, None, None, dims=1, eps=float(eps)), shape), weight, bias)


def instance_norm(input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
                  weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
                  momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) over each channel of each sample of [N, C, ...], times weight [C], plus bias [C].

    Ulyanov et al., arXiv:1607.08022. ``running_*`` are updated by ``momentum`` with the statistics averaged over samples, and
    are used if ``use_input_stats`` is False. Raises ValueError for channels of one element, whose variance is always 0.
    """
    shape = input.spec.shape
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if math.prod(shape[2:]) == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {list(shape)}")
    rows = movement.reshape(input, (*shape[:2], math.prod(shape[2:])))
    if running_mean is not None and running_var is not None:
        with no_grad():
            for running, found in ((running_mean, mean(rows, 2)), (running_var, var(rows, 2))):
                running.copy_(running * (1 - momentum) + mean(found, 0) * momentum)
    return _affine(movement.reshape(nn.layer_norm(rows, None, None, dims=1, eps=float(eps)), shape), weight, bias)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x * weight + bias, both by channel."""
    shape = (-1, *[1] * (x.spec.ndim - 2))
    if weight is not None:
        x = x * movement.reshape(weight, shape)
    return x if bias is None else x + movement.reshape(bias, shape)
