"""Maximum and minimum of an array and a number on the CPU.

NumPy uses vector instructions for two arrays, but not for an array and a number, which takes four times as long. So the number
is repeated in a row that stays in the L1 cache, and the array is viewed as rows of that length. The bits are the same.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from gradcore.devices.calls import Changing
from gradcore.devices.host.kernel import Array

#: Elements of a row, and the least size of arrays viewed as rows: in a call made once, and in one written out for a replay.
_ROW, _AT_ONCE, _FOR_ALL = 8192, 2048, 128


@functools.lru_cache(maxsize=64)
def _row(number: str, dtype: np.dtype[Any]) -> Array:
    row = np.full(_ROW, float(number), dtype)
    row.flags.writeable = False
    return row


@functools.lru_cache(maxsize=64)
def _repeated(number: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    return _row(number, dtype)[:math.prod(shape)].reshape(shape)


def extreme(ufunc: Any, x: Array, number: float, out: Array) -> None:
    """Write ``ufunc``, the maximum or the minimum, of ``x`` and a number to ``out``."""
    if type(x) is np.ndarray and _AT_ONCE <= x.size <= _ROW and x.dtype == out.dtype and x.dtype.char in "fdh":
        # The activations of a small network, where each line of Python counts.
        ufunc(x, _repeated(repr(float(number)), x.dtype, x.shape), out=out)
        return
    if (x.size < (_AT_ONCE if type(x) is np.ndarray else _FOR_ALL) or x.dtype != out.dtype or x.dtype.char not in "fdh"
            or x.shape != out.shape or not (x.flags.c_contiguous and out.flags.c_contiguous) or isinstance(number, Changing)):
        ufunc(x, number, out=out)
        return
    # The cache is keyed by text, since 0.0 and -0.0 are equal.
    row, whole = _row(repr(float(number)), x.dtype), x.size // _ROW * _ROW
    x, out = x.reshape(-1), out.reshape(-1)
    if whole:
        ufunc(x[:whole].reshape(-1, _ROW), row, out=out[:whole].reshape(-1, _ROW))
    if whole < x.size:
        ufunc(x[whole:], row[:x.size - whole], out=out[whole:])
