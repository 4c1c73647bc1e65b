"""Activations on the CPU, as expressions over pieces; ``ops.rectifiers`` defines them."""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import numpy as np

from gradcore.devices.host_extremes import extreme
from gradcore.devices.host_kernels import Array, kernel, pieces
from gradcore.devices.host_pointwise import ROOM, choose, is_repeated, keep, pointwise, pointwise_with, walk


@kernel
def relu(x: Array, out: Array) -> None:
    extreme(np.maximum, x, 0, out)


#: By bytes of a float: the integer dtype of the same size, and its 1.
_WHOLE = {size: (np.dtype(f"i{size}"), np.ones((), f"i{size}")) for size in (4, 8)}


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


def _sigmoid(x: Array) -> Array:
    t: Array = np.empty_like(x)
    sigmoid(x, t)
    return t


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
    extreme(np.maximum, x, 0, u)
    return np.add(u, w, w)


@pointwise_with(1)
def silu(x: Array) -> Any:
    s = _sigmoid(x)
    return np.multiply(s, x, s)


@pointwise_with(2)
def silu_grad(dy: Array, x: Array) -> Any:
    # dy s (1 + x (1 - s))
    s = _sigmoid(x)
    t = 1 - s
    np.multiply(t, x, t)
    np.add(t, 1, t)
    np.multiply(s, dy, s)
    return np.multiply(s, t, s)


def _mish_terms(x: Array) -> tuple[Array, Array, Array]:
    """x up to 20, where mish is x already; e = exp(x); and n = e (e + 2), of which tanh(log(1 + e)) = n / (n + 2)."""
    low = np.empty_like(x)
    extreme(np.minimum, x, 20, low)
    e: Array = np.exp(low)
    n: Array = e + 2
    return low, e, np.multiply(n, e, n)


@pointwise_with(3)
def mish(x: Array) -> Any:
    below, _, n = _mish_terms(x)
    np.add(n, 2, below)
    np.divide(n, below, n)
    return np.multiply(n, x, n)


@pointwise_with(4)
def mish_grad(dy: Array, x: Array) -> Any:
    # dy r (n + 4 x (n - e) r) with r = 1 / (n + 2)
    low, e, n = _mish_terms(x)
    np.subtract(n, e, e)
    np.multiply(e, low, e)
    np.multiply(e, 4, e)
    np.add(n, 2, low)
    np.reciprocal(low, low)
    np.multiply(e, low, e)
    np.add(e, n, e)
    np.multiply(e, low, e)
    return np.multiply(e, dy, e)


@pointwise_with(1)
def softsign(x: Array) -> Any:
    t = np.abs(x)
    np.add(t, 1, t)
    return np.divide(x, t, t)


@pointwise_with(1)
def softsign_grad(dy: Array, x: Array) -> Any:
    t = np.abs(x)
    np.add(t, 1, t)
    np.square(t, t)
    return np.divide(dy, t, t)


@pointwise_with(4)
def logsigmoid(x: Array) -> Any:
    t = _log1p_exp(-x)
    return np.negative(t, t)


@pointwise_with(2)
def logsigmoid_grad(dy: Array, x: Array) -> Any:
    s = _sigmoid(-x)
    return np.multiply(s, dy, s)


def _ramp(x: Array) -> Array:
    """x + 3, kept between 0 and 6."""
    t = x + 3
    return np.clip(t, 0, 6, out=t)


@pointwise_with(1)
def hardsigmoid(x: Array) -> Any:
    t = _ramp(x)
    return np.divide(t, 6, t)


@pointwise_with(2)
def hardsigmoid_grad(dy: Array, x: Array) -> Any:
    return keep((x > -3) & (x < 3), dy / 6)


@pointwise_with(1)
def hardswish(x: Array) -> Any:
    t = _ramp(x)
    np.multiply(t, x, t)
    return np.divide(t, 6, t)


@pointwise_with(3)
def hardswish_grad(dy: Array, x: Array) -> Any:
    t = x / 3
    np.add(t, 0.5, t)
    t = choose(x < 3, t, 1)
    np.multiply(t, dy, t)
    return keep(~(x <= -3), t)


def _usual(slope: Any, out: Array, *operands: Array) -> bool:
    """Is the slope a number between 0 and 1, and can ``out`` be written to before all operands have been read?"""
    return not isinstance(slope, np.ndarray) and 0 < slope <= 1 and out.flags.c_contiguous and all(
        a.dtype == out.dtype and a.shape == out.shape and a.flags.c_contiguous and not np.may_share_memory(a, out)
        for a in operands)


def _number(x: Any) -> Any:
    """An operand, as a number if it is the same for all elements."""
    return x.flat[0].item() if isinstance(x, np.ndarray) and x.size and is_repeated(x) else x


@kernel
def leaky_relu(x: Array, slope: Any, out: Array) -> None:
    slope = _number(slope)
    if not _usual(slope, out, x):
        walk(_leaky, (x, slope), out, ROOM // 3)
        return
    for xs, outs in pieces(x, out):
        np.multiply(xs, slope, outs)
        np.maximum(xs, outs, out=outs)


def _leaky(x: Array, slope: Any) -> Any:
    if not isinstance(slope, np.ndarray) and 0 < slope <= 1:
        return np.maximum(x, x * slope)
    return np.maximum(x, 0) + np.minimum(x, 0) * slope


@kernel
def leaky_relu_grad(dy: Array, x: Array, slope: Any, out: Array) -> None:
    slope, factor = _number(slope), _number(dy)
    varied = isinstance(factor, np.ndarray)
    if not _usual(slope, out, x, *[dy] * varied):
        walk(_leaky_grad, (dy, x, slope), out, ROOM // 3)
        return
    for (xs, outs), gs in zip(pieces(x, out), chain.from_iterable(pieces(dy)) if varied else repeat(factor), strict=False):
        np.greater(xs, 0, outs)
        extreme(np.maximum, outs, slope, outs)
        np.multiply(outs, gs, outs)


def _leaky_grad(dy: Array, x: Array, slope: Any) -> Any:
    if isinstance(slope, np.ndarray) or not 0 <= slope <= 1:
        return choose(x > 0, dy, dy * slope)
    factor = np.greater(x, 0).astype(x.dtype)
    np.maximum(factor, slope, out=factor)
    return np.multiply(factor, dy, factor)


@pointwise_with(2)
def hardshrink(x: Array, lambd: Array) -> Any:
    return keep(~(np.abs(x) <= lambd), x)


@pointwise_with(2)
def softshrink(x: Array, lambd: Any) -> Any:
    t = np.clip(x, -lambd, lambd)
    return np.subtract(x, t, t)


@pointwise_with(2)
def shrink_grad(dy: Array, x: Array, lambd: Array) -> Any:
    return keep(~(np.abs(x) <= lambd), dy)


@pointwise
def threshold(x: Array, threshold: Array, value: Array) -> Any:
    return np.where(x <= threshold, value, x)


def _side(ufunc: Any, x: Array, factor: float) -> Array:
    """``factor`` times the positive or the negative part of x, by np.maximum, np.minimum or np.fmin."""
    t = np.empty_like(x)
    extreme(ufunc, x, 0, t)
    return t if factor == 1 else np.multiply(t, factor, t)


@pointwise_with(2)
def elu(x: Array, *, alpha: float, scale: float, inner: float) -> Any:
    # exp(x) - 1 = 2 t / (1 - t) with t = tanh(x / 2), for which NumPy has vector instructions everywhere. It is 0 at 0, so the
    # sides add up.
    t = _side(np.minimum, x, inner / 2)
    np.tanh(t, t)
    other = 1 - t
    np.multiply(t, 2 * scale * alpha, t)
    np.divide(t, other, t)
    del other
    return np.add(t, _side(np.maximum, x, scale), t)


@pointwise_with(3)
def elu_grad(dy: Array, x: Array, *, alpha: float, scale: float, inner: float) -> Any:
    # As in PyTorch, the cotangent passes where x is NaN.
    t = _side(np.fmin, x, inner)
    np.exp(t, t)
    steep = scale * alpha * inner
    if steep != 1:
        np.multiply(t, steep, t)
    # If the slope is the same on both sides of 0, exp(0) is right for positive x.
    if abs(steep - scale) > 1e-15:
        t = choose(x <= 0, t, scale)
    return np.multiply(t, dy, t)


def _beyond(x: Array, threshold: float) -> Any:
    """Where softplus takes ``x`` itself; None if that is what it rounds to there anyway, as exp(-x) is less than half a bit."""
    return None if x.itemsize < 8 and threshold >= 17 else x > threshold


@pointwise_with(4)
def softplus(x: Array, *, beta: float, threshold: float) -> Any:
    t = x if beta == 1 else x * beta
    beyond = _beyond(t, threshold)
    t = _log1p_exp(t)
    if beta != 1:
        np.divide(t, beta, t)
    return t if beyond is None else choose(beyond, x, t)


@pointwise_with(3)
def softplus_grad(dy: Array, x: Array, *, beta: float, threshold: float) -> Any:
    t = x if beta == 1 else x * beta
    beyond = _beyond(t, threshold)
    t = _sigmoid(t)
    np.multiply(t, dy, t)
    return t if beyond is None else choose(beyond, dy, t)


@kernel
def hardtanh(x: Array, out: Array, *, low: float, high: float) -> None:
    extreme(np.maximum, x, low, out)
    extreme(np.minimum, out, high, out)


@pointwise_with(2)
def hardtanh_grad(dy: Array, x: Array, *, low: float, high: float) -> Any:
    return keep(~((x <= low) | (x >= high)), dy)
