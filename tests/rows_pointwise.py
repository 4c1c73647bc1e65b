"""Sample calls of the elementwise ops of ``ops.pointwise``, ``ops.activation`` and ``ops.in_place``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gradcore.ops import all_ops
from gradcore.overwriting import OVERWRITING
from tests import rows_elementwise
from tests.rows import Operand, Row, bools, floats, ints
from tests.rows_elementwise import by_operator, torch_function

ROWS: list[Row] = []


def layouts(low: float, high: float) -> dict[str, Operand]:
    return {"plain": floats(2, 3, low=low, high=high), "transposed": floats(2, 3, low=low, high=high, layout="transposed"),
            "expanded": floats(3, 2, low=low, high=high, layout="expanded"), "empty": floats(0, 3, low=low, high=high),
            "0d": floats(low=low, high=high), "one": floats(1, 1, low=low, high=high)}


def activation(name: str, **attrs: Any) -> Callable[..., Any]:
    return lambda t, *args: getattr(t.nn.functional, name)(*args, **attrs)


# -- one operand -------------------------------------------------------------------------------------------------------

#: name: (reference, low, high, attributes); the domain avoids kinks and poles.
UNARY: dict[str, tuple[Callable[..., Any], float, float, dict[str, Any]]] = {
    **{name: (torch_function(torch or name), low, high, {}) for name, torch, low, high in (
        ("exp2", "", -2, 2), ("arcsin", "asin", -0.8, 0.8), ("arccos", "acos", -0.8, 0.8), ("arcsinh", "asinh", -2, 2),
        ("arccosh", "acosh", 1.3, 3), ("arctanh", "atanh", -0.8, 0.8), ("erfc", "", -2, 3), ("erfinv", "", -0.8, 0.8),
        ("lgamma", "", 0.2, 9), ("digamma", "", 0.2, 9), ("sinc", "", 0.1, 3),
        ("logit", "", 0.1, 0.9),
        ("trunc", "", -2, 2), ("frac", "", 0.1, 0.9), ("nan_to_num", "", -2, 2))},
    "polygamma": (lambda t, x: t.polygamma(1, x), 0.4, 9, {"n": 1}),
    **{name: (activation(name), -4, 4, {}) for name in ("silu", "mish", "softsign", "logsigmoid")},
    "hardsigmoid": (activation("hardsigmoid"), -2.9, 2.9, {}), "hardswish": (activation("hardswish"), -2.9, 2.9, {}),
    "elu": (activation("elu", alpha=0.7), -3, 3, {"alpha": 0.7, "scale": 1.0, "inner": 1.0}),
    "softplus": (activation("softplus", beta=2.0, threshold=3.0), -3, 3, {"beta": 2.0, "threshold": 3.0}),
    "hardtanh": (activation("hardtanh", min_val=-0.5, max_val=0.8), -2, 2, {"low": -0.5, "high": 0.8}),
}
for _name, (_reference, _low, _high, _attrs) in UNARY.items():
    ROWS += [Row(_name, k, (a,), _attrs, torch=_reference) for k, a in layouts(_low, _high).items()]

_SPECIAL = (math.nan, math.inf, -math.inf, 0.0, 100.0, -100.0)
ROWS += [
    Row(name, "special", (floats(6, given=_SPECIAL),), UNARY[name][3], torch=UNARY[name][0], smooth=False, gradient=False)
    for name in ("erfc", "trunc", "exp2", "silu", "softsign", "logsigmoid", "hardsigmoid", "hardswish", "hardtanh", "elu",
                 "softplus", "nan_to_num", "arcsinh")]
ROWS += [
    Row("erfc", "tail", (floats(6, given=(0.3, 0.6, 3, 6, 9, -5)),), torch=torch_function("erfc")),
    *[Row(name, k, (floats(len(given), given=given),), attrs, torch=reference, smooth=False)
      for name, reference, attrs in (
          ("lgamma", torch_function("lgamma"), {}), ("digamma", torch_function("digamma"), {}),
          ("polygamma", lambda t, x: t.polygamma(1, x), {"n": 1}), ("polygamma", lambda t, x: t.polygamma(2, x), {"n": 2}))
      for k, given in (("by 0.3" if attrs != {"n": 1} else "int", (-0.3, -0.7, -1.6, -2.3, 0.1, 1.4, 1.6)),
                       (f"far {attrs}", (3, 9.9, 10, 30, 200)))],
    Row("lgamma", "special", (floats(6, given=(0, -1, -3, math.inf, -math.inf, math.nan)),), torch=torch_function("lgamma"),
        smooth=False, gradient=False),
    Row("digamma", "special", (floats(6, given=(0, -1, -3, math.inf, -math.inf, math.nan)),), torch=torch_function("digamma"),
        smooth=False, gradient=False),
    Row("erfinv", "special", (floats(6, given=(0, -1, 1, 2, -math.inf, math.nan)),), torch=torch_function("erfinv"),
        smooth=False, gradient=False),
    Row("erfinv", "tail", (floats(6, given=(0.9, -0.99, 0.9999, -0.84, 1e-6, 0.999)),), torch=torch_function("erfinv"),
        smooth=False),
    Row("sinc", "zero", (floats(2, given=(0, 0.5)),), torch=torch_function("sinc"), smooth=False),
    Row("logit", "ends", (floats(6, given=(0, 1, 2, -1, math.nan, 1e-30)),), torch=torch_function("logit"), smooth=False),
    Row("logit", "int", (ints(3, low=0, high=2),), torch=torch_function("logit")),
    Row("trunc", "int", (ints(4, low=-3),), torch=torch_function("trunc")),
    Row("arcsinh", "int", (ints(4, low=-3),), torch=torch_function("asinh")),
    Row("nan_to_num", "given", (floats(6, given=_SPECIAL),), {"nan": 1.0, "posinf": 2.0, "neginf": -3.0},
        torch=lambda t, x: t.nan_to_num(x, 1.0, 2.0, -3.0), smooth=False),
    Row("nan_to_num", "int", (ints(3),), torch=torch_function("nan_to_num")),
    Row("hardswish", "flat", (floats(4, given=(-5, -3.5, 3.5, 5)),), torch=activation("hardswish")),
    Row("elu", "selu", (floats(5, low=-3),), {"alpha": 1.6732632423543772, "scale": 1.0507009873554805, "inner": 1.0},
        torch=activation("selu")),
    Row("elu", "celu", (floats(5, low=-3),), {"alpha": 1.5, "scale": 1.0, "inner": 1 / 1.5},
        torch=activation("celu", alpha=1.5)),
    Row("hardtanh", "edges", (floats(3, given=(-0.5, 0, 0.8)),), {"low": -0.5, "high": 0.8},
        torch=activation("hardtanh", min_val=-0.5, max_val=0.8), smooth=False),
    Row("hardtanh", "int", (ints(6, low=-3),), {"low": -1, "high": 2}, torch=lambda t, x: x.clamp(-1, 2)),
]

# -- two ---------------------------------------------------------------------------------------------------------------

#: name: (reference, low, high)
BINARY: dict[str, tuple[Callable[..., Any], float, float]] = {
    "fmod": (torch_function("fmod"), 0.3, 2), "fmax": (torch_function("fmax"), -2, 2), "fmin": (torch_function("fmin"), -2, 2),
    "arctan2": (torch_function("atan2"), 0.3, 2), "hypot": (torch_function("hypot"), 0.3, 2),
    "logaddexp": (torch_function("logaddexp"), -3, 3), "xlogy": (torch_function("xlogy"), 0.3, 2),
    "xlog1py": (lambda t, *args: t.special.xlog1py(*args), -0.7, 2)}


def _pairs(low: float, high: float) -> dict[str, tuple[Any, Any]]:
    """Like the samples of arithmetic, but without numbers, for which torch raises an error here."""
    return {k: v for k, v in rows_elementwise.pairs(low, high).items() if "scalar" not in k}


for _name, (_call, _low, _high) in BINARY.items():
    ROWS += [Row(_name, k, pair, torch=_call) for k, pair in _pairs(_low, _high).items()]
ROWS += [
    Row("fmod", "scalar", (floats(2, 3), 0.7), torch=torch_function("fmod")),
    Row("fmod", "signs", (floats(4, given=(-3.5, 3.5, -3.5, 3.4)), floats(4, given=(2, -2, -2, 2))),
        torch=torch_function("fmod")),
    Row("fmod", "int", (ints(6, given=(-7, 7, 5, -4, 1, 8)), ints(6, low=1)), torch=torch_function("fmod")),
    Row("fmax", "int", (ints(4), ints(4)), torch=torch_function("fmax")),
    Row("arctan2", "quadrants", (floats(5, given=(1, -1, 1, -1, 0)), floats(5, given=(2, 2, -2, -2, 0))),
        torch=torch_function("atan2"), smooth=False),
    Row("arctan2", "int", (ints(4, low=1), ints(4, low=1)), torch=torch_function("atan2")),
    Row("hypot", "large", (floats(2, given=(3e20, 3e-20)), floats(2, given=(4e20, 4e-20))), torch=torch_function("hypot"),
        smooth=False),
    Row("logaddexp", "large", (floats(3, given=(1000, -1000, 3)), floats(3, given=(1000, 0, -1000))),
        torch=torch_function("logaddexp"), smooth=False),
    *[Row(n, variant, args, torch=BINARY[n][0]) for n in ("xlogy", "xlog1py") for variant, args in (
        ("scalar", (floats(2, 3), 0.7)), ("of scalar", (0.7, floats(2, 3, low=0.3))), ("of 0", (0.0, floats(2, 3, low=0.3))))],
    *[Row(n, "int", (ints(4), ints(4, low=1)), torch=BINARY[n][0]) for n in ("xlogy", "xlog1py")],
    *[Row(n, "edges", (floats(6, given=(0, 0, 0, 2, -1, 0)), floats(6, given=(edge - 1, math.inf, 3, edge, edge, 0.5))),
          torch=BINARY[n][0], smooth=False) for n, edge in (("xlogy", 0), ("xlog1py", -1))],
]
_NAN = (floats(6, given=(1, 2, 3, math.nan, 1, math.nan)), floats(6, given=(1, 3, 2, 1, math.nan, math.nan)))
ROWS += [Row(n, "nan", _NAN, torch=torch_function(n), smooth=False) for n in ("fmax", "fmin")]

BITS: dict[str, Callable[[Any, Any], Any]] = {
    "bitwise_and": lambda x, y: x & y, "bitwise_or": lambda x, y: x | y, "bitwise_xor": lambda x, y: x ^ y}
for _name, _operator in BITS.items():
    ROWS += [
        Row(_name, "int", (ints(3, 1, low=-9, high=9), ints(4, low=-9, high=9)), torch=by_operator(_operator)),
        Row(_name, "scalar", (ints(5, low=-9, high=9), 6), torch=by_operator(_operator)),
        Row(_name, "bool", (bools(4), bools(4)), torch=by_operator(_operator)),
        Row(_name, "bool and int", (bools(4), ints(4)), torch=by_operator(_operator)),
        Row(_name, "layouts", (ints(2, 3, layout="transposed"), ints(2, 3)), torch=by_operator(_operator)),
        Row(_name, "empty", (ints(0), ints(1)), torch=by_operator(_operator)),
        Row(_name, "0d", (ints(), ints()), torch=by_operator(_operator))]
for _name in ("bitwise_left_shift", "bitwise_right_shift"):
    ROWS += [Row(_name, k, args, torch=torch_function(_name)) for k, args in {
        "int": (ints(6, low=-9, high=9), ints(6, high=5)), "scalar": (ints(6, low=-9, high=9), 2),
        "broadcast": (ints(3, 1), ints(4)), "layouts": (ints(2, 3, layout="transposed"), ints(3)),
        "empty": (ints(0), ints(0)), "0d": (ints(), ints())}.items()]
ROWS += [Row("bitwise_not", k, (a,), torch=torch_function("bitwise_not")) for k, a in {
    "int": ints(6, low=-9, high=9), "bool": bools(4), "layouts": ints(2, 3, layout="transposed"), "empty": ints(0),
    "0d": ints()}.items()]

# -- activations with a number, and gradients ----------------------------------------------------------------------------


def _slope(t: Any, x: Any, slope: Any) -> Any:
    return t.where(x > 0, x, x * slope)


ROWS += [
    *[Row("leaky_relu", k, (a, 0.1), torch=activation("leaky_relu")) for k, a in layouts(-2, 2).items()],
    *[Row("leaky_relu", k, args, torch=_slope) for k, args in {
        "channels": (floats(2, 3, 2), floats(1, 3, 1)), "one slope": (floats(2, 3), floats(1)),
        "slopes laid apart": (floats(2, 3, layout="transposed"), floats(1, 3, layout="sliced"))}.items()],
    *[Row("hardshrink", k, (a, 0.5), torch=activation("hardshrink")) for k, a in layouts(-2, 2).items()],
    *[Row("softshrink", k, (a, 0.5), torch=activation("softshrink")) for k, a in layouts(-2, 2).items()],
    *[Row("threshold", k, (a, 0.3, -1.0), torch=activation("threshold")) for k, a in layouts(-2, 2).items()],
    Row("hardshrink", "special", (floats(6, given=_SPECIAL), 0.5), torch=activation("hardshrink"), gradient=False),
]


def gradient_of(name: str, **attrs: Any) -> Callable[..., Any]:
    """The result of torch's backward through an activation for a cotangent, as a function that torch can differentiate."""

    def call(t: Any, dy: Any, x: Any, *numbers: Any) -> Any:
        x = x if x.requires_grad else x.detach().requires_grad_()
        y = getattr(t.nn.functional, name)(x, *numbers, **attrs)
        found, = t.autograd.grad(y, x, dy, create_graph=dy.requires_grad or x.requires_grad)
        return found

    return call


_GRADIENTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    **{f"{name}_grad": (gradient_of(name), (), {})
       for name in ("silu", "mish", "softsign", "logsigmoid", "hardswish")},
    "hardsigmoid_grad": (lambda t, dy, x: t.where((x > -3) & (x < 3), dy / 6, 0), (), {}),
    "elu_grad": (gradient_of("elu", alpha=0.7), (), UNARY["elu"][3]),
    "softplus_grad": (gradient_of("softplus", beta=2.0, threshold=3.0), (), UNARY["softplus"][3]),
    "hardtanh_grad": (gradient_of("hardtanh", min_val=-0.5, max_val=0.8), (), UNARY["hardtanh"][3]),
    "shrink_grad": (gradient_of("hardshrink"), (0.5,), {}),
    "leaky_relu_grad": (lambda t, dy, x, slope: t.where(x > 0, dy, dy * slope), (0.1,), {})}
for _name, (_call, _numbers, _attrs) in _GRADIENTS.items():
    ROWS += [Row(_name, k, (dy, x, *_numbers), _attrs, torch=_call) for k, (dy, x) in {
        "plain": (floats(2, 3), floats(2, 3, low=-2.9, high=2.9)),
        "layouts": (floats(2, 3, layout="transposed"), floats(2, 3, low=-2.9, high=2.9, layout="sliced")),
        "expanded": (floats(3, 2, layout="expanded"), floats(3, 2, low=-2.9, high=2.9)),
        "empty": (floats(0), floats(0)), "0d": (floats(), floats())}.items()]
ROWS.append(Row("leaky_relu_grad", "slopes", (floats(2, 3), floats(2, 3), floats(3)), torch=_GRADIENTS["leaky_relu_grad"][0]))

# -- three -------------------------------------------------------------------------------------------------------------

_triples: dict[str, tuple[Any, Any, Any]] = {
    "same": (floats(2, 3), floats(2, 3), floats(2, 3, low=0.6)), "broadcast": (floats(3, 1), floats(2), floats(1, 2, low=0.6)),
    "layouts": (floats(2, 3, layout="transposed"), floats(2, 3, layout="sliced"), floats(2, 3, low=0.6)),
    "expanded": (floats(3, 2, layout="expanded"), floats(3, 2), floats(2, low=0.6)),
    "0d": (floats(), floats(), floats(low=0.6)), "one": (floats(1), floats(1, 1), floats(1, low=0.6)),
    "empty": (floats(0, 3), floats(3), floats(1, low=0.6))}
ROWS += [
    *[Row("lerp", k, args, torch=torch_function("lerp")) for k, args in _triples.items()],
    *[Row("lerp", f"by {w}", (floats(2, 3), floats(3), w), torch=torch_function("lerp")) for w in (0.0, 0.3, 0.7, 1)],
    *[Row(name, f"{k} {value}", args, {"value": value},
          torch=lambda t, x, y, z, n=name, v=value: getattr(t, n)(x, y, z, value=v))
      for name in ("addcmul", "addcdiv") for value in (1, -0.5) for k, args in _triples.items()],
    Row("addcmul", "int", (ints(3), ints(3), ints(3)), {"value": 2}, torch=lambda t, x, y, z: t.addcmul(x, y, z, value=2)),
    *[Row("masked_fill_", k, args, torch=lambda t, x, m, v: x.clone().masked_fill_(m, v)) for k, args in {
        "number": (floats(2, 3), bools(2, 3), 1.5), "broadcast": (floats(2, 3), bools(3), -1),
        "tensor": (floats(2, 3), bools(2, 1), floats()), "layouts": (floats(2, 3), bools(2, 3, layout="transposed"), 0.0),
        "int": (ints(4), bools(4), 7), "empty": (floats(0), bools(0), 1.0), "0d": (floats(), bools(), 1.0)}.items()],
    *[Row("clamp", f"tensors {k}", args, torch=torch_function("clamp")) for k, args in {
        "both": (floats(2, 3), floats(2, 3, high=0), floats(2, 3, low=0)), "low": (floats(2, 3), floats(3), None),
        "high": (floats(2, 1), None, floats(3)), "crossed": (floats(6), floats(6), floats(6)),
        "layouts": (floats(2, 3, layout="transposed"), floats(3, high=0), floats(2, 3, low=0, layout="sliced")),
        "empty": (floats(0), floats(1), floats(1))}.items()],
]

# -- in place ----------------------------------------------------------------------------------------------------------

#: The samples of a functional op that are also run in place.
_CASES = {"plain", "same", "same 1", "same -0.5", "broadcast", "scalar second", "scalar", "0d", "empty", "layouts", "int",
          "one", "to 2", "both", "tensors both", "low", "special", "given", "zeros", "0.3", "by 0.3", "float", "bool"}


def _overwriting(row: Row) -> Row | None:
    first = row.args[0]
    if row.name not in _CASES or not isinstance(first, Operand) or row.torch is None:
        return None
    reference = row.torch

    def torch(t: Any, x: Any, *others: Any) -> Any:
        if row.op == "floor_divide":
            made = t.floor_divide(x.detach(), *(y.detach() if isinstance(y, t.Tensor) else y for y in others))
        else:
            made = reference(t, x, *others)
        if not made.requires_grad and x.requires_grad:
            # torch's functional op has no gradient; the in-place op has a gradient of 0.
            return x * 0 + made.to(x.dtype)
        return made.to(x.dtype)

    return replace(row, op=f"{row.op}_", torch=torch)


def _fits(row: Row) -> bool:
    """Does the result have the shape and kind of the operand that it is written to?"""
    shape = [a.shape for a in row.args if isinstance(a, Operand)]
    infer, kinds = all_ops()[row.op].infer, {a.kind for a in row.args if isinstance(a, Operand)}
    assert infer is not None
    return all(len(s) <= len(shape[0]) and all(n in (1, m) for n, m in zip(s[::-1], shape[0][::-1], strict=False))
               for s in shape[1:]) and (len(kinds) == 1 or row.args[0].kind == "float")


_MADE = [r for r in map(_overwriting, [*rows_elementwise.ROWS, *ROWS]) if r is not None]
_OWN = {r.op for r in rows_elementwise.ROWS}
ROWS += [r for r in _MADE if r.op[:-1] in OVERWRITING and r.op not in _OWN and _fits(r)
         and not (r.args[0].kind != "float" and r.op in ("arcsinh_", "arctan2_", "exp_", "sin_", "sqrt_"))]
