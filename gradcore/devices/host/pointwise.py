"""Elementwise functions that NumPy has no ufunc for, as expressions over pieces of a few kilobytes.

A piece's temporaries stay in a core's caches, and are too small to be counted as the kernel's allocations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array

#: Bytes of a piece, for functions whose callers do not know how many temporaries they hold.
_BYTES = 8 << 10


def is_repeated(x: Array) -> bool:
    """Is an array that is not empty a single number, expanded perhaps?"""
    return not any(step for step, n in zip(x.strides, x.shape, strict=True) if n > 1)


def walk(function: Callable[..., Any], operands: tuple[Any, ...], out: Array, nbytes: int = _BYTES,
         room: Callable[[int], list[Array]] | None = None, dtype: Any = None, **attrs: Any) -> None:
    """``out``, which may be an operand, is the function of the operands, broadcast and converted to ``dtype``, by default its
    own.

    Numbers are passed on unchanged. Pieces have ``nbytes``, but fewer where copies of pieces are needed too. With ``room`` the
    function writes its result itself: it takes the piece of ``out`` and what ``room`` returns for its size, too.
    """
    if not out.size:
        return
    dtype = out.dtype if dtype is None else dtype
    numbers = [(k, a) for k, a in enumerate(operands) if not isinstance(a, np.ndarray)]
    arrays = [a for a in operands if isinstance(a, np.ndarray)]
    if any(a.dtype != dtype or not (is_repeated(a) or (a.shape == out.shape and a.flags.c_contiguous)) for a in (*arrays, out)):
        nbytes = min(nbytes, _BYTES)
    flags: list[Any] = ["overlap_assume_elementwise"]
    with np.nditer([*arrays, out], ["external_loop", "buffered", "copy_if_overlap"],
                   [["readonly", *flags]] * len(arrays) + [["writeonly", *flags]], [dtype] * (len(arrays) + 1),
                   casting="unsafe", buffersize=nbytes // dtype.itemsize) as pieces:
        for *some, part in pieces:
            for k, a in numbers:
                some.insert(k, a)
            if room is None:
                part[...] = function(*some, **attrs)
            else:
                function(*some, part, *room(part.size), **attrs)
