"""What layers draw while they train: dropout of whole channels, dropout that keeps mean and variance, slopes of rectifiers."""

from __future__ import annotations

from typing import Any

from gradcore._random import default_generator, rand
from gradcore.errors import SpecError
from gradcore.functional import ones, ones_like
from gradcore.ops import elementwise, random

__all__ = ["alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "rrelu"]

Tensor = Any

#: What a unit that is off gives: selu's limit for large negative x.
_OFF = -1.7580993408473766


def _check(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _channels(name: str, input: Tensor, p: float, training: bool, dims: int) -> Tensor:
    """Whole channels zero with probability p, of [N, C, ...] or [C, ...] with ``dims`` dimensions behind C."""
    _check(p)
    shape = input.spec.shape
    if len(shape) not in (dims + 1, dims + 2):
        raise SpecError(f"{name}: Expected {dims + 1}D or {dims + 2}D input, but received a {len(shape)}D input of size "
                        f"{list(shape)}")
    if not training or p == 0:
        return input
    kept = ones(*shape[:len(shape) - dims], *[1] * dims, dtype=input.spec.dtype, device=input.storage.device)
    state = default_generator(input.storage.device).snapshot(kept.spec.numel)
    return input * random.dropout(kept, state, float(p))


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [N, C, L] or [C, L] zero with probability ``p``, the others over 1 - p.

    Tompson et al., arXiv:1411.4280. A number a channel is kept, beside nothing.
    """
    return _channels("dropout1d", input, p, training, 1)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [N, C, H, W] or [C, H, W]; see :func:`dropout1d`."""
    return _channels("dropout2d", input, p, training, 2)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [N, C, D, H, W] or [C, D, H, W]; see :func:`dropout1d`."""
    return _channels("dropout3d", input, p, training, 3)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Units off with probability ``p``, then scaled so that mean 0 and variance 1 stay. Klambauer et al., arXiv:1706.02515.

    Backward keeps 32 bytes that make the mask again.
    """
    _check(p)
    if not training or p == 0:
        return input
    if p == 1:
        return input * 0
    scale = ((1 - p) * (1 + p * _OFF * _OFF)) ** -0.5
    state = default_generator(input.storage.device).snapshot(input.spec.numel)
    on = random.dropout(ones_like(input), state, float(p)) * (1 - p)
    return random.dropout(input, state, float(p)) * (scale * (1 - p)) + ((1 - on) * (scale * _OFF) - scale * _OFF * p)


def rrelu(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False) -> Tensor:
    """x, times a slope below 0: drawn between ``lower`` and ``upper`` for each element in training, else half way between them.

    Xu et al., arXiv:1505.00853. ``inplace`` changes nothing. Backward keeps the slopes, a number an element.
    """
    slope: Any = (lower + upper) / 2
    if training:
        drawn = rand(*input.spec.shape, dtype=input.spec.dtype, device=input.storage.device)
        slope = drawn * float(upper - lower) + float(lower)
    return elementwise.where(elementwise.gt(input, 0), input, input * slope)
