"""Channel dropout, alpha dropout, and the randomized leaky ReLU."""

from __future__ import annotations

from typing import Any

from gradcore._random import default_generator, rand
from gradcore.engine.operands import number
from gradcore.errors import SpecError
from gradcore.functional import ones, ones_like
from gradcore.functional.overwritten import overwritten
from gradcore.ops import elementwise, random

__all__ = ["alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout", "rrelu"]

Tensor = Any

#: The value of a dropped unit: the limit of selu for x to minus infinity.
_OFF = -1.7580993408473766


def probability(p: float, function: str = "dropout", name: str = "p") -> float:
    """A probability of dropout as a float. Raises ValueError for one outside [0, 1], TypeError as :func:`number` does."""
    p = number(function, name, p)
    if not 0 <= p <= 1:
        raise SpecError(f"dropout probability has to be between 0 and 1, but got {p}")
    return p


def _channels(name: str, input: Tensor, p: float, training: bool, dims: int, inplace: bool) -> Tensor:
    """Channel dropout of [N, C, ...] or [C, ...], with ``dims`` dimensions after C."""
    p = probability(p, name)
    shape = input.spec.shape
    if len(shape) not in (dims + 1, dims + 2):
        raise SpecError(f"{name}: Expected {dims + 1}D or {dims + 2}D input, but received a {len(shape)}D input of size "
                        f"{list(shape)}")
    if not training or p == 0:
        return input
    if inplace:
        return overwritten(lambda x: _channels(name, x, p, True, dims, False), input)
    kept = ones((*shape[:len(shape) - dims], *[1] * dims), dtype=input.spec.dtype, device=input.storage.device)
    state = default_generator(input.storage.device).snapshot(kept.spec.numel)
    return input * random.dropout(kept, state, p)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """In training, zero whole channels of [N, C, L] or [C, L] with probability ``p``, and divide the others by 1 - p.

    Tompson et al., arXiv:1411.4280. Backward keeps one number per channel.
    """
    return _channels("dropout1d", input, p, training, 1, inplace)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Channel dropout of [N, C, H, W] or [C, H, W]; see :func:`dropout1d`."""
    return _channels("dropout2d", input, p, training, 2, inplace)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Channel dropout of [N, C, D, H, W] or [C, D, H, W]; see :func:`dropout1d`."""
    return _channels("dropout3d", input, p, training, 3, inplace)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that preserves mean 0 and variance 1, for :func:`selu` networks. Klambauer et al., arXiv:1706.02515.

    Backward keeps 32 bytes of generator state, to draw the mask again.
    """
    p = probability(p, "alpha_dropout")
    if not training or p == 0:
        return input
    if inplace:
        return overwritten(alpha_dropout, input, p, True)
    if p == 1:
        return input * 0
    scale = ((1 - p) * (1 + p * _OFF * _OFF)) ** -0.5
    state = default_generator(input.storage.device).snapshot(input.spec.numel)
    # First, so that the mask is gone when the input is scaled.
    shift = (1 - random.dropout(ones_like(input), state, p) * (1 - p)) * (scale * _OFF) - scale * _OFF * p
    return random.dropout(input, state, p) * (scale * (1 - p)) + shift


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """:func:`alpha_dropout` of whole channels of [N, C, ...]. Backward keeps one number per channel."""
    p = probability(p, "feature_alpha_dropout")
    if not training or p == 0 or not input.spec.numel:
        return input
    if inplace:
        return overwritten(feature_alpha_dropout, input, p, True)
    if p == 1:
        return input * 0
    shape = input.spec.shape
    if len(shape) < 2:
        raise SpecError(f"Feature dropout requires at least 2 dimensions in the input, but got {list(shape)}")
    scale = ((1 - p) * (1 + p * _OFF * _OFF)) ** -0.5
    kept = ones(*shape[:2], *[1] * (len(shape) - 2), dtype=input.spec.dtype, device=input.storage.device)
    on = random.dropout(kept, default_generator(input.storage.device).snapshot(kept.spec.numel), p) * (1 - p)
    return input * (on * scale) + ((1 - on) * (scale * _OFF) - scale * _OFF * p)


def rrelu(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False) -> Tensor:
    """x if x > 0, else slope * x; the slope is uniform in [lower, upper] for each element in training, else their mean.

    Xu et al., arXiv:1505.00853. Backward keeps the slopes, one number per element.
    """
    if inplace:
        return overwritten(rrelu, input, lower, upper, training)
    lower, upper = number("rrelu", "lower", lower), number("rrelu", "upper", upper)
    if lower > upper:
        raise SpecError(f"rrelu: Lower bound should be less than or equal to the upper bound, but got {lower} and {upper}")
    slope: Any = (lower + upper) / 2
    if training:
        slope = rand(input.spec.shape, dtype=input.spec.dtype, device=input.storage.device) * (upper - lower) + lower
    return elementwise.where(elementwise.gt(input, 0), input, input * slope)
