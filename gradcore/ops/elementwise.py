"""Ops that treat every element alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.dtypes import promote
from gradcore.errors import SpecError
from gradcore.ops.creation import zeros_of
from gradcore.ops.movement import sum_to
from gradcore.ops.op import op, spending
from gradcore.ops.shapes import (
    Operand,
    bool_like,
    broadcast,
    compare,
    divide,
    float_like,
    like,
    need_number,
    number,
    numbers,
    shape_of,
)
from gradcore.spec import TensorSpec, broadcast_shapes

# -- arithmetic --------------------------------------------------------------------------------------------------------

add = op("add", broadcast, may_alias=("x", "y"),
         x=lambda g, x_spec: sum_to(g, to=x_spec),
         y=lambda g, y_spec: sum_to(g, to=y_spec),
         again=lambda x, y: add(x, y), follows=True, doc="x + y.")


def _sub_spec(x: Operand, y: Operand) -> TensorSpec:
    if _is_bool(x) or _is_bool(y):
        raise SpecError("Subtraction, the `-` operator, with a bool tensor is not supported. Use the `^` or `logical_xor()` "
                        "operator instead.")
    return broadcast(x, y)


def _is_bool(x: Operand) -> bool:
    return x.dtype.kind == "b" if isinstance(x, TensorSpec) else x is bool


sub = op("sub", _sub_spec, may_alias=("x", "y"),
         x=lambda g, x_spec: sum_to(g, to=x_spec),
         y=lambda g, y_spec: sum_to(-g, to=y_spec),
         again=lambda x, y: sub(x, y), follows=True, doc="x - y.")
mul = op("mul", broadcast, may_alias=("x", "y"),
         x=spending(lambda g, y, x_spec: sum_to(g * y, to=x_spec)),
         y=spending(lambda g, x, y_spec: sum_to(g * x, to=y_spec)),
         again=lambda x, y: mul(x, y), follows=True, doc="x y.")
div = op("div", divide, may_alias=("x", "y"),
         y=lambda g, x, y, y_spec: sum_to(-g * (x / y) / y, to=y_spec),
         x=spending(lambda g, y, x_spec: sum_to(g / y, to=x_spec)),
         again=lambda x, y: div(x, y), follows=True, doc="x / y; the quotient of integers is a float.")


def _neg_spec(x: TensorSpec) -> TensorSpec:
    if _is_bool(x):
        raise SpecError("Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, "
                        "use the `~` or `logical_not()` operator instead.")
    return like(x)


neg = op("neg", _neg_spec, may_alias=("x",), x=spending(lambda g: -g), doc="-x.")
reciprocal = op("reciprocal", float_like, may_alias=("x",), x=lambda g, out: -g * (out * out), doc="1 / x.")
floor_divide = op("floor_divide", numbers("floor_divide"), may_alias=("x", "y"), doc="x / y, rounded down.")
remainder = op("remainder", numbers("remainder"), may_alias=("x", "y"),
               x=lambda g, x_spec: sum_to(g, to=x_spec),
               y=lambda g, x, y, y_spec: sum_to(-g * floor_divide(x, y), to=y_spec),
               doc="x - y floor(x / y): the sign is the divisor's.")


def _pow_spec(x: Operand, y: Operand) -> TensorSpec:
    if _is_bool(x) and _is_bool(y):
        raise SpecError("pow of bools is not supported: convert them with .long()")
    return broadcast(x, y)


def _pow_x(g: Any, x: Any, y: Any, x_spec: Operand) -> Any:
    if isinstance(y, (int, float)):
        if y == 0:
            return zeros_of(g)
        return g * y if y == 1 else g * (2 * x) if y == 2 else g * (y * pow(x, y - 1))
    # 0 ** -1 is no number, but where the exponent is 0 the derivative is 0.
    return sum_to(where(eq(y, 0), 0.0, g * (y * pow(x, y - 1))), to=x_spec)


def _pow_y(g: Any, x: Any, y: Any, out: Any, y_spec: Operand) -> Any:
    if isinstance(x, (int, float)):
        slope = out * math.log(x) if x > 0 else out * math.nan if x else where(lt(y, 0), -math.inf, where(isnan(y), y, 0.0))
    else:
        # The limit of x^y log x at x = 0, y >= 0 is 0; log would give NaN.
        slope = where(logical_and(eq(x, 0), ge(y, 0)), 0.0, out * log(x))
    return sum_to(g * slope, to=y_spec)


pow = op("pow", _pow_spec, may_alias=("x", "y"), x=_pow_x, y=_pow_y, doc="x to the power of y.")
maximum = op("maximum", broadcast, may_alias=("x", "y"),
             x=lambda g, x, y, x_spec: sum_to(_share(g, lt(x, y), eq(x, y)), to=x_spec),
             y=lambda g, x, y, y_spec: sum_to(_share(g, gt(x, y), eq(x, y)), to=y_spec),
             doc="The larger; NaN beside a NaN.")
minimum = op("minimum", broadcast, may_alias=("x", "y"),
             x=lambda g, x, y, x_spec: sum_to(_share(g, gt(x, y), eq(x, y)), to=x_spec),
             y=lambda g, x, y, y_spec: sum_to(_share(g, lt(x, y), eq(x, y)), to=y_spec),
             doc="The smaller; NaN beside a NaN.")


def _share(g: Any, lost: Any, tie: Any) -> Any:
    """``g`` where an operand did not lose, half of it where both are equal, as PyTorch shares it."""
    return where(lost, 0.0, where(tie, g * 0.5, g))


# -- comparison and logic ----------------------------------------------------------------------------------------------

eq = op("eq", compare, doc="x == y, as bools.")
ne = op("ne", compare, doc="x != y, as bools; true beside a NaN.")
lt = op("lt", compare, doc="x < y, as bools.")
le = op("le", compare, doc="x <= y, as bools.")
gt = op("gt", compare, doc="x > y, as bools.")
ge = op("ge", compare, doc="x >= y, as bools.")
logical_and = op("logical_and", compare, doc="Are both other than 0?")
logical_or = op("logical_or", compare, doc="Is one of the two other than 0?")
logical_xor = op("logical_xor", compare, doc="Is exactly one of the two other than 0?")
logical_not = op("logical_not", bool_like, doc="Is x 0?")
isnan = op("isnan", bool_like, doc="Is x NaN?")
isinf = op("isinf", bool_like, doc="Is x infinite?")
isfinite = op("isfinite", bool_like, doc="Is x neither infinite nor NaN?")

# -- functions of one variable -----------------------------------------------------------------------------------------


def _square_spec(x: TensorSpec) -> TensorSpec:
    return like(x).like(np.dtype(np.int64)) if _is_bool(x) else like(x)


abs = op("abs", number("abs"), may_alias=("x",), x=spending(lambda g, x: g * sign(x)), doc="|x|.")
sign = op("sign", like, may_alias=("x",), x=lambda g: zeros_of(g),
          doc="1, 0 or -1 for numbers above, at or below 0; bools unchanged.")
floor = op("floor", number("floor"), may_alias=("x",), x=lambda g: zeros_of(g),
           doc="The largest integer that is not above x, in the dtype of x.")
ceil = op("ceil", number("ceil"), may_alias=("x",), x=lambda g: zeros_of(g),
          doc="The smallest integer that is not below x, in the dtype of x.")
round = op("round", number("round"), may_alias=("x",), x=lambda g: zeros_of(g),
           doc="The nearest integer, in the dtype of x; of two, the even one.")
exp = op("exp", float_like, may_alias=("x",), x=spending(lambda g, out: g * out), doc="e to the power of x.")
expm1 = op("expm1", float_like, may_alias=("x",), x=lambda g, out: g * (out + 1), doc="exp(x) - 1, exact near 0.")
log = op("log", float_like, may_alias=("x",), x=spending(lambda g, x: g / x),
         doc="The natural logarithm: -inf at 0, NaN below.")
log1p = op("log1p", float_like, may_alias=("x",), x=lambda g, x: g / (x + 1), doc="log(1 + x), exact near 0.")
log2 = op("log2", float_like, may_alias=("x",), x=lambda g, x: g / (x * math.log(2)),
          doc="The logarithm to the base 2: -inf at 0, NaN below.")
log10 = op("log10", float_like, may_alias=("x",), x=lambda g, x: g / (x * math.log(10)),
           doc="The logarithm to the base 10: -inf at 0, NaN below.")
sqrt = op("sqrt", float_like, may_alias=("x",), x=spending(lambda g, out: g / (out * 2)), doc="The square root, NaN below 0.")
rsqrt = op("rsqrt", float_like, may_alias=("x",), x=lambda g, out: g * (out * out * out) * -0.5, doc="1 / sqrt(x).")
square = op("square", _square_spec, may_alias=("x",), x=spending(lambda g, x: g * (x * 2)), doc="x^2; of bools in int64.")
sin = op("sin", float_like, may_alias=("x",), x=lambda g, x: g * cos(x), doc="The sine of an angle in radians.")
cos = op("cos", float_like, may_alias=("x",), x=lambda g, x: -g * sin(x), doc="The cosine of an angle in radians.")
tan = op("tan", float_like, may_alias=("x",), x=lambda g, out: g * (out * out + 1), doc="The tangent of an angle in radians.")
sinh = op("sinh", float_like, may_alias=("x",), x=lambda g, x: g * cosh(x), doc="The hyperbolic sine.")
cosh = op("cosh", float_like, may_alias=("x",), x=lambda g, x: g * sinh(x), doc="The hyperbolic cosine.")
arctan = op("arctan", float_like, may_alias=("x",), x=lambda g, x: g / (x * x + 1), doc="The inverse tangent, in radians.")


# -- choice ------------------------------------------------------------------------------------------------------------


def _where_spec(condition: TensorSpec, x: Operand, y: Operand) -> TensorSpec:
    if not isinstance(condition, TensorSpec) or condition.dtype.kind != "b":
        raise SpecError(f"where: condition must be a bool tensor, but got {condition}")
    shape = broadcast_shapes(condition.shape, shape_of(x), shape_of(y))
    return TensorSpec.of(shape, promote((x, y)))


where = op("where", _where_spec, may_alias=("y",),
           x=lambda g, condition, x_spec: sum_to(where(condition, g, 0.0), to=x_spec),
           y=lambda g, condition, y_spec: sum_to(where(condition, 0.0, g), to=y_spec))


def _clamp_spec(x: TensorSpec, low: Operand | None = None, high: Operand | None = None) -> TensorSpec:
    if low is None and high is None:
        raise SpecError("torch.clamp: At least one of 'min' or 'max' must not be None")
    bounds = [b for b in (low, high) if b is not None]
    spec = TensorSpec.of(broadcast_shapes(x.shape, *map(shape_of, bounds)), promote((x, *bounds)))
    # With one bound that is a tensor, it is maximum or minimum, which take bools.
    return spec if len(bounds) == 1 and isinstance(bounds[0], TensorSpec) else need_number("clamp", spec, x, *bounds)


clamp = op("clamp", _clamp_spec, may_alias=("x",),
           x=lambda g, x, low, high, x_spec: sum_to(where(_within(x, low, high), g, 0.0), to=x_spec),
           low=lambda g, x, low, high, low_spec: sum_to(where(_below(x, low, high), g, 0.0), to=low_spec),
           high=lambda g, x, low, high, high_spec: sum_to(where(_above(x, low, high), g, 0.0), to=high_spec))


def _within(x: Any, low: Any, high: Any) -> Any:
    if low is None or high is None:
        return ge(x, low) if high is None else le(x, high)
    return logical_and(ge(x, low), le(x, high))


def _below(x: Any, low: Any, high: Any) -> Any:
    return lt(x, low) if high is None else logical_and(lt(x, low), lt(low, high))


def _above(x: Any, low: Any, high: Any) -> Any:
    return gt(x, high) if low is None else logical_or(gt(x, high), lt(high, low))
