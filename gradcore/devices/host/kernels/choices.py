"""Elementwise kernels of the CPU that choose, and those that NumPy has slow loops for: remainders, sums of exponentials."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.devices.host.extremes import extreme
from gradcore.devices.host.kernel import HOST_KERNELS, Array, kernel
from gradcore.devices.host.kernels.rectifiers import log1p
from gradcore.devices.host.pointwise import is_repeated
from gradcore.devices.host.scratch import keep_where, over, scratched, spread, take_where

#: The least size of arrays for which the preparations pay off.
_LARGE = 8192


def _fits(x: Any, out: Array) -> bool:
    return not isinstance(x, np.ndarray) or (x.dtype == out.dtype and (
        is_repeated(x) or (x.shape == out.shape and x.flags.c_contiguous)))


def _is_mask(condition: Array, out: Array) -> bool:
    """Can the mask and ``out`` be cut into pieces, and is that worth while?"""
    return (out.size >= _LARGE and isinstance(condition, np.ndarray) and condition.shape == out.shape
            and condition.flags.c_contiguous and out.flags.c_contiguous and not np.may_share_memory(condition, out)
            and _varied(condition.reshape(-1)))


def _varied(mask: Array) -> bool:
    """Does a mask change so often that a processor cannot foresee it? By a sample: beyond one change in 20, bits are faster."""
    changes = 0
    for start in (0, mask.size // 2):
        part = mask[start:start + 2048]
        changes += int(np.count_nonzero(part[1:] != part[:-1]))
    return changes > 200


@kernel
def where(condition: Any, x: Any, y: Any, out: Array) -> None:
    # One that does not fit is copied to its place first.
    fitting = _fits(x, out) + _fits(y, out)
    if _is_mask(condition, out) and fitting and (
            fitting == 2 or not any(isinstance(t, np.ndarray) and np.may_share_memory(t, out) for t in (x, y))):
        over(_chosen, (condition, x, y), out, "ii", mask=0)
    else:
        out[...] = y
        np.copyto(out, x, where=condition, casting="unsafe")


def _chosen(condition: Array, x: Any, y: Any, out: Array, bits: Array, room: Array) -> None:
    if _is_zero(x):
        condition, x, y = np.logical_not(condition, room.view(np.bool_)[:condition.size]), y, x
    spread(condition, bits)
    if _is_zero(y) and isinstance(x, np.ndarray):
        keep_where(bits, x, out)
    else:
        take_where(bits, room, x, y, out)


def _is_zero(x: Any) -> bool:
    return type(x) in (int, float) and x == 0 and math.copysign(1, x) > 0


@kernel
def masked_fill_(x: Array, mask: Array, value: Any) -> None:
    if _is_mask(mask, x) and not isinstance(value, np.ndarray):
        over(lambda mask, x, out, bits, room: _chosen(mask, value, x, out, bits, room), (mask, x), x, "ii", mask=0)
    else:
        np.copyto(x, value, where=mask, casting="unsafe")


@scratched("?")
def nan_to_num(x: Array, out: Array, mask: Array, *, nan: float = 0.0, posinf: float | None = None,
               neginf: float | None = None) -> None:
    # Where all is finite, as mostly, there is nothing to replace.
    if x.dtype.kind != "f" or np.isfinite(x, mask).all():
        np.copyto(out, x)
    else:
        np.copyto(out, np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf))


# -- remainders of float32: exact in doubles where the quotient is not too large ---------------------------------------

#: Quotients of numbers of 24 bits below this are rounded to doubles on the right side of each integer; and those below this,
#: which NumPy rounds down to the same integer.
_EXACT, _SMALL = 2.0 ** 28, 2.0 ** 21


def _divided(x: Any, y: Any, most: float, a: Array, b: Array, q: Array, mask: Array) -> bool:
    """Write the operands and their quotient as doubles; False if a quotient is ``most`` or more, or not a number, or if a
    divisor is infinite, of which 0 times is not 0."""
    np.copyto(a, x if isinstance(x, np.ndarray) else np.float32(x))
    np.copyto(b, y if isinstance(y, np.ndarray) else np.float32(y))
    divisors = b if isinstance(y, np.ndarray) else b[:1]
    if not np.isfinite(divisors, mask[:divisors.size]).all():
        return False
    np.divide(a, b, q)
    # A NaN is neither.
    return bool(np.less(q, most, mask).all()) and bool(np.greater(q, -most, mask).all())


def _remainders(a: Array, b: Array, q: Array) -> Array:
    np.trunc(q, q)
    np.multiply(q, b, q)
    return np.subtract(a, q, q)


def _fmod(x: Any, y: Any, out: Array, a: Array, b: Array, q: Array, mask: Array) -> None:
    if _divided(x, y, _EXACT, a, b, q, mask):
        # A remainder of 0 has the sign of x.
        np.copyto(out, np.copysign(_remainders(a, b, q), a, q), casting="unsafe")
    else:
        np.fmod(x, y, out)


def _remainder(x: Any, y: Any, out: Array, a: Array, b: Array, q: Array, mask: Array, r: Array, bits: Array) -> None:
    if not _divided(x, y, _EXACT, a, b, q, mask):
        np.remainder(x, y, out)
        return
    np.copyto(r, _remainders(a, b, q), casting="unsafe")
    # Where the signs differ the divisor is added, in float32 as NumPy does; so the result has its sign, also if it is 0.
    np.less(np.multiply(q, b, q), 0, mask)
    spread(mask, bits)
    np.copyto(out, b, casting="unsafe")
    np.bitwise_and(bits, out.view(bits.dtype), bits)
    np.add(r, bits.view(out.dtype), r)
    np.copysign(r, out, out)


def _floor_divide(x: Any, y: Any, out: Array, a: Array, b: Array, q: Array, mask: Array) -> None:
    if _divided(x, y, _SMALL, a, b, q, mask):
        np.copyto(out, np.floor(q, q), casting="unsafe")
    else:
        np.floor_divide(x, y, out)


def _by_doubles(ufunc: np.ufunc, function: Any, kinds: str) -> Any:
    def run(x: Any, y: Any, out: Array) -> None:
        plain = out.dtype == np.float32 and out.size >= _LARGE
        if plain and all(type(a) in (int, float) or (isinstance(a, np.ndarray) and a.dtype == out.dtype) for a in (x, y)):
            over(function, (x, y), out, kinds)
        else:
            ufunc(x, y, out, casting="unsafe")

    return run


HOST_KERNELS |= {"fmod": _by_doubles(np.fmod, _fmod, "ddd?"), "remainder": _by_doubles(np.remainder, _remainder, "ddd?xi"),
                 "floor_divide": _by_doubles(np.floor_divide, _floor_divide, "ddd?")}


@kernel
def logaddexp(x: Any, y: Any, out: Array) -> None:
    if out.size < 1024:
        np.logaddexp(x, y, out, casting="unsafe")
    else:
        over(_logaddexp, (x, y), out, "xxxx")


def _logaddexp(x: Any, y: Any, out: Array, most: Array, u: Array, w: Array, lost: Array) -> None:
    np.maximum(x, y, out=most)
    np.subtract(x, y, u)
    np.abs(u, u)
    # The difference of equal infinities is NaN; a NaN among the operands is in the maximum.
    extreme(np.fmin, u, np.finfo(u.dtype).max, u)
    np.exp(np.negative(u, u), u)
    log1p(u, w, lost)
    np.add(most, w, out)


def _times_logarithm(ufunc: np.ufunc) -> Any:
    def piece(x: Any, y: Any, out: Array, made: Array, dead: Array, known: Array) -> None:
        np.equal(x, 0, dead)
        np.logical_and(dead, np.equal(y, y, known), dead)
        np.multiply(x, ufunc(y, made), made)
        np.copyto(made, 0, where=dead)
        np.copyto(out, made)

    return lambda x, y, out: over(piece, (x, y), out, "x??")


HOST_KERNELS |= {"xlogy": _times_logarithm(np.log), "xlog1py": _times_logarithm(np.log1p)}
