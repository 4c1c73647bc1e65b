"""More elementwise functions, with PyTorch's signatures and aliases, and the in-place methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from gradcore.arguments import in_todays_order, with_name
from gradcore.blame import type_of
from gradcore.dtypes import limits, promote
from gradcore.engine.operands import number
from gradcore.engine.value import Value
from gradcore.errors import SpecError
from gradcore.functional import mathematics as m
from gradcore.functional.arithmetic import scaled
from gradcore.functional.picking import nonzero
from gradcore.functional.shape import plain
from gradcore.functional.types import as_weight, fitted
from gradcore.ops import elementwise, in_place, movement, pointwise, special
from gradcore.ops.shapes import written_into
from gradcore.spec import broadcast_shapes

Tensor = Any


exp2, erfc, sinc, trunc, frac = map(m.elementwise_function, (
    pointwise.exp2, pointwise.erfc, pointwise.sinc, pointwise.trunc, pointwise.frac))
fmod, fmax, fmin, hypot, logaddexp = map(m.elementwise_function, (
    pointwise.fmod, pointwise.fmax, pointwise.fmin, pointwise.hypot, pointwise.logaddexp))
lgamma, digamma, erfinv = map(m.elementwise_function, (special.lgamma, special.digamma, special.erfinv))
bitwise_not, bitwise_and, bitwise_or, bitwise_xor = map(m.elementwise_function, (
    pointwise.bitwise_not, pointwise.bitwise_and, pointwise.bitwise_or, pointwise.bitwise_xor))
bitwise_left_shift, bitwise_right_shift = map(m.elementwise_function, (
    pointwise.bitwise_left_shift, pointwise.bitwise_right_shift))
asin, acos, asinh, acosh, atanh, atan2, igamma, igammac = map(
    m.elementwise_function,
    (pointwise.arcsin, pointwise.arccos, pointwise.arcsinh, pointwise.arccosh, pointwise.arctanh, pointwise.arctan2,
     special.gammainc, special.gammaincc),
    ("asin", "acos", "asinh", "acosh", "atanh", "atan2", "igamma", "igammac"))

# PyTorch's aliases.
arcsin, arccos, arcsinh, arccosh, arctanh, arctan2, atan, fix = asin, acos, asinh, acosh, atanh, atan2, m.arctan, trunc
absolute, negative, multiply, divide, true_divide, subtract = m.abs, m.neg, m.mul, m.div, m.div, m.sub
sgn = m.sign
greater, greater_equal, less, less_equal, not_equal, clip = m.gt, m.ge, m.lt, m.le, m.ne, m.clamp


def polygamma(n: int, input: Tensor) -> Tensor:
    """The ``n``-th derivative of digamma. Raises RuntimeError for a negative ``n``."""
    n = _order(n)
    return special.polygamma(input, n=n) if n else special.digamma(input)


def polygamma_(input: Tensor, n: int) -> Tensor:
    """:func:`polygamma` in place; returns the tensor."""
    n = _order(n)
    made: Any = in_place.IN_PLACE["polygamma" if n else "digamma"]
    return made(input, n=n) if n else made(input)


def _order(n: Any) -> int:
    order: int = plain(n)
    if order < 0:
        raise RuntimeError("polygamma(n, x) does not support negative n.")
    return order


def nan_to_num(input: Tensor, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Replace NaN and the infinities: by default with 0 and the largest and lowest finite number of the dtype."""
    return pointwise.nan_to_num(input, **_ends(input, nan, posinf, neginf))


def _ends(x: Tensor, nan: float | None, posinf: float | None, neginf: float | None) -> dict[str, float | None]:
    """The replacements; a kernel's own default for an infinity could be out of range, as that of a wider dtype."""
    nan, posinf, neginf = (_end(*end) for end in (("nan", 0.0 if nan is None else nan), ("posinf", posinf), ("neginf", neginf)))
    if not x.spec.narrow:
        return {"nan": nan, "posinf": posinf, "neginf": neginf}
    own = limits(x.spec.dtype)
    return {"nan": nan, "posinf": float(own.max) if posinf is None else posinf,
            "neginf": float(own.min) if neginf is None else neginf}


def _end(name: str, given: Any) -> Any:
    # A kernel looks at it only where there is something to replace.
    if isinstance(given, Value):
        given = number("nan_to_num", name, given)
    if not (given is None or isinstance(given, Real)):
        raise TypeError(f"nan_to_num(): argument '{name}' must be float, not {type(given).__name__}")
    return given


def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """input + weight * (end - input); ``weight`` is a number or a tensor, and tensors broadcast."""
    return pointwise.lerp(input, end, as_weight(weight, input))


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *older: Any, value: float = 1) -> Tensor:
    """input + value * tensor1 * tensor2, in one kernel; the tensors broadcast."""
    if older:
        tensor1, tensor2, value = in_todays_order("addcmul", 2, tensor1, tensor2, *older)
    return pointwise.addcmul(input, tensor1, tensor2, value=_factor(value, input, tensor1, tensor2))


def _factor(value: float, *tensors: Tensor) -> float:
    """``value`` as a number of the dtype of the result: truncated if that is an integer."""
    return value if any(not isinstance(x, Value) for x in tensors) else fitted(value, promote([x.spec for x in tensors]))


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *older: Any, value: float = 1) -> Tensor:
    """input + value * tensor1 / tensor2, in one kernel; the tensors broadcast. Raises :class:`SpecError` for integers."""
    if older:
        tensor1, tensor2, value = in_todays_order("addcdiv", 2, tensor1, tensor2, *older)
    return pointwise.addcdiv(input, tensor1, tensor2, value=value)


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """The larger of each element and ``min``."""
    return elementwise.clamp(input, min, None)


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """The smaller of each element and ``max``."""
    return elementwise.clamp(input, None, max)


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """``input`` where the condition is True, else ``other``; all three broadcast.

    For a condition alone, a tuple with the indices where it is True: an int64 [N] per dimension, read on the host.
    """
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    return elementwise.where(condition, input, other)


def _check_fill(x: Tensor, value: Any) -> None:
    """Raises RuntimeError for a number that the tensor's integer dtype cannot represent."""
    if isinstance(value, (int, float)):
        fitted(value, x.spec.dtype)


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """``value``, a number or a 0-d tensor, where ``mask`` is True, else ``input``; the result has the input's dtype."""
    if isinstance(value, Value) and value.spec.ndim:
        raise SpecError("masked_fill only supports a 0-dimensional value tensor, but got tensor with "
                        f"{value.spec.ndim} dimension(s).")
    _check_fill(input, value)
    return movement.cast_to(elementwise.where(mask, value, input), input.spec)


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Whether |input - other| <= atol + rtol * |other|, or both are equal; with ``equal_nan``, NaNs are close to each other."""
    if not isinstance(other, Value):
        raise TypeError(f"isclose(): argument 'other' must be Tensor, not {type_of(other)}")
    rtol, atol = number("isclose", "rtol", rtol), number("isclose", "atol", atol)
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if tolerance < 0:
            raise SpecError(f"{name} must be greater than or equal to zero, but got {tolerance}")
    # The difference of integers could overflow; that of floats cannot.
    x, y = movement.as_float(input), movement.as_float(other)
    found = elementwise.eq(input, other)
    if rtol or atol:
        near = elementwise.le(elementwise.abs(x - y), elementwise.abs(y) * rtol + atol)
        # An infinite ``other`` has an infinite tolerance, and would be close to everything.
        found = elementwise.logical_or(found, elementwise.logical_and(near, elementwise.isfinite(other)))
    if not equal_nan:
        return found
    return elementwise.logical_or(found, elementwise.logical_and(elementwise.isnan(input), elementwise.isnan(other)))


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all ``|input - other| <= atol + rtol * |other|``, with ``equal_nan`` also where both are NaN."""
    broadcast_shapes(input.spec.shape, other.spec.shape)
    return bool(np.allclose(input.detach().cpu().numpy(), other.detach().cpu().numpy(), rtol, atol, equal_nan))


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether the tensors have the same shape and values; the answer is read on the host."""
    return input.spec.shape == other.spec.shape and bool(m.all(elementwise.eq(input, other)).item())


def isposinf(input: Tensor) -> Tensor:
    """Whether each element is positive infinity."""
    return elementwise.eq(input, math.inf)


def isneginf(input: Tensor) -> Tensor:
    """Whether each element is negative infinity."""
    return elementwise.eq(input, -math.inf)


def deg2rad(input: Tensor) -> Tensor:
    """Degrees converted to radians."""
    return elementwise.mul(movement.as_float(input), math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Radians converted to degrees."""
    return elementwise.mul(movement.as_float(input), 180 / math.pi)


def positive(input: Tensor) -> Tensor:
    """``input`` itself. Raises RuntimeError for bools."""
    if input.spec.dtype.kind == "b":
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


# -- in place, as methods only -------------------------------------------------------------------------------------------


def _written(name: str, op: Any) -> Callable[..., Any]:
    if len(op.inputs) == 1:
        def function(input: Tensor) -> Tensor:
            return op(input)
    else:
        def function(input: Tensor, other: Any) -> Tensor:  # type: ignore[misc]
            return op(input, other)

    return with_name(function, f"{name}_", f"``{name}``, written over the tensor; returns it.")


def pow_(input: Tensor, exponent: Any) -> Tensor:
    """``pow`` in place; returns the tensor."""
    return in_place.IN_PLACE["pow"](input, exponent)


def round_(input: Tensor, *, decimals: int = 0) -> Tensor:
    """``round`` in place; returns the tensor."""
    if decimals:
        return movement.copy_(input, m.round(input, decimals=decimals))
    return in_place.IN_PLACE["round"](input)


def lerp_(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """``lerp`` in place; returns the tensor."""
    return in_place.IN_PLACE["lerp"](input, end, as_weight(weight, input))


def addcmul_(input: Tensor, tensor1: Tensor, tensor2: Tensor, *older: Any, value: float = 1) -> Tensor:
    """``addcmul`` in place; returns the tensor."""
    if older:
        tensor1, tensor2, value = in_todays_order("addcmul_", 2, tensor1, tensor2, *older)
    return in_place.IN_PLACE["addcmul"](input, tensor1, tensor2, value=_factor(value, input, tensor1, tensor2))


def addcdiv_(input: Tensor, tensor1: Tensor, tensor2: Tensor, *older: Any, value: float = 1) -> Tensor:
    """``addcdiv`` in place; returns the tensor."""
    if older:
        tensor1, tensor2, value = in_todays_order("addcdiv_", 2, tensor1, tensor2, *older)
    return in_place.IN_PLACE["addcdiv"](input, tensor1, tensor2, value=value)


def clamp_(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """``clamp`` in place; returns the tensor."""
    return in_place.IN_PLACE["clamp"](input, min, max)


def clamp_min_(input: Tensor, min: Any) -> Tensor:
    """``clamp_min`` in place; returns the tensor."""
    return clamp_(input, min)


def clamp_max_(input: Tensor, max: Any) -> Tensor:
    """``clamp_max`` in place; returns the tensor."""
    return clamp_(input, None, max)


def masked_fill_(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """``masked_fill`` in place; returns the tensor."""
    _check_fill(input, value)
    return pointwise.masked_fill_(input, mask, value)


def nan_to_num_(input: Tensor, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """:func:`nan_to_num` in place; returns the tensor."""
    return in_place.IN_PLACE["nan_to_num"](input, **_ends(input, nan, posinf, neginf))


def div_(input: Tensor, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """``div`` in place; returns the tensor."""
    if rounding_mode is None:
        return in_place.div_(input, other)
    made = m.div(input, other, rounding_mode=rounding_mode)
    written_into(input.spec, made.spec)
    return movement.copy_(input, made)


def multiply_(input: Tensor, other: Any) -> Tensor:
    """``mul`` in place; returns the tensor."""
    return in_place.mul_(input, other)


def deg2rad_(input: Tensor) -> Tensor:
    """``deg2rad`` in place; returns the tensor."""
    return in_place.mul_(input, math.pi / 180)


def rad2deg_(input: Tensor) -> Tensor:
    """``rad2deg`` in place; returns the tensor."""
    return in_place.mul_(input, 180 / math.pi)


def subtract_(input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    """``sub`` in place; returns the tensor."""
    return in_place.sub_(input, scaled(input, other, alpha))


_SECOND = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
           "arctan2": "atan2", "abs": "absolute", "sign": "sgn", "neg": "negative", "trunc": "fix", "gt": "greater",
           "ge": "greater_equal", "lt": "less", "le": "less_equal", "ne": "not_equal"}

#: Methods of a tensor that are not functions.
TENSOR_METHODS: dict[str, Callable[..., Any]] = {f"{n}_": _written(n, o) for n, o in in_place.IN_PLACE.items()}
TENSOR_METHODS |= {f"{second}_": TENSOR_METHODS[f"{n}_"] for n, second in _SECOND.items()}
TENSOR_METHODS |= {fn.__name__: fn for fn in (
    addcdiv_, addcmul_, clamp_, clamp_max_, clamp_min_, deg2rad_, div_, lerp_, masked_fill_, multiply_, nan_to_num_,
    polygamma_, pow_, rad2deg_, round_, subtract_)}
TENSOR_METHODS |= {"clip_": clamp_, "divide_": div_, "true_divide_": div_}

METHODS = (
    "exp2 asin acos asinh acosh atanh atan arcsin arccos arcsinh arccosh arctanh erfc lgamma digamma "
    "erfinv sinc trunc fix frac fmod fmax fmin atan2 igamma igammac "
    "arctan2 hypot logaddexp bitwise_not bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift absolute "
    "negative multiply divide true_divide subtract greater greater_equal less less_equal not_equal clip clamp_min clamp_max "
    "isposinf isneginf sgn nan_to_num lerp addcmul addcdiv masked_fill isclose allclose equal deg2rad rad2deg positive").split()

__all__ = [*METHODS, "polygamma", "where"]  # noqa: PLE0604 - the names above, which are methods as well
