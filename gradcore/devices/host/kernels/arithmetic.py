"""Powers, and other elementwise arithmetic of the CPU that takes several calls of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array, kernel
from gradcore.devices.host.kernels.elementary import inverse
from gradcore.devices.host.pointwise import walk
from gradcore.devices.host.scratch import over, scratched, spread, take_where


@kernel
def pow(x: Any, y: Any, out: Array) -> None:
    if out.dtype.kind == "f" and not isinstance(y, np.ndarray) and abs(y) == 0.5:
        # As in PyTorch.
        np.sqrt(x, out, casting="unsafe")
        if y < 0:
            inverse(out, out)
    elif out.dtype.kind == "f" and not isinstance(y, np.ndarray) and y == 2 and x.dtype == out.dtype:
        np.square(x, out)
    elif out.dtype.kind == "f" and not isinstance(y, np.ndarray) and y not in (0, 1, 2) and y % 1 == 0:
        over(_whole_float_power, (x, y), out, "x")
    elif out.dtype.kind in "iu" and isinstance(y, np.ndarray):
        # In place, exponents may be wider than the result.
        walk(_whole_power, (x, y), out, dtype=np.promote_types(out.dtype, y.dtype))
    else:
        np.power(x, y, out, casting="unsafe")


def _whole_float_power(x: Array, y: float, out: Array, t: Array) -> None:
    """NumPy has vector instructions for powers of positive numbers, and takes a hundred times as long for negative ones."""
    if y == 3:
        np.multiply(x, x, t)
        np.multiply(t, x, out)
    elif y == -1:
        inverse(x, out)
    elif y == -2:
        np.multiply(x, x, t)
        inverse(t, out)
    else:
        np.abs(x, t)
        np.power(t, y, t)
        if y % 2:
            np.copysign(t, x, out)
        else:
            np.copyto(out, t)


def _whole_power(x: Any, y: Array) -> Any:
    """Integers to integer powers. Negative ones, which NumPy refuses, give 0 unless the base is 1 or -1."""
    made = np.power(x, np.maximum(y, 0))
    return np.where(y < 0, np.power(x, y & 1) * (np.abs(x) == 1), made)


@scratched("??")
def sign(x: Array, out: Array, above: Array, below: Array) -> None:
    """0 for NaN, as in PyTorch."""
    made = np.greater(x, 0, above).view(np.int8)
    np.subtract(made, np.less(x, 0, below).view(np.int8), made)
    np.copyto(out, made, casting="unsafe")


@scratched("x")
def frac(x: Array, out: Array, t: Array) -> None:
    np.trunc(x, t)
    np.subtract(x, t, out)


@kernel
def lerp(x: Array, y: Array, weight: Any, out: Array) -> None:
    if isinstance(weight, np.ndarray) and weight.size == 1 and weight.dtype == out.dtype:
        weight = weight.reshape(-1)[0]
    if isinstance(weight, np.ndarray):
        over(_lerp_by, (x, y, weight), out, "xxii?")
    else:
        over(_lerp, (x, y), out, "x", weight=weight)


def _lerp(x: Array, y: Array, out: Array, t: Array, *, weight: Any) -> None:
    # From the end that is nearer.
    np.subtract(y, x, t)
    if abs(weight) < 0.5:
        np.multiply(t, weight, t)
        np.add(x, t, out)
    else:
        np.multiply(t, 1 - weight, t)
        np.subtract(y, t, out)


def _lerp_by(x: Array, y: Array, weight: Array, out: Array, t: Array, u: Array, bits: Array, room: Array, mask: Array) -> None:
    np.subtract(y, x, t)
    np.less(np.abs(weight, u), 0.5, mask)
    spread(mask, bits)
    np.subtract(1, weight, u)
    np.multiply(u, t, u)
    np.subtract(y, u, u)
    np.multiply(t, weight, t)
    np.add(x, t, t)
    take_where(bits, room, t, u, out)


@scratched("x")
def addcmul(x: Array, y: Array, z: Any, out: Array, t: Array, *, value: float = 1) -> None:
    # A number wraps around in small integers, and times bools is no bool.
    np.multiply(np.multiply(np.asarray(value).astype(t.dtype), y, t, casting="unsafe") if value != 1 else y, z, t)
    np.add(x, t, out)


@scratched("x")
def addcdiv(x: Array, y: Array, z: Any, out: Array, t: Array, *, value: float = 1) -> None:
    np.divide(y, z, t)
    if value != 1:
        np.multiply(value, t, t)
    np.add(x, t, out)


@kernel
def sinc(x: Array, out: Array) -> None:
    walk(np.sinc, (x,), out)


@scratched("x")
def logit(x: Array, out: Array, t: Array) -> None:
    np.subtract(1, x, t)
    np.divide(x, t, t)
    np.log(t, out)
