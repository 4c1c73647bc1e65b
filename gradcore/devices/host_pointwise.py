"""Elementwise functions that NumPy has no ufunc for, as expressions over pieces of a few kilobytes, and in-place forms.

A piece's temporaries stay in a core's first-level cache; together they are below what counts as a kernel's own bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.host_erf import CHEBYSHEV, erf_piece
from gradcore.devices.host_kernels import HOST_KERNELS, Array
from gradcore.overwriting import OVERWRITING

#: Bytes of a piece.
_BYTES = 8192


def walk(function: Callable[..., Any], operands: tuple[Any, ...], out: Array, **attrs: Any) -> None:
    """``out``, which may be an operand, is the function of the operands, broadcast and converted to its dtype."""
    if not out.size:
        return
    flags: list[Any] = ["overlap_assume_elementwise"]
    with np.nditer([*operands, out], ["external_loop", "buffered", "copy_if_overlap"],
                   [["readonly", *flags]] * len(operands) + [["writeonly", *flags]], [out.dtype] * (len(operands) + 1),
                   casting="unsafe", buffersize=_BYTES // out.itemsize) as pieces:
        for *some, part in pieces:
            part[...] = function(*some, **attrs)


def pointwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register the kernel of a function on pieces: of its operands, then attributes by keyword."""

    def kernel(*arrays: Any, **attrs: Any) -> None:
        walk(function, arrays[:-1], arrays[-1], **attrs)

    HOST_KERNELS[function.__name__] = kernel
    return function


HOST_KERNELS |= {
    "exp2": np.exp2, "trunc": np.trunc, "arcsin": np.arcsin, "arccos": np.arccos, "arcsinh": np.arcsinh,
    "arccosh": np.arccosh, "arctanh": np.arctanh, "fmod": np.fmod, "arctan2": np.arctan2, "hypot": np.hypot,
    "logaddexp": np.logaddexp, "bitwise_not": np.invert, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor, "bitwise_left_shift": np.left_shift, "bitwise_right_shift": np.right_shift}


# NumPy means to give a third positional operand of these two another meaning.
def fmax(x: Any, y: Any, out: Array) -> None:
    np.fmax(x, y, out=out)


def fmin(x: Any, y: Any, out: Array) -> None:
    np.fmin(x, y, out=out)


HOST_KERNELS |= {"fmax": fmax, "fmin": fmin}


@pointwise
def frac(x: Array) -> Any:
    return x - np.trunc(x)


@pointwise
def sinc(x: Array) -> Any:
    return np.sinc(x)


@pointwise
def nan_to_num(x: Array, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Any:
    return np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)


@pointwise
def lerp(x: Array, y: Array, weight: Array) -> Any:
    return np.where(np.abs(weight) < 0.5, x + weight * (y - x), y - (y - x) * (1 - weight))


@pointwise
def addcmul(x: Array, y: Array, z: Array, *, value: float = 1) -> Any:
    return x + value * y * z


@pointwise
def addcdiv(x: Array, y: Array, z: Array, *, value: float = 1) -> Any:
    return x + value * (y / z)


def masked_fill_(x: Array, mask: Array, value: Any) -> None:
    np.copyto(x, value, where=mask, casting="unsafe")


HOST_KERNELS["masked_fill_"] = masked_fill_


def _erf(x: Array) -> Any:
    out = np.empty_like(x)
    erf_piece(x, out, [np.empty_like(x) for _ in range(4)])
    return out


@pointwise
def erfc(x: Array) -> Any:
    out = 1 - _erf(x)
    # Where erf is nearly 1 it has lost the digits of what is missing.
    for start in range(0, x.size, 512):
        part, found = x[start:start + 512], out[start:start + 512]
        np.copyto(found, _erfc_of_large(part.astype(np.float64)), where=np.abs(part) > 0.5, casting="same_kind")
    return out


def _erfc_of_large(x: Array) -> Any:
    z = np.abs(x)
    log_of = np.polynomial.chebyshev.chebval(4 / (2 + z) - 1, (CHEBYSHEV[0] / 2, *CHEBYSHEV[1:]))
    tail = np.exp(log_of - z * z) * (2 / (2 + z))
    return np.where(x < 0, 2 - tail, tail)


# -- in place ----------------------------------------------------------------------------------------------------------


def _written(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an in-place op: that of the functional one, with the first operand as its result."""
    if name == "erf":
        return lambda x: walk(_erf, (x,), x)
    if isinstance(kernel, np.ufunc):
        return lambda x, *others: kernel(x, *others, out=x, casting="unsafe")
    return lambda x, *others, **attrs: kernel(x, *others, x, **attrs)


def in_place_kernels(table: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """A kernel for each in-place form, of those of the functional ops."""
    return {f"{name}_": _written(name, table[name]) for name in OVERWRITING}
