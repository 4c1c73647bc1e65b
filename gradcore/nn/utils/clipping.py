"""Gradient clipping. Pascanu et al., On the difficulty of training recurrent neural networks, arXiv:1211.5063."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np

from gradcore import functional
from gradcore._tensor import Tensor as _Tensor
from gradcore.dtypes import join
from gradcore.engine.modes import no_grad
from gradcore.errors import SpecError
from gradcore.ops import elementwise, optimizer

Tensor = Any


def _listed(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    if hasattr(parameters, "parameters"):
        raise TypeError(f"expected tensors, but got the module {type(parameters).__name__}: pass its parameters()")
    return [parameters] if isinstance(parameters, _Tensor) else list(parameters)


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [p.grad for p in _listed(parameters) if p.grad is not None]


@no_grad()
def get_total_norm(tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False,
                   foreach: bool | None = None) -> Tensor:
    """The norm of all tensors together, as one vector, 0-d, without copies of contiguous ones; 0 for no tensors.

    With ``error_if_nonfinite``, the norm is read on the host, and RuntimeError raised if it is not finite. Raises
    :class:`SpecError` for a tensor of another type than a floating one.
    """
    tensors = _listed(tensors)
    if not tensors:
        return functional.zeros(())
    for other in (t.spec.dtype for t in tensors if not t.spec.floating):
        raise SpecError(f"get_total_norm: expected tensors of floating types, but got {other.name}")
    device, dtype = tensors[0].storage.device, reduce(join, {t.spec.dtype for t in tensors})
    # The powers of numbers that fit in 16 bits need not.
    wide = join(dtype, np.dtype(np.float32))
    p = float(norm_type)
    if p == 2:
        groups: dict[Any, list[Tensor]] = {}
        for t in tensors:
            groups.setdefault((t.storage.device, t.spec.dtype), []).append(t)
        parts = [optimizer.square_sum(same) for same in groups.values()]
    else:
        parts = [_power_sum(t.to(dtype=wide) if t.spec.dtype.itemsize < 4 else t, p) for t in tensors]
    parts = [part.to(device=device, dtype=wide) for part in parts]
    total, *others = parts
    if not p:
        # As in PyTorch, the norm of the tensors' norms: how many are not all 0.
        total = functional.sum(functional.stack(parts).ne(0).to(dtype=wide))
    elif others:
        total = _extreme(functional.stack(parts), p) if math.isinf(p) else functional.sum(functional.stack(parts))
    if p and not math.isinf(p):
        total = elementwise.sqrt(total) if p == 2 else elementwise.pow(total, 1 / p)
    total = total.to(dtype=dtype)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(f"The total norm of order {p} for gradients from `parameters` is non-finite, so it cannot be "
                           "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
                           "`error_if_nonfinite=False`")
    return total


def _power_sum(x: Tensor, p: float) -> Tensor:
    """The sum of |x|^p, for an infinite p the largest |x|, or the smallest, and for 0 one that is 0 if all elements are."""
    if not x.spec.numel:
        return functional.zeros((), dtype=x.spec.dtype, device=x.storage.device)
    size = elementwise.abs(x)
    if not p:
        return functional.amax(size)
    return _extreme(size, p) if math.isinf(p) else functional.sum(elementwise.pow(size, p))


def _extreme(x: Tensor, p: float) -> Tensor:
    return functional.amax(x) if p > 0 else functional.amin(x)


@no_grad()
def clip_grads_with_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor,
                          foreach: bool | None = None) -> None:
    """Multiply every gradient by min(1, max_norm / (total_norm + 1e-6)), in place."""
    factor = elementwise.clamp(float(max_norm) / (total_norm + 1e-6), None, 1.0)
    # Those of one device and dtype at once, but tensors over the same memory one after the other.
    groups: dict[Any, list[Tensor]] = {}
    before = Counter[int]()
    for grad in _gradients(parameters):
        if grad.spec.contiguous:
            groups.setdefault((grad.device, grad.dtype, before[id(grad.storage)]), []).append(grad)
            before[id(grad.storage)] += 1
        else:
            grad.mul_(factor.to(device=grad.device, dtype=grad.dtype))
    for (device, dtype, _), same in groups.items():
        optimizer.scale_(same, factor.to(device=device, dtype=dtype))


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False, foreach: bool | None = None) -> Tensor:
    """Scale the gradients, in place, so that the norm of all of them as one vector is at most ``max_norm``.

    Returns the norm before scaling, 0-d, without reading it on the host. ``foreach`` has no effect.
    """
    parameters = _listed(parameters)
    total = get_total_norm(_gradients(parameters), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, total)
    return total


def clip_grad_norm(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0,
                   error_if_nonfinite: bool = False, foreach: bool | None = None) -> Tensor:
    """:func:`clip_grad_norm_`, by a deprecated name."""
    warnings.warn("`torch.nn.utils.clip_grad_norm` is now deprecated in favor of `torch.nn.utils.clip_grad_norm_`.",
                  FutureWarning, stacklevel=2)
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


@no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Clamp every element of the gradients to [-clip_value, clip_value], in place."""
    for grad in _gradients(parameters):
        grad.clamp_(-float(clip_value), float(clip_value))
