"""Activations on the CPU, as expressions over pieces; ``ops.activation`` defines them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gradcore.devices.host.extremes import extreme
from gradcore.devices.host.kernel import Array, kernel
from gradcore.devices.host.kernels.elementary import inverse
from gradcore.devices.host.pointwise import is_repeated
from gradcore.devices.host.scratch import keep_where, over, scratched, spread, take_where


@kernel
def relu(x: Array, out: Array) -> None:
    if x.itemsize == 2 and x.dtype.kind not in "iu":
        over(_relu_by_bits, (x,), out, "", last=_infinite(x.dtype))
    else:
        extreme(np.maximum, x, 0, out)


@functools.cache
def _infinite(dtype: np.dtype[Any]) -> int:
    """The bits of a 16-bit float's negative infinity: larger ones are NaN with a sign."""
    return int(np.asarray(-np.inf, dtype).view(np.uint16))


def _relu_by_bits(x: Array, out: Array, *, last: int) -> None:
    bits, made = x.view(np.int16), out.view(np.int16)
    if np.maximum.reduce(x.view(np.uint16)) <= last:
        extreme(np.maximum, bits, 0, made)
    else:
        np.copyto(made, bits)
        np.maximum(made, 0, out=made, where=made.view(np.uint16) <= last)


#: By bytes of a float: the integer dtype of the same size, and its 1.
_WHOLE = {size: (np.dtype(f"i{size}"), np.ones((), f"i{size}")) for size in (4, 8)}


@kernel
def relu_grad(dy: Array, x: Array, out: Array) -> None:
    # By a mask of bits, since 0 times infinity is NaN. As in PyTorch, the cotangent passes where x is NaN.
    if out.itemsize == 2:
        over(_relu_grad_by_bits, (dy, x), out, "?i", last=_infinite(x.dtype))
        return
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


def _relu_grad_by_bits(dy: Array, x: Array, out: Array, mask: Array, bits: Array, *, last: int) -> None:
    np.less_equal(x.view(np.int16), 0, mask)
    whole = x.view(np.uint16)
    if np.maximum.reduce(whole) > last:
        np.logical_and(mask, whole <= last, mask)
    np.copyto(bits, mask)
    np.subtract(bits, 1, bits)
    np.bitwise_and(bits, dy.view(np.int16), out.view(np.int16))


@kernel
def tanh_grad(dy: Array, x: Array, out: Array) -> None:
    np.multiply(x, x, out)
    np.subtract(1, out, out)
    np.multiply(out, dy, out)


@kernel
def sigmoid(x: Array, out: Array) -> None:
    _one_and_exp(x, out)
    inverse(out, out)


def _one_and_exp(x: Array, out: Array) -> None:
    """1 + exp(-x). Where that overflows, 1 divided by it is 0, which is right; by tanh it would be 0 below -17 already."""
    np.negative(x, out)
    np.exp(out, out)
    np.add(out, 1, out)


@kernel
def sigmoid_grad(dy: Array, x: Array, out: Array) -> None:
    np.subtract(1, x, out)
    np.multiply(out, x, out)
    np.multiply(out, dy, out)


def log1p(u: Array, out: Array, lost: Array) -> None:
    """log(1 + u), for u from 0 to 1; ``lost`` is a temporary.

    NumPy has vector instructions for log everywhere, for log1p on some processors only; what rounding 1 + u has lost is added.
    """
    np.add(u, 1, out)
    np.subtract(out, 1, lost)
    np.subtract(lost, u, lost)
    np.divide(lost, out, lost)
    np.log(out, out)
    np.subtract(out, lost, out)


def log1p_exp(x: Array, out: Array, u: Array, w: Array, lost: Array) -> None:
    """log(1 + exp(x)) without overflow; the others are temporaries, and ``out`` may be ``x``."""
    np.abs(x, u)
    np.negative(u, u)
    np.exp(u, u)
    log1p(u, w, lost)
    extreme(np.maximum, x, 0, out)
    np.add(out, w, out)


@scratched("x")
def silu(x: Array, out: Array, s: Array) -> None:
    _one_and_exp(x, s)
    np.divide(x, s, out)


@scratched("xx")
def silu_grad(dy: Array, x: Array, out: Array, s: Array, t: Array) -> None:
    # dy s (1 + x (1 - s))
    sigmoid(x, s)
    np.subtract(1, s, t)
    np.multiply(t, x, t)
    np.add(t, 1, t)
    np.multiply(s, dy, s)
    np.multiply(s, t, out)


def _mish_terms(x: Array, low: Array, e: Array, n: Array) -> None:
    """x up to 20, where mish is x already; e = exp(x); and n = e (e + 2), of which tanh(log(1 + e)) = n / (n + 2)."""
    extreme(np.minimum, x, 20, low)
    np.exp(low, e)
    np.add(e, 2, n)
    np.multiply(n, e, n)


@scratched("xxx")
def mish(x: Array, out: Array, low: Array, e: Array, n: Array) -> None:
    _mish_terms(x, low, e, n)
    np.add(n, 2, low)
    np.divide(n, low, n)
    np.multiply(n, x, out)


@scratched("xxx")
def mish_grad(dy: Array, x: Array, out: Array, low: Array, e: Array, n: Array) -> None:
    # dy r (n + 4 x (n - e) r) with r = 1 / (n + 2)
    _mish_terms(x, low, e, n)
    np.subtract(n, e, e)
    np.multiply(e, low, e)
    np.multiply(e, 4, e)
    np.add(n, 2, low)
    inverse(low, low)
    np.multiply(e, low, e)
    np.add(e, n, e)
    np.multiply(e, low, e)
    np.multiply(e, dy, out)


@scratched("x")
def softsign(x: Array, out: Array, t: Array) -> None:
    np.abs(x, t)
    np.add(t, 1, t)
    np.divide(x, t, out)


@scratched("x")
def softsign_grad(dy: Array, x: Array, out: Array, t: Array) -> None:
    np.abs(x, t)
    np.add(t, 1, t)
    np.square(t, t)
    np.divide(dy, t, out)


@scratched("xxxx")
def logsigmoid(x: Array, out: Array, s: Array, *room: Array) -> None:
    np.negative(x, s)
    log1p_exp(s, s, *room)
    np.negative(s, out)


@scratched("x")
def logsigmoid_grad(dy: Array, x: Array, out: Array, t: Array) -> None:
    np.exp(x, t)
    np.add(t, 1, t)
    np.divide(dy, t, out)


def _ramp(x: Array, out: Array) -> None:
    """x + 3, kept between 0 and 6."""
    np.add(x, 3, out)
    np.clip(out, 0, 6, out)


@scratched("x")
def hardsigmoid(x: Array, out: Array, t: Array) -> None:
    _ramp(x, t)
    np.divide(t, 6, out)


@scratched("xi??")
def hardsigmoid_grad(dy: Array, x: Array, out: Array, t: Array, bits: Array, mask: Array, other: Array) -> None:
    np.greater(x, -3, mask)
    np.less(x, 3, other)
    np.logical_and(mask, other, mask)
    spread(mask, bits)
    np.divide(dy, 6, t)
    keep_where(bits, t, out)


@scratched("x")
def hardswish(x: Array, out: Array, t: Array) -> None:
    _ramp(x, t)
    np.multiply(t, x, t)
    np.divide(t, 6, out)


@scratched("xii?")
def hardswish_grad(dy: Array, x: Array, out: Array, t: Array, bits: Array, room: Array, mask: Array) -> None:
    np.divide(x, 3, t)
    np.add(t, 0.5, t)
    np.less(x, 3, mask)
    spread(mask, bits)
    np.multiply(t, dy, t)
    take_where(bits, room, t, dy, t)
    np.less_equal(x, -3, mask)
    np.logical_not(mask, mask)
    spread(mask, bits)
    keep_where(bits, t, out)


#: How many times as many elements there are than slopes that are looked at before a call.
_FEWER = 16


def _number(x: Any) -> Any:
    """An operand, as a number if it is the same for all elements."""
    return x.flat[0].item() if isinstance(x, np.ndarray) and x.size and is_repeated(x) else x


@kernel
def leaky_relu(x: Array, slope: Any, out: Array) -> None:
    slope = _number(slope)
    if not isinstance(slope, np.ndarray) and 0 < slope <= 1:
        over(_leaky, (x,), out, "x", slope=slope)
    elif isinstance(slope, np.ndarray) and slope.dtype == x.dtype == out.dtype and 0 < _FEWER * slope.size <= x.size and (
            slope.min() > 0 and slope.max() <= 1) and not np.may_share_memory(x, out):
        # One for each channel.
        np.multiply(x, slope, out)
        np.maximum(x, out, out=out)
    else:
        # Not as a sum of both parts, of which one may be 0 times infinity.
        over(_leaky_by, (x, slope), out, "xii?")


def _leaky(x: Array, out: Array, t: Array, *, slope: float) -> None:
    np.multiply(x, slope, t)
    np.maximum(x, t, out=out)


def _leaky_by(x: Array, slope: Any, out: Array, t: Array, bits: Array, room: Array, mask: Array) -> None:
    np.greater(x, 0, mask)
    spread(mask, bits)
    np.multiply(x, slope, t)
    take_where(bits, room, x, t, out)


@kernel
def leaky_relu_grad(dy: Array, x: Array, slope: Any, out: Array) -> None:
    slope = _number(slope)
    if isinstance(slope, np.ndarray) or not 0 <= slope <= 1:
        over(_leaky_grad_by, (dy, x, slope), out, "xii?")
    else:
        over(_leaky_grad, (dy, x), out, "x", slope=slope)


def _leaky_grad(dy: Array, x: Array, out: Array, t: Array, *, slope: float) -> None:
    np.greater(x, 0, t)
    extreme(np.maximum, t, slope, t)
    np.multiply(t, dy, out)


def _leaky_grad_by(dy: Array, x: Array, slope: Any, out: Array, t: Array, bits: Array, room: Array, mask: Array) -> None:
    np.greater(x, 0, mask)
    spread(mask, bits)
    np.multiply(dy, slope, t)
    take_where(bits, room, dy, t, out)
