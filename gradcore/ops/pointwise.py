"""More ops that treat every element alike: functions of one, two and three variables, and bits of integers."""

from __future__ import annotations

import math
from typing import Any

from gradcore.dtypes import is_floating, promote
from gradcore.errors import SpecError
from gradcore.ops.activation import sigmoid
from gradcore.ops.creation import zeros_of
from gradcore.ops.elementwise import cos, div, eq, exp, ge, isfinite, le, logical_and, logical_or, lt, ne, rsqrt, where
from gradcore.ops.movement import cast_to, sum_to
from gradcore.ops.op import op
from gradcore.ops.shapes import (
    Operand,
    broadcast,
    divide,
    float_like,
    like,
    need_float,
    need_number,
    need_one_dtype,
    need_tensor,
    number,
    numbers,
    shape_of,
)
from gradcore.spec import TensorSpec, broadcast_shapes

# -- functions of one variable -----------------------------------------------------------------------------------------


def _frac_spec(x: TensorSpec) -> TensorSpec:
    need_tensor("frac", x)
    need_float("frac", input=x)
    return x.like()


def _sinc_slope(x: Any) -> Any:
    own = x.spec
    x = cast_to(x, own.widened())
    # Near 0 the difference of two ones has no digits left.
    u = x * x * math.pi ** 2
    near = lt(u, 4e-3)
    series = x * (math.pi ** 2 / -3) * (1 - u * (0.1 - u * (1 / 280)))
    return cast_to(where(near, series, (cos(x * math.pi) - sinc(x)) / where(near, 1.0, x)), own)


def _nan_to_num_spec(x: TensorSpec, *, nan: float = 0.0, posinf: float | None = None,
                     neginf: float | None = None) -> TensorSpec:
    return like(x)


exp2 = op("exp2", float_like, may_alias=("x",), x=lambda g, out: g * (out * math.log(2)), doc="2 to the power of x.")
arcsin = op("arcsin", float_like, may_alias=("x",), x=lambda g, x: g * rsqrt(x * x * -1 + 1),
            doc="The inverse sine, in radians, NaN outside of [-1, 1].")
arccos = op("arccos", float_like, may_alias=("x",), x=lambda g, x: -g * rsqrt(x * x * -1 + 1),
            doc="The inverse cosine, in radians, NaN outside of [-1, 1].")
arcsinh = op("arcsinh", float_like, may_alias=("x",), x=lambda g, x: g * rsqrt(x * x + 1), doc="The inverse hyperbolic sine.")
arccosh = op("arccosh", float_like, may_alias=("x",), x=lambda g, x: g * rsqrt(x * x - 1),
             doc="The inverse hyperbolic cosine, NaN below 1.")
arctanh = op("arctanh", float_like, may_alias=("x",), x=lambda g, x: g / (x * x * -1 + 1),
             doc="The inverse hyperbolic tangent, NaN outside of [-1, 1].")
erfc = op("erfc", float_like, may_alias=("x",), x=lambda g, x: g * (exp(-(x * x)) * (-2 / math.sqrt(math.pi))),
          doc="1 - erf(x).")
sinc = op("sinc", float_like, may_alias=("x",), x=lambda g, x: g * _sinc_slope(x), doc="sin(pi x) / (pi x), and 1 at 0.")
logit = op("logit", float_like, may_alias=("x",),
           x=lambda g, x: where(logical_and(ge(x, 0), le(x, 1)), g / (x * (1 - x)), math.nan),
           doc="log(x / (1 - x)), NaN outside of [0, 1].")
trunc = op("trunc", number("trunc"), may_alias=("x",), x=lambda g: zeros_of(g),
           doc="The integer part, towards 0, in the dtype of x.")
frac = op("frac", _frac_spec, may_alias=("x",), x=lambda g: g, doc="x - trunc(x).")
nan_to_num = op("nan_to_num", _nan_to_num_spec, may_alias=("x",), signs=True, x=lambda g, x: where(isfinite(x), g, 0.0),
                doc="None stands for the largest and the smallest finite number.")

# -- of two ------------------------------------------------------------------------------------------------------------


def _floats_only(name: str) -> Any:
    def infer(x: Operand, y: Operand) -> TensorSpec:
        spec = broadcast(x, y)
        need_float(name, result=spec)
        return spec

    return infer


def _first(x: Any, y: Any, test: Any) -> Any:
    """Is the first operand chosen? Beside a NaN it is."""
    return logical_or(test(x, y), ne(y, y))


def _over_squares(a: Any, x: Any, y: Any) -> Any:
    """a / (x^2 + y^2), and 0 at the origin."""
    squares = x * x + y * y
    return where(eq(squares, 0), 0.0, a / squares)


fmod = op("fmod", numbers("fmod"), may_alias=("x", "y"),
          x=lambda g, x_spec: sum_to(g, to=x_spec),
          y=lambda g, x, y, y_spec: sum_to(-g * trunc(div(x, y)), to=y_spec),
          doc="x - y trunc(x / y): the sign is the dividend's.")
fmax = op("fmax", broadcast, may_alias=("x", "y"),
          x=lambda g, x, y, x_spec: sum_to(where(_first(x, y, ge), g, 0.0), to=x_spec),
          y=lambda g, x, y, y_spec: sum_to(where(_first(x, y, ge), 0.0, g), to=y_spec),
          doc="The larger; beside a NaN, the other.")
fmin = op("fmin", broadcast, may_alias=("x", "y"),
          x=lambda g, x, y, x_spec: sum_to(where(_first(x, y, le), g, 0.0), to=x_spec),
          y=lambda g, x, y, y_spec: sum_to(where(_first(x, y, le), 0.0, g), to=y_spec),
          doc="The smaller; beside a NaN, the other.")
arctan2 = op("arctan2", divide, may_alias=("x", "y"),
             x=lambda g, x, y, x_spec: sum_to(g * _over_squares(y, x, y), to=x_spec),
             y=lambda g, x, y, y_spec: sum_to(-g * _over_squares(x, x, y), to=y_spec),
             doc="The angle of the point with abscissa y and ordinate x, in radians in [-pi, pi].")
hypot = op("hypot", _floats_only("hypot"), may_alias=("x", "y"),
           x=lambda g, x, out, x_spec: sum_to(g * (x / out), to=x_spec),
           y=lambda g, y, out, y_spec: sum_to(g * (y / out), to=y_spec),
           doc="sqrt(x^2 + y^2), without overflow.")
logaddexp = op("logaddexp", _floats_only("logaddexp"), may_alias=("x", "y"),
               x=lambda g, x, y, x_spec: sum_to(g * sigmoid(x - y), to=x_spec),
               y=lambda g, x, y, y_spec: sum_to(g * sigmoid(y - x), to=y_spec),
               doc="log(exp(x) + exp(y)), without overflow.")


def _of_factor(product: Any, edge: float) -> Any:
    """The gradient of x log y with respect to x: 0 where x is, and y has no logarithm or an infinite one."""
    def rule(g: Any, x: Any, y: Any, x_spec: TensorSpec) -> Any:
        slope = product(g, y)
        if not isinstance(y, (int, float)):
            slope = where(logical_and(eq(x, 0), le(y, edge)), 0.0, slope)
        elif y <= edge:
            slope = where(eq(x, 0), 0.0, slope)
        return sum_to(slope, to=x_spec)

    return rule


def _of_logarithm(g: Any, x: Any, y: Any, y_spec: TensorSpec) -> Any:
    """The gradient of x log y with respect to y: 0 where both are."""
    dead = eq(y, 0)
    if not isinstance(x, (int, float)):
        dead = logical_and(eq(x, 0), dead)
    elif x:
        return sum_to(g * x / y, to=y_spec)
    return sum_to(g * (x / where(dead, math.inf, y)), to=y_spec)


xlogy = op("xlogy", divide, may_alias=("x", "y"), x=_of_factor(lambda g, y: xlogy(g, y), 0), y=_of_logarithm,
           doc="x log(y), and 0 where x is 0 and y is not NaN.")
xlog1py = op("xlog1py", divide, may_alias=("x", "y"), x=_of_factor(lambda g, y: xlog1py(g, y), -1),
             y=lambda g, x, y, y_spec: _of_logarithm(g, x, y + 1, y_spec),
             doc="x log(1 + y), and 0 where x is 0 and y is not NaN.")

# -- of three ----------------------------------------------------------------------------------------------------------


def _three(name: str, x: TensorSpec, y: TensorSpec, z: Operand) -> TensorSpec:
    for operand in (x, y):
        need_tensor(name, operand)
    return TensorSpec.of(broadcast_shapes(shape_of(x), shape_of(y), shape_of(z)), promote((x, y, z)))


def _lerp_spec(x: TensorSpec, y: TensorSpec, weight: Operand) -> TensorSpec:
    need_tensor("lerp", y)
    need_float("lerp", input=x, end=y, weight=weight)
    need_one_dtype("lerp", input=x, end=y, weight=weight if isinstance(weight, TensorSpec) and weight.ndim else None)
    return _three("lerp", x, y, weight)


def _addcmul_spec(x: TensorSpec, y: TensorSpec, z: TensorSpec, *, value: float = 1) -> TensorSpec:
    need_tensor("addcmul", z)
    return need_number("addcmul", _three("addcmul", x, y, z), x, y, z)


def _addcdiv_spec(x: TensorSpec, y: TensorSpec, z: TensorSpec, *, value: float = 1) -> TensorSpec:
    need_tensor("addcdiv", z)
    if not is_floating(promote((y, z))):
        raise SpecError("Integer division with addcdiv is no longer supported: one of tensor1 and tensor2 must be of a "
                        f"floating type, but got {y.dtype.name} and {z.dtype.name}")
    return _three("addcdiv", x, y, z)


def _times(a: Any, value: float) -> Any:
    return a if value == 1 else a * value


lerp = op("lerp", _lerp_spec, may_alias=("x", "y", "weight"),
          x=lambda g, weight, x_spec: sum_to(g * (1 - weight), to=x_spec),
          y=lambda g, weight, y_spec: sum_to(g * weight, to=y_spec),
          weight=lambda g, x, y, weight_spec: sum_to(g * (y - x), to=weight_spec),
          doc="x + weight (y - x), exact at both ends.")
addcmul = op("addcmul", _addcmul_spec, may_alias=("x", "y", "z"), signs=True,
             x=lambda g, x_spec: sum_to(g, to=x_spec),
             y=lambda g, z, y_spec, value: sum_to(_times(g * z, value), to=y_spec),
             z=lambda g, y, z_spec, value: sum_to(_times(g * y, value), to=z_spec),
             again=lambda x, y, z, attrs: addcmul(x, y, z, **attrs),
             doc="x + value y z.")
addcdiv = op("addcdiv", _addcdiv_spec, may_alias=("x", "y", "z"), signs=True,
             x=lambda g, x_spec: sum_to(g, to=x_spec),
             y=lambda g, z, y_spec, value: sum_to(_times(g / z, value), to=y_spec),
             z=lambda g, y, z, z_spec, value: sum_to(_times(-g * (y / z) / z, value), to=z_spec),
             doc="x + value y / z.")


def _masked_fill_spec(x: TensorSpec, mask: TensorSpec, value: Operand) -> TensorSpec:
    if not isinstance(mask, TensorSpec) or mask.dtype.kind != "b":
        raise SpecError(f"masked_fill_ only supports boolean masks, but got mask {mask}")
    if shape_of(value):
        raise SpecError(f"masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {len(shape_of(value))} "
                        "dimension(s).")
    return TensorSpec.of(broadcast_shapes(x.shape, mask.shape), x.dtype)


masked_fill_ = op("masked_fill_", _masked_fill_spec, writes=("x",),
                  x=lambda g, mask: where(mask, 0.0, g),
                  value=lambda g, mask, value_spec: sum_to(where(mask, g, 0.0), to=value_spec))

# -- bits --------------------------------------------------------------------------------------------------------------


def _bits(name: str, *operands: Operand) -> None:
    need_tensor(name, *operands)
    for x in operands:
        if x is float or (isinstance(x, TensorSpec) and x.floating):
            raise NotImplementedError(f"{name} is not implemented for floating types, but got {x}: expected integers or bools")


def _bits_of_two(name: str) -> Any:
    def infer(x: Operand, y: Operand) -> TensorSpec:
        _bits(name, x, y)
        return numbers(name)(x, y) if name.endswith("shift") else broadcast(x, y)

    return infer


def _bitwise_not_spec(x: TensorSpec) -> TensorSpec:
    _bits("bitwise_not", x)
    return x.like()


bitwise_not = op("bitwise_not", _bitwise_not_spec, may_alias=("x",), doc="Each bit inverted; logical not for bools.")
bitwise_and, bitwise_or, bitwise_xor, bitwise_left_shift, bitwise_right_shift = (
    op(name, _bits_of_two(name), may_alias=("x", "y"), doc=doc) for name, doc in (
        ("bitwise_and", "The bits that are set in both."),
        ("bitwise_or", "The bits that are set in one of the two or in both."),
        ("bitwise_xor", "The bits that are set in one of the two alone."),
        ("bitwise_left_shift", "x with its bits moved y places up."),
        ("bitwise_right_shift", "x with its bits moved y places down; the sign stays.")))
