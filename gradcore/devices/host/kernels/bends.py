"""Activations of the CPU that bend at a number: shrinking ones, elu, softplus, hardtanh; ``ops.activation`` defines them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.host.extremes import extreme
from gradcore.devices.host.kernel import Array, kernel
from gradcore.devices.host.kernels.rectifiers import log1p_exp, sigmoid
from gradcore.devices.host.scratch import keep_where, scratched, spread, take_where


@scratched("xi?")
def hardshrink(x: Array, lambd: Any, out: Array, t: Array, bits: Array, mask: Array) -> None:
    shrink_grad(x, x, lambd, out, t, bits, mask)


@scratched("xx")
def softshrink(x: Array, lambd: Any, out: Array, t: Array, low: Array) -> None:
    np.clip(x, np.negative(lambd, low) if isinstance(lambd, np.ndarray) else -lambd, lambd, t)
    np.subtract(x, t, out)


@scratched("xi?")
def shrink_grad(dy: Array, x: Array, lambd: Any, out: Array, t: Array, bits: Array, mask: Array) -> None:
    np.abs(x, t)
    np.less_equal(t, lambd, mask)
    np.logical_not(mask, mask)
    spread(mask, bits)
    keep_where(bits, dy, out)


@scratched("ii?")
def threshold(x: Array, threshold: Any, value: Any, out: Array, bits: Array, room: Array, mask: Array) -> None:
    np.less_equal(x, threshold, mask)
    spread(mask, bits)
    take_where(bits, room, value, x, out)


def _side(ufunc: Any, x: Array, factor: float, out: Array) -> None:
    """``factor`` times the positive or the negative part of x, by np.maximum, np.minimum or np.fmin."""
    extreme(ufunc, x, 0, out)
    if factor != 1:
        np.multiply(out, factor, out)


@scratched("xx")
def elu(x: Array, out: Array, t: Array, other: Array, *, alpha: float, scale: float, inner: float) -> None:
    # exp(x) - 1 = 2 t / (1 - t) with t = tanh(x / 2), for which NumPy has vector instructions everywhere. It is 0 at 0, so the
    # sides add up.
    _side(np.minimum, x, inner / 2, t)
    np.tanh(t, t)
    np.subtract(1, t, other)
    np.multiply(t, 2 * scale * alpha, t)
    np.divide(t, other, t)
    _side(np.maximum, x, scale, other)
    np.add(t, other, out)


@scratched("xii?")
def elu_grad(dy: Array, x: Array, out: Array, t: Array, bits: Array, room: Array, mask: Array, *, alpha: float, scale: float,
             inner: float) -> None:
    # As in PyTorch, the cotangent passes where x is NaN.
    _side(np.fmin, x, inner, t)
    np.exp(t, t)
    steep = scale * alpha * inner
    if steep != 1:
        np.multiply(t, steep, t)
    # If the slope is the same on both sides of 0, exp(0) is right for positive x.
    if abs(steep - scale) > 1e-15:
        np.less_equal(x, 0, mask)
        spread(mask, bits)
        take_where(bits, room, t, scale, t)
    np.multiply(t, dy, out)


def _bent(scaled: Array, threshold: float, straight: Array, bend: Array, out: Array, bits: Array, room: Array,
          mask: Array) -> None:
    """Softplus or its gradient: ``straight`` beyond the threshold, and ``bend`` up to there.

    A high threshold changes nothing in single precision: exp(-x) is less than half a bit there.
    """
    if scaled.itemsize < 8 and threshold >= 17:
        np.copyto(out, bend)
        return
    np.greater(scaled, threshold, mask)
    spread(mask, bits)
    take_where(bits, room, straight, bend, out)


@scratched("xxxxxii?")
def softplus(x: Array, out: Array, s: Array, t: Array, u: Array, w: Array, lost: Array, bits: Array, room: Array, mask: Array,
             *, beta: float, threshold: float) -> None:
    scaled = x if beta == 1 else np.multiply(x, beta, s)
    log1p_exp(scaled, t, u, w, lost)
    if beta != 1:
        np.divide(t, beta, t)
    _bent(scaled, threshold, x, t, out, bits, room, mask)


@scratched("xxii?")
def softplus_grad(dy: Array, x: Array, out: Array, t: Array, s: Array, bits: Array, room: Array, mask: Array, *, beta: float,
                  threshold: float) -> None:
    scaled = x if beta == 1 else np.multiply(x, beta, t)
    sigmoid(scaled, s)
    np.multiply(s, dy, s)
    _bent(scaled, threshold, dy, s, out, bits, room, mask)


@kernel
def hardtanh(x: Array, out: Array, *, low: float, high: float) -> None:
    np.clip(x, low, high, out=out)


@scratched("i??")
def hardtanh_grad(dy: Array, x: Array, out: Array, bits: Array, mask: Array, other: Array, *, low: float, high: float) -> None:
    # As in PyTorch, the cotangent passes where x is NaN.
    np.less_equal(x, low, mask)
    np.greater_equal(x, high, other)
    np.logical_or(mask, other, mask)
    np.logical_not(mask, mask)
    spread(mask, bits)
    keep_where(bits, dy, out)
