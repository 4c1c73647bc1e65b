"""Elementwise functions that NumPy has no ufunc for, as expressions over pieces of a few kilobytes, and in-place forms.

A piece's temporaries stay in a core's caches, and are too small to be counted as the kernel's allocations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.host_erf import CHEBYSHEV, erf_piece
from gradcore.devices.host_kernels import HOST_KERNELS, Array, horner
from gradcore.overwriting import WITH_THEIR_KERNELS
from gradcore.tiling import INTRICATE

#: Bytes of a piece, and of all temporaries of a piece for functions that say how many they hold.
_BYTES, ROOM = 8 << 10, 48 << 10


def is_repeated(x: Array) -> bool:
    """Is an array that is not empty a single number, expanded perhaps?"""
    return not any(step for step, n in zip(x.strides, x.shape, strict=True) if n > 1)


def walk(function: Callable[..., Any], operands: tuple[Any, ...], out: Array, nbytes: int = _BYTES, **attrs: Any) -> None:
    """``out``, which may be an operand, is the function of the operands, broadcast and converted to its dtype.

    Numbers are passed on unchanged. Pieces have ``nbytes``, but fewer where copies of pieces are needed too.
    """
    if not out.size:
        return
    # What is the same for each piece, by place among the operands: numbers, or rows of them.
    same: dict[int, Any] = {}
    repeated = []
    for k, a in enumerate(operands):
        if not isinstance(a, np.ndarray):
            same[k] = a
        elif is_repeated(a):
            repeated.append(k)
    # A number expanded to an array, as the cotangent of a sum, is written once, not for each piece.
    if repeated and len(operands) > len(same) + len(repeated):
        nbytes = min(nbytes * 3 // 4, 16 << 10) // len(repeated)
        same |= {k: np.full(min(nbytes // out.itemsize, out.size), operands[k].flat[0], out.dtype) for k in repeated}
    arrays = [a for k, a in enumerate(operands) if k not in same] if same else operands
    if any(a.dtype != out.dtype or a.shape != out.shape or not a.flags.c_contiguous for a in (*arrays, out)):
        nbytes = min(nbytes, _BYTES)
    places = sorted(same.items()) if same else ()
    flags: list[Any] = ["overlap_assume_elementwise"]
    with np.nditer([*arrays, out], ["external_loop", "buffered", "copy_if_overlap"],
                   [["readonly", *flags]] * len(arrays) + [["writeonly", *flags]], [out.dtype] * (len(arrays) + 1),
                   casting="unsafe", buffersize=nbytes // out.itemsize) as pieces:
        for *some, part in pieces:
            for k, a in places:
                some.insert(k, a[:part.size] if isinstance(a, np.ndarray) else a)
            part[...] = function(*some, **attrs)


def pointwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a kernel by its function of pieces: operands, then attributes by keyword."""
    return _registered(function, _BYTES)


def pointwise_with(temporaries: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same for a function that holds at most so many temporaries of a piece's size at once, its result included, and masks.

    Its pieces are longer, since each call of NumPy takes the time of 2,000 elements or more.
    """
    return lambda function: _registered(function, ROOM // temporaries)


def _registered(function: Callable[..., Any], nbytes: int) -> Callable[..., Any]:
    def kernel(*arrays: Any, **attrs: Any) -> None:
        walk(function, arrays[:-1], arrays[-1], nbytes, **attrs)

    HOST_KERNELS[function.__name__] = kernel
    return function


def _bits(mask: Array, size: int) -> Array:
    """All bits of an integer of ``size`` bytes where the mask is set."""
    # Not in one call, which would convert by way of a buffer.
    bits: Array = mask.astype(f"i{size}")
    return np.negative(bits, bits)


def keep(mask: Array, x: Array) -> Array:
    """``x`` where the mask is set, else 0.

    By bits, as in :func:`choose`: ``np.where`` takes longer for a mask that a processor cannot foresee.
    """
    bits = _bits(mask, x.itemsize)
    np.bitwise_and(bits, x.view(bits.dtype), bits)
    return bits.view(x.dtype)


def choose(mask: Array, x: Array, y: Any) -> Array:
    """``x``, of 4 or 8 bytes, where the mask is set, else ``y``, an array of its shape and dtype or a number."""
    bits = _bits(mask, x.itemsize)
    other: Array = np.asarray(y, x.dtype).view(bits.dtype)
    made: Array = np.bitwise_xor(x.view(bits.dtype), other)
    np.bitwise_and(made, bits, made)
    np.bitwise_xor(made, other, made)
    return made.view(x.dtype)


def pow(x: Any, y: Any, out: Array) -> None:
    if out.dtype.kind == "f" and not isinstance(y, np.ndarray) and y not in (0, 1, 2) and y % 1 == 0:
        walk(_whole_float_power, (x, y), out, ROOM // 2)
    elif out.dtype.kind in "iu" and isinstance(y, np.ndarray):
        walk(_whole_power, (x, y), out)
    else:
        np.power(x, y, out, casting="unsafe")


def _whole_float_power(x: Array, y: float) -> Array:
    """NumPy has vector instructions for powers of positive numbers, and takes a hundred times as long for negative ones."""
    if y == 3:
        return x * x * x
    t: Array = np.abs(x)
    np.power(t, y, t)
    if y % 2:
        np.copysign(t, x, t)
    return t


def _whole_power(x: Any, y: Array) -> Any:
    """Integers to integer powers. Negative ones, which NumPy refuses, give 0 unless the base is 1 or -1."""
    made = np.power(x, np.maximum(y, 0))
    return np.where(y < 0, np.power(x, y & 1) * (np.abs(x) == 1), made)


HOST_KERNELS["pow"] = pow


@pointwise_with(1)
def sign(x: Array) -> Any:
    """0 for NaN, as in PyTorch."""
    return (x > 0).view(np.int8) - (x < 0).view(np.int8)


@pointwise
def frac(x: Array) -> Any:
    return x - np.trunc(x)


@pointwise
def sinc(x: Array) -> Any:
    return np.sinc(x)


@pointwise
def logit(x: Array) -> Any:
    return np.log(x / (1 - x))


@pointwise
def lerp(x: Array, y: Array, weight: Any) -> Any:
    if not isinstance(weight, np.ndarray):
        return x + weight * (y - x) if abs(weight) < 0.5 else y - (y - x) * (1 - weight)
    return np.where(np.abs(weight) < 0.5, x + weight * (y - x), y - (y - x) * (1 - weight))


@pointwise
def addcmul(x: Array, y: Array, z: Array, *, value: float = 1) -> Any:
    return x + (y * z if value == 1 else value * y * z)


@pointwise
def addcdiv(x: Array, y: Array, z: Array, *, value: float = 1) -> Any:
    return x + (y / z if value == 1 else value * (y / z))


def _erf(x: Array) -> Any:
    out = np.empty_like(x)
    erf_piece(x, out, [np.empty_like(x) for _ in range(4)])
    return out


def erfc(x: Array) -> Array:
    """Of a piece, in doubles."""
    z = np.abs(x.astype(np.float64))
    t = 2 / (2 + z)
    tail = np.exp(horner(2 * t - 1, _LOG_ERFC if x.itemsize == 8 else _LOG_ERFC_SHORT) - z * z) * t
    found: Array = np.where(x < 0, 2 - tail, tail)
    return found


HOST_KERNELS["erfc"] = lambda x, out: walk(erfc, (x,), out, INTRICATE * out.itemsize)


# log(erfc(z) / t) + z^2 by powers of y = 2t - 1; twelve terms are enough for float32.
_SERIES = (CHEBYSHEV[0] / 2, *CHEBYSHEV[1:])
_LOG_ERFC = np.polynomial.chebyshev.cheb2poly(_SERIES).tolist()[::-1]
_LOG_ERFC_SHORT = np.polynomial.chebyshev.cheb2poly(_SERIES[:12]).tolist()[::-1]


# -- in place ----------------------------------------------------------------------------------------------------------


def _written(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an in-place op: that of the functional op, with the first operand as its output."""
    if isinstance(kernel, np.ufunc):
        # A call with unpacked arguments takes a ufunc half a microsecond longer.
        return (lambda x: kernel(x, x, casting="unsafe")) if kernel.nin == 1 else lambda x, y: kernel(x, y, x, casting="unsafe")
    return lambda x, *others, **attrs: kernel(x, *others, x, **attrs)


def in_place_kernels(table: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """A kernel for each in-place op, made from those of the functional ops in ``table``."""
    # That of erf has a workspace, which the in-place op does not declare.
    table = table | {"erf": lambda x, out: walk(_erf, (x,), out)}
    made = {f"{name}_": _written(table[name]) for name in WITH_THEIR_KERNELS}
    for name, kernel in made.items():
        kernel.__name__ = name
    return made
