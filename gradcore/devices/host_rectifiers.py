"""Activations on the CPU, as expressions over pieces; ``ops.rectifiers`` defines them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.host_extremes import extreme
from gradcore.devices.host_kernels import Array, kernel
from gradcore.devices.host_pointwise import choose, keep, pointwise


@kernel
def relu(x: Array, out: Array) -> None:
    extreme(np.maximum, x, 0, out)


#: By bytes of a float: the integer dtype of the same size, and its 1.
_WHOLE = {size: (np.dtype(f"i{size}"), np.ones((), f"i{size}")) for size in (2, 4, 8)}


@kernel
def relu_grad(dy: Array, x: Array, out: Array) -> None:
    # By a mask of bits, since 0 times infinity is NaN. As in PyTorch, the cotangent passes where x is NaN.
    whole, one = _WHOLE[out.itemsize]
    bits = out.view(whole)
    if np.may_share_memory(x, out):
        # Compared as floats, since NumPy would copy overlapping arrays of different dtypes. The shift spreads the sign bit of
        # -1.0 over the element; 0.0 has none.
        np.less_equal(x, 0, out)
        np.subtract(out, 1, out)
        np.right_shift(bits, 8 * out.itemsize - 1, bits)
    else:
        np.less_equal(x, 0, bits)
        np.subtract(bits, one, bits)
    np.bitwise_and(bits, dy.view(whole), bits)


@kernel
def tanh_grad(dy: Array, x: Array, out: Array) -> None:
    np.multiply(x, x, out)
    np.subtract(1, out, out)
    np.multiply(out, dy, out)


@kernel
def sigmoid(x: Array, out: Array) -> None:
    # Where exp(-x) overflows the result is 0, which is right; by tanh it would be 0 below -17 already.
    np.negative(x, out)
    np.exp(out, out)
    np.add(out, 1, out)
    np.reciprocal(out, out)


@kernel
def sigmoid_grad(dy: Array, x: Array, out: Array) -> None:
    np.subtract(1, x, out)
    np.multiply(out, x, out)
    np.multiply(out, dy, out)


def _sigmoid(x: Array) -> Any:
    # Where exp(-x) overflows to infinity, the result 0 is right.
    return 1 / (1 + np.exp(-x))


def _log1p_exp(x: Array) -> Any:
    """log(1 + exp(x)) without overflow.

    NumPy has vector instructions for log everywhere, for log1p on some processors only; the second term is what rounding 1 + u
    has lost.
    """
    u = np.abs(x)
    np.negative(u, u)
    np.exp(u, u)
    w = 1 + u
    lost = w - 1
    np.subtract(lost, u, lost)
    np.divide(lost, w, lost)
    np.log(w, w)
    np.subtract(w, lost, w)
    return np.add(np.maximum(x, 0, out=u), w, w)


def _expm1(x: Array) -> Any:
    """exp(x) - 1 for x <= 0, for the same reason by tanh(x / 2)."""
    t = x / 2
    np.tanh(t, t)
    below = 1 - t
    np.multiply(t, 2, t)
    return np.divide(t, below, t)


@pointwise
def silu(x: Array) -> Any:
    return x * _sigmoid(x)


@pointwise
def silu_grad(dy: Array, x: Array) -> Any:
    s = _sigmoid(x)
    return dy * s * (1 + x * (1 - s))


@pointwise
def mish(x: Array) -> Any:
    return x * np.tanh(_log1p_exp(x))


@pointwise
def mish_grad(dy: Array, x: Array) -> Any:
    t = np.tanh(_log1p_exp(x))
    return dy * (t + x * _sigmoid(x) * (1 - t * t))


@pointwise
def softsign(x: Array) -> Any:
    return x / (1 + np.abs(x))


@pointwise
def softsign_grad(dy: Array, x: Array) -> Any:
    return dy / np.square(1 + np.abs(x))


@pointwise
def logsigmoid(x: Array) -> Any:
    return -_log1p_exp(-x)


@pointwise
def logsigmoid_grad(dy: Array, x: Array) -> Any:
    return dy * _sigmoid(-x)


@pointwise
def hardsigmoid(x: Array) -> Any:
    return np.clip(x + 3, 0, 6) / 6


@pointwise
def hardsigmoid_grad(dy: Array, x: Array) -> Any:
    return keep((x > -3) & (x < 3), dy / 6)


@pointwise
def hardswish(x: Array) -> Any:
    return x * np.clip(x + 3, 0, 6) / 6


@pointwise
def hardswish_grad(dy: Array, x: Array) -> Any:
    return keep(~(x <= -3), dy * choose(x < 3, x / 3 + 0.5, 1))


@pointwise
def leaky_relu(x: Array, slope: Any) -> Any:
    if not isinstance(slope, np.ndarray) and 0 < slope <= 1:
        return np.maximum(x, x * slope)
    return np.maximum(x, 0) + np.minimum(x, 0) * slope


@pointwise
def leaky_relu_grad(dy: Array, x: Array, slope: Array) -> Any:
    if isinstance(slope, np.ndarray) or not 0 <= slope <= 1:
        return choose(x > 0, dy, dy * slope)
    factor = np.greater(x, 0).astype(x.dtype)
    np.maximum(factor, slope, out=factor)
    return np.multiply(factor, dy, factor)


@pointwise
def hardshrink(x: Array, lambd: Array) -> Any:
    return keep(~(np.abs(x) <= lambd), x)


@pointwise
def softshrink(x: Array, lambd: Array) -> Any:
    return keep(~(np.abs(x) <= lambd), x - np.copysign(lambd, x))


@pointwise
def shrink_grad(dy: Array, x: Array, lambd: Array) -> Any:
    return keep(~(np.abs(x) <= lambd), dy)


@pointwise
def threshold(x: Array, threshold: Array, value: Array) -> Any:
    return np.where(x <= threshold, value, x)


@pointwise
def elu(x: Array, *, alpha: float, scale: float, inner: float) -> Any:
    return choose(x > 0, scale * x, scale * alpha * _expm1(np.minimum(x, 0) * inner))


@pointwise
def elu_grad(dy: Array, x: Array, *, alpha: float, scale: float, inner: float) -> Any:
    return dy * choose(x <= 0, scale * alpha * inner * np.exp(np.minimum(x, 0) * inner), scale)


@pointwise
def softplus(x: Array, *, beta: float, threshold: float) -> Any:
    return choose(x * beta > threshold, x, _log1p_exp(x * beta) / beta)


@pointwise
def softplus_grad(dy: Array, x: Array, *, beta: float, threshold: float) -> Any:
    return choose(x * beta > threshold, dy, dy * _sigmoid(x * beta))


@kernel
def hardtanh(x: Array, out: Array, *, low: float, high: float) -> None:
    extreme(np.maximum, x, low, out)
    extreme(np.minimum, out, high, out)


@pointwise
def hardtanh_grad(dy: Array, x: Array, *, low: float, high: float) -> Any:
    return keep(~((x <= low) | (x >= high)), dy)
