"""Batch, layer, group, instance and root-mean-square normalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradcore.engine.modes import no_grad
from gradcore.engine.operands import number, real
from gradcore.engine.state import local
from gradcore.errors import SpecError
from gradcore.functional import add, mean, rsqrt
from gradcore.functional.folding import var
from gradcore.functional.types import finfo
from gradcore.ops import creation, movement, norms

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]

Tensor = Any
_FLOAT32 = np.dtype(np.float32)


def _is_mixed(input: Tensor, *others: Tensor | None) -> bool:
    """Is a norm's input of 16 bits, and are its other tensors float32? Then, as in PyTorch, all of it is computed in float32.

    Under autocast the op does this itself, and its result stays float32.
    """
    region = local.state.autocast
    given = [t.spec.dtype for t in others if t is not None]
    return (input.spec.narrow and bool(given) and all(dtype == _FLOAT32 for dtype in given)
            and (region is None or input.storage.device.type not in region.dtypes))


def batch_norm(input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
               bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) for each channel of [N, C, ...], times weight, plus bias.

    In training, mean and (biased) variance are the batch's, and ``running_*`` become (1 - momentum) * running + momentum *
    batch, with the unbiased variance; otherwise mean and variance are the running ones. For a 16-bit input, the other tensors
    may be float32. Raises ValueError for one of the running ones without the other. Ioffe and Szegedy, arXiv:1502.03167.
    """
    if (running_mean is None) is not (running_var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None, but got "
                         f"{'no running_mean' if running_mean is None else 'no running_var'}")
    if weight is None and bias is not None and _is_mixed(input, running_mean, running_var, bias):
        return movement.cast_to(batch_norm(movement.cast(input, dtype=_FLOAT32), running_mean, running_var, weight, bias,
                                           training, momentum, eps), input.spec)
    if training and not input.spec.numel and input.spec.ndim > 1:
        # An empty batch has no statistics, and leaves the running ones as they are.
        dtype = input.spec.widened().dtype
        mean, rstd = (creation.full(v, shape=input.spec.shape[1:2], dtype=dtype, device=input.storage.device) for v in (0, 1))
        return norms.batch_norm_apply(input, weight, bias, mean, rstd)
    if training:
        return norms.batch_norm(input, weight, bias, running_mean, running_var, momentum=real(momentum), eps=real(eps))
    if running_mean is None or running_var is None:
        raise SpecError("Expected running_mean and running_var to be defined when training=False")
    mean, var = (movement.cast_to(v, v.spec.widened()) for v in (running_mean, running_var))
    return norms.batch_norm_apply(input, weight, bias, mean, rsqrt(add(var, number("batch_norm", "eps", eps))))


def layer_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the last dimensions, of shape ``normalized_shape``, times weight, plus bias.

    For a 16-bit input, weight and bias may be float32. Ba, Kiros and Hinton, arXiv:1607.06450.
    """
    return _in_weights_dtype(norms.layer_norm, input, weight, bias, dims=_dims_of(input, normalized_shape), eps=real(eps))


def _dims_of(input: Tensor, normalized_shape: Sequence[int]) -> int:
    """The number of normalized dimensions. Raises :class:`SpecError` if they are not the last of the input."""
    shape = tuple(normalized_shape)
    if not shape or input.spec.shape[input.spec.ndim - len(shape):] != shape:
        raise SpecError(f"Given normalized_shape={list(shape)}, expected input with shape "
                        f"[{', '.join(['*', *map(str, shape)])}], but got input of size{list(input.spec.shape)}")
    return len(shape)


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimensions, of shape ``normalized_shape``, times ``weight``.

    ``eps`` is by default the machine epsilon of the dtype of the sums. For a 16-bit input, ``weight`` may be float32. Backward
    keeps input, weight and one number a row. Zhang and Sennrich, arXiv:1910.07467.
    """
    least = float(finfo(np.promote_types(np.float32, input.spec.dtype)).eps) if eps is None else real(eps)
    return _in_weights_dtype(norms.rms_norm, input, weight, dims=_dims_of(input, normalized_shape), eps=least)


def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) over each group of neighboring channels of [N, C, ...], times weight [C], plus bias [C].

    Backward keeps input, weight and two numbers a group. For a 16-bit input, weight and bias may be float32. Wu and He,
    arXiv:1803.08494. Raises :class:`SpecError` for channels that do not divide into the groups.
    """
    return _in_weights_dtype(norms.group_norm, input, weight, bias, groups=num_groups, eps=real(eps))


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
    if running_mean is not None and running_var is not None:
        rows = movement.reshape(input, (*shape[:2], math.prod(shape[2:])))
        with no_grad():
            for running, found in ((running_mean, mean(rows, 2)), (running_var, var(rows, 2))):
                running.copy_(running * (1 - momentum) + mean(found, 0) * momentum)
    groups = shape[1] if len(shape) > 1 else 1
    return _in_weights_dtype(norms.group_norm, input, weight, bias, groups=groups, eps=real(eps))


def _in_weights_dtype(norm: Callable[..., Tensor], input: Tensor, *weights: Tensor | None, **attrs: Any) -> Tensor:
    """The norm in the input's dtype, computed in float32 where the weights are."""
    if not _is_mixed(input, *weights):
        return norm(input, *weights, **attrs)
    return movement.cast_to(norm(movement.cast(input, dtype=_FLOAT32), *weights, **attrs), input.spec)
