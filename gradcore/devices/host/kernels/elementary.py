"""Elementwise ops that NumPy has ufuncs for, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices.host.extremes import extreme
from gradcore.devices.host.halves import convert
from gradcore.devices.host.kernel import HOST_KERNELS, Array, kernel

HOST_KERNELS |= {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "neg": np.negative,
    "reciprocal": np.reciprocal,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "logical_not": np.logical_not, "bitwise_not": np.invert, "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor, "bitwise_left_shift": np.left_shift,
    "bitwise_right_shift": np.right_shift, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "abs": np.absolute, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "log2": np.log2,
    "log10": np.log10, "sqrt": np.sqrt, "square": np.square, "hypot": np.hypot,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "arcsin": np.arcsin, "arccos": np.arccos, "arctan": np.arctan, "arctan2": np.arctan2, "arcsinh": np.arcsinh,
    "arccosh": np.arccosh, "arctanh": np.arctanh}


#: The least size of an array that is divided into 1: NumPy has wider vectors for it than for a reciprocal, and it begins later.
_MANY = 8192


def inverse(x: Array, out: Array) -> None:
    """``out = 1 / x``"""
    if x.size < _MANY:
        np.reciprocal(x, out)
    else:
        np.true_divide(1, x, out)


@kernel
def rsqrt(x: Array, out: Array) -> None:
    np.sqrt(x, out, dtype=out.dtype)
    inverse(out, out)


def _by_keyword(ufunc: np.ufunc) -> Callable[..., Any]:
    """NumPy plans another meaning for a third positional argument of these, so the output goes by keyword."""
    def run(x: Any, y: Any, out: Array) -> None:
        ufunc(x, y, out=out)

    return run


HOST_KERNELS |= {ufunc.__name__: _by_keyword(ufunc) for ufunc in (np.maximum, np.minimum, np.fmax, np.fmin)}


@kernel
def clamp(x: Any, low: Any, high: Any, out: Array) -> None:
    numbers = {"f": (int, float), "i": (int,), "u": (int,)}.get(out.dtype.kind, ())
    if type(low) in numbers and type(high) in numbers and x.dtype == out.dtype:
        np.clip(x, low, high, out=out)
        return
    # In place, a bound may have a wider dtype than the output.
    if low is not None:
        if isinstance(low, int) and high is not None and x.dtype != out.dtype:
            low = float(low)  # the other bound made floats of the result: this one need not fit the integers of x
        _bounded(np.maximum, x, low, out)
    if high is not None:
        _bounded(np.minimum, x if low is None else out, high, out)


def _bounded(ufunc: Any, x: Any, bound: Any, out: Array) -> None:
    if type(bound) in (int, float) and x.dtype == out.dtype and out.dtype.char in "fd":
        extreme(ufunc, x, bound, out)
    else:
        ufunc(x, bound, out=out, casting="unsafe")


@kernel
def fill_(x: Array, value: Any) -> None:
    x.fill(value)


@kernel
def copy_(x: Array, source: Array) -> None:
    convert(source, x)
