"""Activations as functions, with the names and arguments of ``torch.nn.functional``.

With ``inplace``, whatever else holds the input sees the result in it. That saves no memory: backward keeps either the input or
the result, and the other returns to the pool anyway.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.arguments import warn
from gradcore.engine.operands import number, real
from gradcore.errors import SpecError
from gradcore.functional.mathematics import softmax
from gradcore.functional.overwritten import overwritten
from gradcore.functional.shape import chunk, dim_of, reshape
from gradcore.functional.types import as_weight
from gradcore.ops import activation, movement

Tensor = Any


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x if x > 0, else negative_slope * x, element by element."""
    if inplace:
        return overwritten(leaky_relu, input, negative_slope)
    return activation.leaky_relu(input, as_weight(negative_slope, input))


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x if x > 0, else weight * x. ``weight`` has one element, or one for each channel (dimension 1 of ``input``).

    Raises :class:`SpecError` for another number of weights, and for a matrix. He et al., arXiv:1502.01852.
    """
    if weight.spec.ndim > 1:
        raise SpecError(f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: {list(weight.spec.shape)}")
    count, spec = weight.spec.numel, input.spec
    channels = spec.shape[1] if spec.ndim > 1 else 1
    if count not in (1, channels):
        raise SpecError("Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                        f"{count} and channel size = {channels}.")
    shape = (1,) * spec.ndim if spec.ndim < 2 else (1, count, *(1,) * (spec.ndim - 2))
    return activation.leaky_relu(input, reshape(weight, shape))


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x if x > 0, else alpha * (exp(x) - 1). Clevert et al., arXiv:1511.07289."""
    if inplace:
        return overwritten(elu, input, alpha)
    return activation.elu(input, alpha=real(alpha), scale=1.0, inner=1.0)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """scale * elu(x, alpha), with the constants that preserve mean 0 and variance 1. Klambauer et al., arXiv:1706.02515."""
    if inplace:
        return overwritten(selu, input)
    return activation.elu(input, alpha=1.6732632423543772848170429916717, scale=1.0507009873554804934193349852946, inner=1.0)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x if x > 0, else alpha * (exp(x / alpha) - 1). Raises RuntimeError if ``alpha`` is 0. Barron, arXiv:1704.07483."""
    if inplace:
        return overwritten(celu, input, alpha)
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return activation.elu(input, alpha=real(alpha), scale=1.0, inner=1.0 / alpha)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""
    if inplace:
        return overwritten(silu, input)
    return activation.silu(input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x)). Misra, arXiv:1908.08681."""
    if inplace:
        return overwritten(mish, input)
    return activation.mish(input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x > ``threshold``, for numerical stability."""
    return activation.softplus(input, beta=real(beta), threshold=real(threshold))


def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return activation.softsign(movement.as_float(input))


def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)), without underflow."""
    return activation.logsigmoid(input)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x clamped to [min_val, max_val]; for integer tensors the bounds are truncated to integers.

    Raises ValueError if ``min_val`` exceeds ``max_val``, and :class:`SpecError` for bools, or uint8 with a negative bound.
    """
    if inplace:
        return overwritten(hardtanh, input, min_val, max_val)
    if min_val > max_val:
        raise ValueError(f"min_val cannot be greater than max_val, but got {min_val} and {max_val}")
    if not input.spec.floating:
        kind = input.spec.dtype.kind
        if kind == "b" or (kind == "u" and min_val < 0):
            raise SpecError(f"hardtanh: {input.spec.dtype.name} between {min_val} and {max_val} is not supported")
        min_val, max_val = int(min_val), int(max_val)
    else:
        # The gradient compares the result with the bounds, and the result is rounded to its dtype.
        with np.errstate(over="ignore"):
            min_val, max_val = (float(input.spec.dtype.type(v)) for v in (min_val, max_val))
    return activation.hardtanh(input, low=min_val, high=max_val)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """x clamped to [0, 6]."""
    if inplace:
        return overwritten(relu6, input)
    return hardtanh(input, 0.0, 6.0)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """x / 6 + 1 / 2, clamped to [0, 1]."""
    if inplace:
        return overwritten(hardsigmoid, input)
    return activation.hardsigmoid(input)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * hardsigmoid(x). Howard et al., arXiv:1905.02244."""
    if inplace:
        return overwritten(hardswish, input)
    return activation.hardswish(input)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x where |x| > ``lambd``, else 0."""
    return activation.hardshrink(input, number("hardshrink", "lambd", lambd))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """sign(x) * max(|x| - lambd, 0). Raises RuntimeError if ``lambd`` is negative."""
    lambd = number("softshrink", "lambd", lambd)
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    return activation.softshrink(input, lambd)


def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""
    return input - activation.tanh(movement.as_float(input))


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where x > ``threshold``, else ``value``; for integers both are truncated."""
    threshold, value = number("threshold", "threshold", threshold), number("threshold", "value", value)
    if not input.spec.floating:
        threshold, value = (int(v) if math.isfinite(v) else v for v in (threshold, value))
    if inplace:
        return overwritten(activation.threshold, input, threshold, value)
    return activation.threshold(input, threshold, value)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b), where a and b are the two halves of ``input`` along ``dim``. Raises :class:`SpecError` for an odd size.

    Dauphin et al., arXiv:1612.08083.
    """
    d = dim_of(dim, input)
    if not input.spec.ndim or input.spec.shape[d] % 2:
        raise SpecError(f"Halving dimension must be even, but dimension {d} is size "
                        f"{input.spec.shape[d] if input.spec.ndim else 1}")
    a, b = chunk(input, 2, d)
    return a * activation.sigmoid(b)


def implied_dim(name: str, input: Tensor, dim: int | None) -> int:
    """``dim`` counted from 0; for None, with a warning about the caller's line, that which PyTorch chooses."""
    if dim is None:
        warn(f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument.")
        dim = 0 if input.spec.ndim in (0, 1, 3) else 1
    return dim_of(dim, input)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """softmax(-x) along ``dim``. ``_stacklevel`` has no effect."""
    return softmax(-(input if dtype is None else input.to(dtype)), implied_dim("softmin", input, dim), dtype)


#: Functions of this module that are also functions of the package and methods of a tensor.
METHODS = ("prelu", "hardshrink")

__all__ = ["celu", "elu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish",
           "prelu", "relu6", "selu", "silu", "softmin", "softplus", "softshrink", "softsign", "tanhshrink", "threshold"]
