"""Conversion between float32 and float16, by operations on the bits of pieces.

NumPy converts an element at a time, and takes a hundred times as long to round to a float16 that is subnormal or overflows, as
many gradients do. Few numbers it converts before these operations would have begun.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.host.extremes import extreme
from gradcore.devices.host.kernel import Array
from gradcore.devices.host.scratch import over

_HALF, _FLOAT = np.dtype(np.float16), np.dtype(np.float32)


def convert(x: Array, out: Array) -> None:
    """``out[...] = x``, rounded to the nearest."""
    function, kinds, few = _FUNCTIONS.get((x.dtype, out.dtype), (None, "", 0))
    if type(x) is not type(out) or (function is not None and type(x) is not np.ndarray):
        # Neither these calls, which depend on values, nor what a probe's values do to an array of the kernel's own.
        raise TypeError("a probe cannot record conversions")
    if function is not None and x.size > few and x.shape == out.shape and x.flags.c_contiguous and out.flags.c_contiguous and (
            not np.may_share_memory(x, out)):
        over(function, (x,), out, kinds, mask=0)
    else:
        out[...] = x


def _widen(x: Array, out: Array, top: Array) -> None:
    """The bits in their places are a float32 of the same fraction, with an exponent that is too small by 112."""
    bits = out.view(np.int32)
    np.copyto(bits, x.view(np.int16))
    np.left_shift(bits, 13, bits)
    np.bitwise_and(bits, -0x70002000, bits)
    np.multiply(out, 2.0 ** 112, out)
    np.bitwise_and(x.view(np.uint16), 0x7C00, top)
    if np.maximum.reduce(top) == 0x7C00:  # infinite, or NaN
        np.copyto(out, x, where=top == 0x7C00)


def _narrow(x: Array, out: Array, y: Array, z: Array) -> None:
    """To |x| add the power of two whose last bit is that of a float16 like x: the sum is rounded there, and its last bits are
    the fraction.

    The power has 2,048 in its last bits, too. Of the sum's exponent six bits end up before the fraction, where 2 << 10 makes
    them that of a float16.
    """
    bits, power, sign = y.view(np.int32), z.view(np.int32), x.view(np.int32)
    np.abs(x, y)
    some = np.maximum.reduce(y)
    extreme(np.minimum, y, 65536, y)
    np.bitwise_and(bits, 0x7F800000, power)
    extreme(np.maximum, z, 2.0 ** -14, z)
    np.add(power, (13 << 23) + 2048, power)
    np.add(y, z, y)
    np.right_shift(bits, 13, power)
    np.add(bits, power, bits)
    np.right_shift(sign, 31, power)
    np.left_shift(power, 15, power)
    np.add(bits, power, bits)
    np.copyto(out.view(np.int16), bits, casting="unsafe")
    if some != some:
        np.copyto(out, x, where=np.isnan(x))


_FUNCTIONS: dict[Any, Any] = {(_HALF, _FLOAT): (_widen, "H", 2048), (_FLOAT, _HALF): (_narrow, "ff", 128)}
