"""Converters to ONNX of elementwise ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.dtypes import is_floating, promote
from gradcore.onnx.graph import Graph, Value
from gradcore.onnx.table import converts, enter
from gradcore.spec import TensorSpec

#: Ops with one operand that are one ONNX operator.
UNARY = {"neg": "Neg", "reciprocal": "Reciprocal", "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
         "sin": "Sin", "cos": "Cos", "tan": "Tan", "sinh": "Sinh", "cosh": "Cosh", "arcsin": "Asin", "arccos": "Acos",
         "arctan": "Atan", "arcsinh": "Asinh", "arccosh": "Acosh", "arctanh": "Atanh", "erf": "Erf", "relu": "Relu",
         "tanh": "Tanh", "sigmoid": "Sigmoid", "softsign": "Softsign", "hardswish": "HardSwish", "clone": "Identity"}
#: Ops with two operands, of the result's dtype, that are one ONNX operator.
BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min"}
COMPARE = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
BITWISE = {"bitwise_and": "And", "bitwise_or": "Or", "bitwise_xor": "Xor"}
#: Those that leave integers as they are.
ROUNDED = {"floor": "Floor", "ceil": "Ceil", "round": "Round"}


def common(*operands: Any) -> np.dtype[Any]:
    """The dtype in which operands are compared: a number that small integers cannot hold does not wrap around."""
    dtype = promote([TensorSpec.of(x.shape, x.dtype) if isinstance(x, Value) else type(x) for x in operands])
    if dtype.kind in "iu" and any(not np.iinfo(dtype).min <= x <= np.iinfo(dtype).max for x in operands
                                  if not isinstance(x, Value)):
        return np.dtype(np.int64)
    return dtype


def _unary(kind: str) -> Any:
    return lambda g, out, x: g.node(kind, g.cast(x, out.dtype))


def _rounded(kind: str) -> Any:
    return lambda g, out, x: g.node(kind, x) if is_floating(x.dtype) else x


def _binary(kind: str) -> Any:
    return lambda g, out, x, y: g.pointwise(kind, x, y, dtype=out.dtype)


def _compare(kind: str) -> Any:
    return lambda g, out, x, y: g.pointwise(kind, x, y, dtype=common(x, y), result=np.bool_)


def _logical(kind: str) -> Any:
    return lambda g, out, x, y: g.pointwise(kind, x, y, dtype=np.bool_)


def _bits(kind: str) -> Any:
    """A converter to the logical operator for bools, or the bitwise one for integers."""
    return lambda g, out, x, y: g.pointwise(kind if out.dtype == np.bool_ else f"Bitwise{kind}", x, y, dtype=out.dtype)


for _table, _make in ((UNARY, _unary), (ROUNDED, _rounded), (BINARY, _binary), (COMPARE, _compare), (LOGICAL, _logical),
                      (BITWISE, _bits)):
    enter({_name: _make(_kind) for _name, _kind in _table.items()})

# Those that one formula computes.
enter({
    "cast": lambda g, out, x, *, dtype: g.cast(x, dtype),
    "fill_": lambda g, out, x, value: g.number(value, out.dtype),
    "copy_": lambda g, out, x, value: g.number(value, out.dtype),
    "masked_fill_": lambda g, out, x, mask, value: g.where(mask, g.number(value, out.dtype), x),
    "where": lambda g, out, condition, x, y: g.where(g.cast(condition, np.bool_), g.number(x, out.dtype),
                                                     g.number(y, out.dtype)),
    "ne": lambda g, out, x, y: ~g.pointwise("Equal", x, y, dtype=common(x, y), result=np.bool_),
    "logical_not": lambda g, out, x: ~g.number(x, np.bool_),
    "isnan": lambda g, out, x: g.node("IsNaN", floating(g, x), dtype=np.bool_),
    "isinf": lambda g, out, x: g.node("IsInf", floating(g, x), dtype=np.bool_),
    "isfinite": lambda g, out, x: ~(g.node("IsNaN", floating(g, x), dtype=np.bool_)
                                    | g.node("IsInf", floating(g, x), dtype=np.bool_)),
    "frac": lambda g, out, x: x - _trunc(g, out, x),
    "logit": lambda g, out, x: g.node("Log", (x := g.cast(x, out.dtype)) / (1.0 - x)),
    "bitwise_not": lambda g, out, x: g.node("Not" if out.dtype == np.bool_ else "BitwiseNot", g.number(x, out.dtype)),
    "fmod": lambda g, out, x, y: g.pointwise("Mod", x, y, dtype=out.dtype, fmod=1),
    # onnxruntime has no power of small integers, and one of int32 does not wrap around.
    "pow": lambda g, out, x, y: g.cast(
        g.pointwise("Pow", x, y, dtype=out.dtype if is_floating(out.dtype) else np.int64), out.dtype),
    "square": lambda g, out, x: g.pointwise("Mul", x, x, dtype=out.dtype),
    "rsqrt": lambda g, out, x: g.node("Reciprocal", g.node("Sqrt", g.cast(x, out.dtype))),
    "log2": lambda g, out, x: g.node("Log", g.cast(x, out.dtype)) * (1 / math.log(2)),
    "log10": lambda g, out, x: g.node("Log", g.cast(x, out.dtype)) * (1 / math.log(10)),
    "exp2": lambda g, out, x: 2.0 ** g.cast(x, out.dtype),
    "addcmul": lambda g, out, x, y, z, *, value: g.number(x, out.dtype) + g.number(y, out.dtype) * z * value,
    "addcdiv": lambda g, out, x, y, z, *, value: g.number(x, out.dtype) + g.number(y, out.dtype) / z * value,
    "xlogy": lambda g, out, x, y: _product(g, g.number(x, out.dtype), g.node("Log", y := g.number(y, out.dtype)), y),
    "xlog1py": lambda g, out, x, y: _product(g, g.number(x, out.dtype), _log1p(g, out, y := g.number(y, out.dtype)), y),
    "silu": lambda g, out, x: x * g.node("Sigmoid", x),
    "mish": lambda g, out, x: x * g.node("Tanh", g.node("Softplus", x)),
    "logsigmoid": lambda g, out, x: -g.node("Softplus", -x),
    "hardsigmoid": lambda g, out, x: g.node("HardSigmoid", x, alpha=1 / 6, beta=0.5),
    "hardtanh": lambda g, out, x, *, low, high: _clamp(g, out, x, low, high),
    "leaky_relu": lambda g, out, x, slope: g.where(x > 0.0, x, x * slope),
    "hardshrink": lambda g, out, x, lambd: g.where(abs(x) <= lambd, g.constant(0.0, x.dtype), x),
    # onnxruntime's Shrink of NaN is 0.
    "softshrink": lambda g, out, x, lambd: x - x.at_least(-g.number(lambd, x.dtype)).at_most(lambd),
    # NaN is not replaced.
    "threshold": lambda g, out, x, threshold, value: g.where(x <= threshold, g.number(value, x.dtype), x)})


@converts("clamp")
def _clamp(g: Graph, out: TensorSpec, x: Any, low: Any, high: Any) -> Value:
    x = g.number(x, out.dtype)
    if low is not None:
        x = x.at_least(low)
    return x if high is None else x.at_most(high)


def _product(g: Graph, x: Value, logarithm: Value, y: Value) -> Value:
    """x times a logarithm, and 0 where x is 0 and y is not NaN."""
    whole = ~g.pointwise("Equal", x, 0.0, dtype=x.dtype, result=np.bool_) | g.node("IsNaN", y, dtype=np.bool_)
    return g.where(whole, x * logarithm, g.constant(0.0, x.dtype))


@converts("sign")
def _sign(g: Graph, out: TensorSpec, x: Value) -> Value:
    # Not by onnxruntime's Sign, whose result for NaN is NaN.
    return x if x.dtype == np.bool_ else g.cast(x > 0, out.dtype) - g.cast(x < 0, out.dtype)


@converts("lerp")
def _lerp(g: Graph, out: TensorSpec, x: Any, y: Any, weight: Any) -> Value:
    x, y = g.number(x, out.dtype), g.number(y, out.dtype)
    # From the end that is nearer, as the op's kernels.
    less = y - x
    if not isinstance(weight, Value):
        return x + less * weight if abs(weight) < 0.5 else y - less * (1 - weight)
    weight = g.cast(weight, out.dtype)
    return g.where(abs(weight) < 0.5, x + less * weight, y - less * (1.0 - weight))


@converts("floor_divide")
def _floor_divide(g: Graph, out: TensorSpec, x: Any, y: Any) -> Value:
    x, y = g.number(x, out.dtype), g.number(y, out.dtype)
    rest, turned = _rest(g, x, y)
    if not is_floating(out.dtype):
        # ONNX's Div of integers rounds towards 0.
        return x / y - turned
    # The floor of a quotient that is rounded may be one too many, as for 1.0 and 0.1; what the rest leaves is whole.
    whole = g.node("Round", (x - rest) / y) - turned
    return g.where(y.equals(0.0), x / y, whole)


@converts("remainder")
def _remainder(g: Graph, out: TensorSpec, x: Any, y: Any) -> Value:
    x, y = g.number(x, out.dtype), g.number(y, out.dtype)
    if not is_floating(out.dtype):
        return g.pointwise("Mod", x, y, dtype=out.dtype)
    rest, turned = _rest(g, x, y)
    return g.where(turned, rest + y, rest)


def _rest(g: Graph, x: Value, y: Value) -> tuple[Value, Value]:
    """What a division that rounds towards 0 leaves, which is exact, and whether its sign is not the divisor's."""
    rest = g.pointwise("Mod", x, y, dtype=x.dtype, fmod=1)
    signs = rest < 0.0, y < 0.0
    return rest, ~rest.equals(0.0) & (signs[0] ^ signs[1])


def floating(g: Graph, x: Value) -> Value:
    return x if is_floating(x.dtype) else g.cast(x, np.float32)


@converts("expm1")
def _expm1(g: Graph, out: TensorSpec, x: Value) -> Value:
    # exp(x) - 1 = 2 tanh(x / 2) / (1 - tanh(x / 2)), which is exact near 0; where the tangent is 1, the exponential itself.
    x = g.cast(x, out.dtype)
    half = g.node("Tanh", x.at_most(1.0) * 0.5)
    rest = 1.0 - half
    near, far = half * 2.0 / rest, g.node("Exp", x) - 1.0
    return g.where(x > 1.0, far, near)


@converts("log1p")
def _log1p(g: Graph, out: TensorSpec, x: Value) -> Value:
    # Kahan: log(u) x / (u - 1) for u = 1 + x, and x where u is 1 or x infinite.
    x = g.cast(x, out.dtype)
    u = x + 1.0
    less = u - 1.0
    zero = less.equals(0.0)
    share = x / g.where(zero, g.constant(1.0, x.dtype), less)
    same = zero | g.node("IsInf", x, dtype=np.bool_, detect_negative=0)
    return g.where(same, x, g.node("Log", u) * share)


@converts("trunc")
def _trunc(g: Graph, out: TensorSpec, x: Value) -> Value:
    if not is_floating(x.dtype):
        return x
    return g.node("Sign", x) * g.node("Floor", abs(x))


# -- activations -------------------------------------------------------------------------------------------------------


@converts("gelu")
def _gelu(g: Graph, out: TensorSpec, x: Value, *, tanh: bool) -> Value:
    if tanh:
        curve = g.node("Tanh", (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi))
    else:
        curve = g.node("Erf", x * math.sqrt(0.5))
    return x * 0.5 * (curve + 1.0)


@converts("elu")
def _elu(g: Graph, out: TensorSpec, x: Value, *, alpha: float, scale: float, inner: float) -> Value:
    less = _expm1(g, out, x.at_most(0.0) * inner)
    return g.where(x > 0.0, x * scale, less * (scale * alpha))


@converts("softplus")
def _softplus(g: Graph, out: TensorSpec, x: Value, *, beta: float, threshold: float) -> Value:
    scaled = x * beta
    # log(1 + exp(z)) = max(z, 0) + log(1 + exp(-|z|)), which does not overflow.
    tail = _log1p(g, out, g.node("Exp", -abs(scaled)))
    soft = (g.node("Relu", scaled) + tail) * (1 / beta)
    return g.where(scaled > threshold, x, soft)
