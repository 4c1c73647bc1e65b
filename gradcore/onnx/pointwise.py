"""Converters to ONNX of elementwise ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.dtypes import is_floating, promote
from gradcore.onnx.graph import Graph, Value
from gradcore.onnx.table import CONVERTERS, converts
from gradcore.spec import TensorSpec

#: Ops with one operand that are one ONNX operator.
UNARY = {"neg": "Neg", "reciprocal": "Reciprocal", "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
         "sin": "Sin", "cos": "Cos", "tan": "Tan", "sinh": "Sinh", "cosh": "Cosh", "arcsin": "Asin", "arccos": "Acos",
         "arctan": "Atan", "arcsinh": "Asinh", "arccosh": "Acosh", "arctanh": "Atanh", "erf": "Erf", "relu": "Relu",
         "tanh": "Tanh", "sigmoid": "Sigmoid", "softsign": "Softsign", "clone": "Identity"}
#: Ops with two operands, of the result's dtype, that are one ONNX operator.
BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min"}
COMPARE = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}


def _unary(kind: str) -> Any:
    return lambda g, out, x: g.node(kind, g.cast(x, out.dtype))


def _binary(kind: str) -> Any:
    return lambda g, out, x, y: g.pointwise(kind, x, y, dtype=out.dtype)


def _compare(kind: str) -> Any:
    return lambda g, out, x, y: g.pointwise(kind, x, y, dtype=common(x, y), result=np.bool_)


def _logical(kind: str) -> Any:
    return lambda g, out, x, y: g.pointwise(kind, x, y, dtype=np.bool_)


def _rounded(kind: str) -> Any:
    return lambda g, out, x: g.node(kind, x) if is_floating(x.dtype) else x


for _name, _kind in {"floor": "Floor", "ceil": "Ceil", "round": "Round"}.items():
    CONVERTERS[_name] = _rounded(_kind)
for _table, _make in ((UNARY, _unary), (BINARY, _binary), (COMPARE, _compare), (LOGICAL, _logical)):
    for _name, _kind in _table.items():
        CONVERTERS[_name] = _make(_kind)


def common(*operands: Any) -> np.dtype[Any]:
    """The dtype in which operands are compared."""
    return promote([TensorSpec.of(x.shape, x.dtype) if isinstance(x, Value) else type(x) for x in operands])


@converts("ne")
def _ne(g: Graph, out: TensorSpec, x: Any, y: Any) -> Value:
    return g.node("Not", g.pointwise("Equal", x, y, dtype=common(x, y), result=np.bool_))


@converts("logical_not")
def _not(g: Graph, out: TensorSpec, x: Any) -> Value:
    return g.node("Not", g.number(x, np.bool_))


def _bits(kind: str) -> Any:
    """A converter to the logical operator for bools, or the bitwise one for integers."""
    return lambda g, out, x, y: g.pointwise(kind if out.dtype == np.bool_ else f"Bitwise{kind}", x, y, dtype=out.dtype)


for _name, _kind in LOGICAL.items():
    CONVERTERS[_name.replace("logical", "bitwise")] = _bits(_kind)


@converts("bitwise_not")
def _bitwise_not(g: Graph, out: TensorSpec, x: Any) -> Value:
    return g.node("Not" if out.dtype == np.bool_ else "BitwiseNot", g.number(x, out.dtype))


@converts("cast")
def _cast(g: Graph, out: TensorSpec, x: Value, *, dtype: Any) -> Value:
    return g.cast(x, dtype)


@converts("fill_", "copy_")
def _fill(g: Graph, out: TensorSpec, x: Value, value: Any) -> Value:
    return g.number(value, out.dtype)


@converts("masked_fill_")
def _masked_fill(g: Graph, out: TensorSpec, x: Value, mask: Value, value: Any) -> Value:
    return where(g, mask, g.number(value, out.dtype), x)


def where(g: Graph, condition: Value, x: Value, y: Value) -> Value:
    if x.dtype == np.bool_:
        # onnxruntime has no Where of bools.
        chosen = g.pointwise("And", condition, x, dtype=np.bool_)
        return g.pointwise("Or", chosen, g.pointwise("And", g.node("Not", condition), y, dtype=np.bool_), dtype=np.bool_)
    shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
    return g.node("Where", condition, x, y, shape=shape, dtype=x.dtype)


@converts("where")
def _where(g: Graph, out: TensorSpec, condition: Value, x: Any, y: Any) -> Value:
    return where(g, g.cast(condition, np.bool_), g.number(x, out.dtype), g.number(y, out.dtype))


@converts("clamp")
def _clamp(g: Graph, out: TensorSpec, x: Any, low: Any, high: Any) -> Value:
    x = g.number(x, out.dtype)
    if low is not None:
        x = g.pointwise("Max", x, low, dtype=out.dtype)
    return x if high is None else g.pointwise("Min", x, high, dtype=out.dtype)


@converts("floor_divide")
def _floor_divide(g: Graph, out: TensorSpec, x: Any, y: Any) -> Value:
    t = out.dtype
    if not is_floating(t):
        # ONNX's Div of integers rounds towards 0, and its Mod has the sign of the divisor.
        return g.pointwise("Div", g.pointwise("Sub", x, g.pointwise("Mod", x, y, dtype=t), dtype=t), y, dtype=t)
    # The floor of a quotient that is rounded may be one too many, as for 1.0 and 0.1; what the rest leaves is whole.
    rest, turned = _rest(g, t, x, y)
    whole = g.node("Round", g.pointwise("Div", g.pointwise("Sub", x, rest, dtype=t), y, dtype=t))
    whole = g.pointwise("Sub", whole, turned, dtype=t)
    by_zero = g.pointwise("Equal", y, 0.0, dtype=t, result=np.bool_)
    return where(g, by_zero, g.pointwise("Div", x, y, dtype=t), whole)


@converts("remainder")
def _remainder(g: Graph, out: TensorSpec, x: Any, y: Any) -> Value:
    t = out.dtype
    if not is_floating(t):
        return g.pointwise("Mod", x, y, dtype=t)
    rest, turned = _rest(g, t, x, y)
    return where(g, turned, g.pointwise("Add", rest, y, dtype=t), rest)


def _rest(g: Graph, t: Any, x: Any, y: Any) -> tuple[Value, Value]:
    """What a division that rounds towards 0 leaves, which is exact, and whether its sign is not the divisor's."""
    rest = g.pointwise("Mod", x, y, dtype=t, fmod=1)
    signs = [g.pointwise("Less", v, 0.0, dtype=t, result=np.bool_) for v in (rest, y)]
    some = g.node("Not", g.pointwise("Equal", rest, 0.0, dtype=t, result=np.bool_))
    return rest, g.pointwise("And", some, g.pointwise("Xor", *signs, dtype=np.bool_), dtype=np.bool_)


@converts("fmod")
def _fmod(g: Graph, out: TensorSpec, x: Any, y: Any) -> Value:
    return g.pointwise("Mod", x, y, dtype=out.dtype, fmod=1)


@converts("isnan")
def _isnan(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.node("IsNaN", floating(g, x), dtype=np.bool_)


@converts("isinf")
def _isinf(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.node("IsInf", floating(g, x), dtype=np.bool_)


def floating(g: Graph, x: Value) -> Value:
    return x if is_floating(x.dtype) else g.cast(x, np.float32)


@converts("isfinite")
def _isfinite(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.node("Not", g.pointwise("Or", _isnan(g, out, x), _isinf(g, out, x), dtype=np.bool_))


@converts("pow")
def _pow(g: Graph, out: TensorSpec, x: Any, y: Any) -> Value:
    # onnxruntime has no power of small integers, and one of int32 does not wrap around.
    return g.cast(g.pointwise("Pow", x, y, dtype=out.dtype if is_floating(out.dtype) else np.int64), out.dtype)


@converts("square")
def _square(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.pointwise("Mul", x, x, dtype=out.dtype)


@converts("rsqrt")
def _rsqrt(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.node("Reciprocal", g.node("Sqrt", g.cast(x, out.dtype)))


@converts("expm1")
def _expm1(g: Graph, out: TensorSpec, x: Value) -> Value:
    # exp(x) - 1 = 2 tanh(x / 2) / (1 - tanh(x / 2)), which is exact near 0; where the tangent is 1, the exponential itself.
    x = g.cast(x, out.dtype)
    t = g.node("Tanh", g.pointwise("Mul", g.pointwise("Min", x, 1.0, dtype=x.dtype), 0.5, dtype=x.dtype))
    rest = g.pointwise("Sub", 1.0, t, dtype=x.dtype)
    near = g.pointwise("Div", g.pointwise("Mul", t, 2.0, dtype=x.dtype), rest, dtype=x.dtype)
    far = g.pointwise("Sub", g.node("Exp", x), 1.0, dtype=x.dtype)
    return where(g, g.pointwise("Greater", x, 1.0, dtype=x.dtype, result=np.bool_), far, near)


@converts("log1p")
def _log1p(g: Graph, out: TensorSpec, x: Value) -> Value:
    # Kahan: log(u) x / (u - 1) for u = 1 + x, and x where u is 1 or x infinite.
    x = g.cast(x, out.dtype)
    u = g.pointwise("Add", x, 1.0, dtype=x.dtype)
    less = g.pointwise("Sub", u, 1.0, dtype=x.dtype)
    zero = g.pointwise("Equal", less, 0.0, dtype=x.dtype, result=np.bool_)
    share = g.pointwise("Div", x, where(g, zero, g.constant(1.0, x.dtype), less), dtype=x.dtype)
    same = g.pointwise("Or", zero, g.node("IsInf", x, dtype=np.bool_, detect_negative=0), dtype=np.bool_)
    return where(g, same, x, g.pointwise("Mul", g.node("Log", u), share, dtype=x.dtype))


@converts("log2")
def _log2(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.pointwise("Mul", g.node("Log", g.cast(x, out.dtype)), 1 / math.log(2), dtype=out.dtype)


@converts("log10")
def _log10(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.pointwise("Mul", g.node("Log", g.cast(x, out.dtype)), 1 / math.log(10), dtype=out.dtype)


@converts("exp2")
def _exp2(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.pointwise("Pow", 2.0, x, dtype=out.dtype)


@converts("trunc")
def _trunc(g: Graph, out: TensorSpec, x: Value) -> Value:
    if not is_floating(x.dtype):
        return x
    return g.pointwise("Mul", g.node("Sign", x), g.node("Floor", g.node("Abs", x)), dtype=x.dtype)


@converts("frac")
def _frac(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.pointwise("Sub", x, _trunc(g, out, x), dtype=x.dtype)


@converts("lerp")
def _lerp(g: Graph, out: TensorSpec, x: Any, y: Any, weight: Any) -> Value:
    part = g.pointwise("Mul", g.pointwise("Sub", y, x, dtype=out.dtype), weight, dtype=out.dtype)
    return g.pointwise("Add", x, part, dtype=out.dtype)


@converts("addcmul")
def _addcmul(g: Graph, out: TensorSpec, x: Any, y: Any, z: Any, *, value: Any) -> Value:
    part = g.pointwise("Mul", g.pointwise("Mul", y, z, dtype=out.dtype), value, dtype=out.dtype)
    return g.pointwise("Add", x, part, dtype=out.dtype)


@converts("addcdiv")
def _addcdiv(g: Graph, out: TensorSpec, x: Any, y: Any, z: Any, *, value: Any) -> Value:
    part = g.pointwise("Mul", g.pointwise("Div", y, z, dtype=out.dtype), value, dtype=out.dtype)
    return g.pointwise("Add", x, part, dtype=out.dtype)


# -- activations -------------------------------------------------------------------------------------------------------


@converts("gelu")
def _gelu(g: Graph, out: TensorSpec, x: Value, *, tanh: bool) -> Value:
    t = x.dtype
    if tanh:
        cube = g.pointwise("Mul", g.pointwise("Mul", x, x, dtype=t), x, dtype=t)
        inner = g.pointwise("Add", x, g.pointwise("Mul", cube, 0.044715, dtype=t), dtype=t)
        curve = g.node("Tanh", g.pointwise("Mul", inner, math.sqrt(2 / math.pi), dtype=t))
    else:
        curve = g.node("Erf", g.pointwise("Mul", x, math.sqrt(0.5), dtype=t))
    return g.pointwise("Mul", g.pointwise("Mul", x, 0.5, dtype=t), g.pointwise("Add", curve, 1.0, dtype=t), dtype=t)


@converts("silu")
def _silu(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.pointwise("Mul", x, g.node("Sigmoid", x), dtype=x.dtype)


@converts("mish")
def _mish(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.pointwise("Mul", x, g.node("Tanh", g.node("Softplus", x)), dtype=x.dtype)


@converts("logsigmoid")
def _logsigmoid(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.node("Neg", g.node("Softplus", g.node("Neg", x)))


@converts("logit")
def _logit(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.node("Log", g.pointwise("Div", x, g.pointwise("Sub", 1.0, x, dtype=out.dtype), dtype=out.dtype))


@converts("hardsigmoid")
def _hardsigmoid(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@converts("hardswish")
def _hardswish(g: Graph, out: TensorSpec, x: Value) -> Value:
    return g.node("HardSwish", x)


@converts("hardtanh")
def _hardtanh(g: Graph, out: TensorSpec, x: Value, *, low: float, high: float) -> Value:
    return _clamp(g, out, x, low, high)


@converts("leaky_relu")
def _leaky_relu(g: Graph, out: TensorSpec, x: Value, slope: Any) -> Value:
    positive = g.pointwise("Greater", x, 0.0, dtype=x.dtype, result=np.bool_)
    return where(g, positive, x, g.pointwise("Mul", x, slope, dtype=x.dtype))


@converts("hardshrink")
def _hardshrink(g: Graph, out: TensorSpec, x: Value, lambd: Any) -> Value:
    inside = g.pointwise("LessOrEqual", g.node("Abs", x), lambd, dtype=x.dtype, result=np.bool_)
    return where(g, inside, g.constant(0.0, x.dtype), x)


@converts("softshrink")
def _softshrink(g: Graph, out: TensorSpec, x: Value, lambd: Any) -> Value:
    # onnxruntime's Shrink of NaN is 0.
    low = g.node("Neg", g.number(lambd, x.dtype))
    inside = g.pointwise("Min", g.pointwise("Max", x, low, dtype=x.dtype), lambd, dtype=x.dtype)
    return g.pointwise("Sub", x, inside, dtype=x.dtype)


@converts("threshold")
def _threshold(g: Graph, out: TensorSpec, x: Value, threshold: Any, value: Any) -> Value:
    # NaN is not replaced.
    below = g.pointwise("LessOrEqual", x, threshold, dtype=x.dtype, result=np.bool_)
    return where(g, below, g.number(value, x.dtype), x)


@converts("elu")
def _elu(g: Graph, out: TensorSpec, x: Value, *, alpha: float, scale: float, inner: float) -> Value:
    t = x.dtype
    less = _expm1(g, out, g.pointwise("Mul", g.pointwise("Min", x, 0.0, dtype=t), inner, dtype=t))
    positive = g.pointwise("Greater", x, 0.0, dtype=t, result=np.bool_)
    return where(g, positive, g.pointwise("Mul", x, scale, dtype=t), g.pointwise("Mul", less, scale * alpha, dtype=t))


@converts("softplus")
def _softplus(g: Graph, out: TensorSpec, x: Value, *, beta: float, threshold: float) -> Value:
    t = x.dtype
    scaled = g.pointwise("Mul", x, beta, dtype=t)
    # log(1 + exp(z)) = max(z, 0) + log(1 + exp(-|z|)), which does not overflow.
    tail = _log1p(g, out, g.node("Exp", g.node("Neg", g.node("Abs", scaled))))
    soft = g.pointwise("Mul", g.pointwise("Add", g.node("Relu", scaled), tail, dtype=t), 1 / beta, dtype=t)
    return where(g, g.pointwise("Greater", scaled, threshold, dtype=t, result=np.bool_), x, soft)
