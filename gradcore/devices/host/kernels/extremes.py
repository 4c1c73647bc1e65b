"""Maximum and minimum of an array and a number on the CPU.

NumPy uses vector instructions for two arrays, but not for an array and a number, which takes four times as long. So the number
is repeated in a row that stays in the L1 cache, and the array is viewed as rows of that length. The bits are the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from gradcore.devices.calls import KernelCall
from gradcore.devices.host.kernel import Array

#: Elements of a row, and the least size of arrays viewed as rows: in a single call, and if the calls are prepared once.
_ROW, _AT_ONCE, _FOR_ALL = 8192, 2048, 128
_EXTREMES = np.maximum, np.minimum


@functools.lru_cache(maxsize=64)
def _row(number: str, dtype: np.dtype[Any]) -> Array:
    row = np.full(_ROW, float(number), dtype)
    row.flags.writeable = False
    return row


def _rows(x: Array, number: float, out: Array, least: int) -> Iterator[tuple[Array, Array, Array]]:
    """Corresponding parts of ``x``, of the repeated number and of ``out``; none if that gains nothing."""
    if not (x.size >= least and x.dtype == out.dtype and x.dtype.char in "fd" and x.shape == out.shape
            and x.flags.c_contiguous and out.flags.c_contiguous):
        return
    # The cache is keyed by text, since 0.0 and -0.0 are equal.
    row, whole = _row(repr(float(number)), x.dtype), x.size // _ROW * _ROW
    x, out = x.reshape(-1), out.reshape(-1)
    if whole:
        yield x[:whole].reshape(-1, _ROW), row, out[:whole].reshape(-1, _ROW)
    if whole < x.size:
        yield x[whole:], row[:x.size - whole], out[whole:]


@functools.lru_cache(maxsize=64)
def _repeated(number: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    return _row(number, dtype)[:math.prod(shape)].reshape(shape)


def extreme(ufunc: Any, x: Array, number: float, out: Array) -> None:
    """Write ``ufunc``, the maximum or the minimum, of ``x`` and a number to ``out``."""
    if type(x) is not np.ndarray or x.size < _AT_ONCE:
        # A probe records the plain call, which is viewed as rows once the calls are written out.
        ufunc(x, number, out=out)
    elif x.size <= _ROW and x.dtype == out.dtype and x.dtype.char in "fd":
        ufunc(x, _repeated(repr(float(number)), x.dtype, x.shape), out=out)
    else:
        parts = list(_rows(x, number, out, _ROW))
        for part, row, place in parts:
            ufunc(part, row, out=place)
        if not parts:
            ufunc(x, number, out=out)


def in_rows(calls: Sequence[KernelCall]) -> list[KernelCall]:
    """The same calls, with those for maximum or minimum of an array and a constant number on rows."""
    made: list[KernelCall] = []
    for call in calls:
        function, args = call
        parts: list[tuple[Array, Array, Array]] = []
        if isinstance(function, partial) and function.func in _EXTREMES and [*function.keywords] == ["out"] and len(args) == 2:
            x, number = args
            # A number that runs change is in a writable array.
            if isinstance(number, np.ndarray) and not number.ndim and not number.flags.writeable and type(x) is np.ndarray:
                parts = list(_rows(x, float(number), function.keywords["out"], _FOR_ALL))
            made += [(partial(function.func, out=place), [part, row]) for part, row, place in parts]
        if not parts:
            made.append(call)
    return made
