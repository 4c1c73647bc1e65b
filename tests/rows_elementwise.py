"""Sample calls of the elementwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.rows import Operand, Row, bools, floats, ints

ROWS: list[Row] = []

# -- one operand -------------------------------------------------------------------------------------------------------

#: name: (torch's name, low, high); the domain avoids kinks and poles.
UNARY = {
    "neg": ("neg", -2, 2), "abs": ("abs", -2, 2), "sign": ("sign", -2, 2), "floor": ("floor", -2, 2),
    "ceil": ("ceil", -2, 2), "round": ("round", -2, 2), "exp": ("exp", -2, 2), "expm1": ("expm1", -2, 2),
    "log": ("log", 0.2, 3), "log1p": ("log1p", -0.8, 3), "log2": ("log2", 0.2, 3), "log10": ("log10", 0.2, 3),
    "sqrt": ("sqrt", 0.2, 3), "rsqrt": ("rsqrt", 0.2, 3), "square": ("square", -2, 2), "sin": ("sin", -2, 2),
    "cos": ("cos", -2, 2), "tan": ("tan", -1.2, 1.2), "sinh": ("sinh", -2, 2), "cosh": ("cosh", -2, 2),
    "arctan": ("arctan", -2, 2), "reciprocal": ("reciprocal", 0.3, 3), "relu": ("relu", -2, 2),
    "tanh": ("tanh", -3, 3), "sigmoid": ("sigmoid", -5, 5), "erf": ("erf", -3, 3), "clone": ("clone", -2, 2),
}


def torch_function(name: str) -> Callable[..., Any]:
    return lambda t, *args: getattr(t, name)(*args)


for _name, (_torch, _low, _high) in UNARY.items():
    _args: dict[str, Operand] = {
        "plain": floats(2, 3, low=_low, high=_high),
        "transposed": floats(2, 3, low=_low, high=_high, layout="transposed"),
        "expanded": floats(3, 2, low=_low, high=_high, layout="expanded"),
        "empty": floats(0, 3, low=_low, high=_high),
        "0d": floats(low=_low, high=_high),
        "one": floats(1, 1, low=_low, high=_high),
    }
    ROWS += [Row(_name, k, (a,), torch=torch_function(_torch)) for k, a in _args.items()]

ROWS += [Row(n, "int", (ints(2, 3, low=-3, high=4),), torch=torch_function(n))
         for n in ("neg", "abs", "sign", "square", "exp", "sin", "relu", "clone")]
ROWS += [
    Row("sqrt", "int", (ints(2, 3),), torch=torch_function("sqrt")),
    Row("erf", "tails", (floats(6, given=(-40, -5, -1e-3, 1e-3, 5, 40)),), torch=torch_function("erf")),
    Row("erf", "special", (floats(4, given=(math.inf, -math.inf, math.nan, 0)),), torch=torch_function("erf"),
        smooth=False),
    Row("sigmoid", "tails", (floats(4, given=(-100, -20, 20, 100)),), torch=torch_function("sigmoid")),
    Row("tanh", "tails", (floats(4, given=(-100, -20, 20, 100)),), torch=torch_function("tanh")),
    Row("relu", "special", (floats(4, given=(math.nan, math.inf, -math.inf, 0)),), torch=torch_function("relu"),
        gradient=False),
    Row("sign", "special", (floats(3, given=(0.0, -0.0, -1)),), torch=torch_function("sign"), smooth=False),
    Row("abs", "zero", (floats(3, given=(0.0, -1, 1)),), torch=torch_function("abs"), smooth=False),
    Row("round", "halves", (floats(4, given=(0.5, 1.5, 2.5, -0.5)),), torch=torch_function("round"), smooth=False),
]
for _name in ("isnan", "isinf", "isfinite", "logical_not"):
    ROWS += [
        Row(_name, "special", (floats(5, given=(math.nan, math.inf, -math.inf, 0, 1)),), torch=torch_function(_name)),
        Row(_name, "transposed", (floats(2, 3, layout="transposed"),), torch=torch_function(_name)),
        Row(_name, "int", (ints(4, high=2),), torch=torch_function(_name)),
        Row(_name, "empty", (floats(0, 2),), torch=torch_function(_name)),
        Row(_name, "0d", (floats(),), torch=torch_function(_name)),
    ]

# -- two operands ------------------------------------------------------------------------------------------------------


def pairs(low: float, high: float) -> dict[str, tuple[Any, Any]]:
    def f(*shape: int, layout: str = "plain") -> Operand:
        return floats(*shape, low=low, high=high, layout=layout)

    return {
        "same": (f(2, 3), f(2, 3)),
        "broadcast": (f(3, 1), f(2)),
        "leading": (f(2,), f(3, 2)),
        "layouts": (f(2, 3, layout="transposed"), f(2, 3, layout="sliced")),
        "expanded": (f(3, 2, layout="expanded"), f(3, 2)),
        "scalar second": (f(2, 3), 1.5),
        "scalar first": (2.5, f(2, 3)),
        "int scalar": (f(2, 3), 2),
        "0d": (f(), f(3)),
        "both 0d": (f(), f()),
        "one": (f(1), f(1, 1)),
        "empty": (f(0, 3), f(3)),
        "empty first": (f(1, 3), f(0, 3)),
    }


def by_operator(operator: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda t, x, y: operator(x, y)


def _both_tensors(name: str) -> Callable[..., Any]:
    def call(t: Any, x: Any, y: Any) -> Any:
        like = x if isinstance(x, t.Tensor) else y
        x, y = (v if isinstance(v, t.Tensor) else t.tensor(v, dtype=like.dtype) for v in (x, y))
        return getattr(t, name)(x, y)

    return call


def _remainder(t: Any, x: Any, y: Any) -> Any:
    """torch has no derivative of ``remainder`` where its first operand is a number."""
    return x - y * t.floor(x / y)


ARITHMETIC: dict[str, tuple[Callable[..., Any], float, float]] = {
    "add": (by_operator(lambda x, y: x + y), -2, 2), "sub": (by_operator(lambda x, y: x - y), -2, 2),
    "mul": (by_operator(lambda x, y: x * y), -2, 2), "div": (by_operator(lambda x, y: x / y), 0.3, 2),
    "pow": (by_operator(lambda x, y: x ** y), 0.3, 2), "maximum": (_both_tensors("maximum"), -2, 2),
    "minimum": (_both_tensors("minimum"), -2, 2), "remainder": (torch_function("remainder"), 0.3, 2),
    "floor_divide": (torch_function("floor_divide"), 0.3, 2),
}
for _name, (_reference, _low, _high) in ARITHMETIC.items():
    ROWS += [Row(_name, k, pair, torch=_remainder if (_name, k) == ("remainder", "scalar first") else _reference)
             for k, pair in pairs(_low, _high).items()]
    ROWS.append(Row(_name, "int", (ints(2, 3, low=1), ints(3, low=1)), torch=_reference))
ROWS += [
    Row("add", "int and float", (ints(2, 3), floats(3)), torch=ARITHMETIC["add"][0]),
    Row("mul", "int and float scalar", (ints(2, 3), 1.5), torch=ARITHMETIC["mul"][0]),
    Row("add", "bool", (bools(2, 3), ints(3)), torch=ARITHMETIC["add"][0]),
    Row("mul", "bool", (floats(2, 3), bools(3)), torch=ARITHMETIC["mul"][0]),
    Row("sub", "0d int", (floats(2, 3), ints()), torch=ARITHMETIC["sub"][0]),
    Row("div", "by zero", (floats(3, given=(1, -1, 0)), floats(3, given=(0, 0, 0))), torch=ARITHMETIC["div"][0],
        smooth=False),
    Row("floor_divide", "negative", (floats(4, given=(-3.5, 3.5, -3.5, 3.5)), floats(4, given=(2, -2, -2, 2))),
        torch=ARITHMETIC["floor_divide"][0]),
    Row("remainder", "negative", (floats(4, given=(-3.5, 3.5, -3.5, 3.4)), floats(4, given=(2, -2, -2, 2))),
        torch=ARITHMETIC["remainder"][0]),
    *[Row(_name, "negative int", (ints(7, given=(-7, 7, -7, 7, 6, -5, 8)), ints(7, given=(2, -2, -2, 2, -3, -1, 4))),
          torch=ARITHMETIC[_name][0]) for _name in ("floor_divide", "remainder")],
    Row("maximum", "ties", (floats(4, given=(1, 2, 3, 0)), floats(4, given=(1, 3, 2, 0))),
        torch=ARITHMETIC["maximum"][0], smooth=False),
    Row("minimum", "ties", (floats(4, given=(1, 2, 3, 0)), floats(4, given=(1, 3, 2, 0))),
        torch=ARITHMETIC["minimum"][0], smooth=False),
    Row("maximum", "nan", (floats(3, given=(math.nan, 1, 2)), floats(3, given=(1, math.nan, 1))),
        torch=ARITHMETIC["maximum"][0], gradient=False),
    *[Row("pow", f"to {n}", (floats(2, 3), n), torch=ARITHMETIC["pow"][0]) for n in (0, 1, 2, 3, 2.0)],
    Row("pow", "to -1", (floats(2, 3, low=0.3), -1), torch=ARITHMETIC["pow"][0]),
    Row("pow", "to 0.5", (floats(2, 3, low=0.3), 0.5), torch=ARITHMETIC["pow"][0]),
    Row("pow", "zeros", (floats(4, given=(0, 0, 0, 2)), floats(4, given=(0, 1, 2, 0))), torch=ARITHMETIC["pow"][0],
        smooth=False),
    Row("pow", "0 to a tensor", (0.0, floats(3, low=0.5)), torch=ARITHMETIC["pow"][0]),
    Row("pow", "negative base", (floats(2, 3, low=-2, high=-0.5), 3), torch=ARITHMETIC["pow"][0]),
]

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y}
for _name, _operator in COMPARE.items():
    ROWS += [
        Row(_name, "broadcast", (ints(3, 1, high=3), ints(4, high=3)), torch=by_operator(_operator)),
        Row(_name, "float", (floats(2, 3, layout="transposed"), floats(2, 3, layout="sliced")),
            torch=by_operator(_operator)),
        Row(_name, "scalar", (ints(5, high=3), 1), torch=by_operator(_operator)),
        Row(_name, "scalar first", (1, ints(5, high=3)), torch=by_operator(_operator)),
        Row(_name, "nan", (floats(2, given=(math.nan, 1)), floats(2, given=(math.nan, 1))),
            torch=by_operator(_operator)),
        Row(_name, "int and float", (ints(4, high=3), floats(4)), torch=by_operator(_operator)),
        Row(_name, "empty", (floats(0, 3), floats(3)), torch=by_operator(_operator)),
        Row(_name, "0d", (floats(), floats(1)), torch=by_operator(_operator)),
    ]
for _name in ("logical_and", "logical_or", "logical_xor"):
    ROWS += [
        Row(_name, "bool", (bools(3, 1), bools(4)), torch=torch_function(_name)),
        Row(_name, "int", (ints(6, high=2), ints(6, high=2)), torch=torch_function(_name)),
        Row(_name, "float", (floats(2, given=(0, 1)), floats(2, given=(math.nan, 0))), torch=torch_function(_name)),
        Row(_name, "layouts", (bools(2, 3, layout="transposed"), bools(2, 3, layout="sliced")),
            torch=torch_function(_name)),
        Row(_name, "empty", (bools(0), bools(1)), torch=torch_function(_name)),
    ]

# -- choice ------------------------------------------------------------------------------------------------------------

_where = torch_function("where")
ROWS += [
    Row("where", "same", (bools(2, 3), floats(2, 3), floats(2, 3)), torch=_where),
    Row("where", "broadcast", (bools(3, 1), floats(2), floats()), torch=_where),
    Row("where", "scalars", (bools(4), floats(4), 0.5), torch=_where),
    Row("where", "scalar first", (bools(4), -1.0, floats(2, 4)), torch=_where),
    Row("where", "layouts", (bools(2, 3, layout="transposed"), floats(2, 3, layout="sliced"), floats(3)), torch=_where),
    Row("where", "int", (bools(4), ints(4), ints(4)), torch=_where),
    Row("where", "int and float", (bools(4), ints(4), floats(4)), torch=_where),
    Row("where", "empty", (bools(0, 2), floats(2), floats(2)), torch=_where),
    *[Row("clamp", name, args, torch=torch_function("clamp")) for name, args in {
        "both": (floats(2, 3), -0.5, 0.7), "low": (floats(2, 3), 0.1, None), "high": (floats(2, 3), None, 0.1),
        "transposed": (floats(2, 3, layout="transposed"), -0.5, 0.7), "empty": (floats(0), 0.0, 1.0),
        "0d": (floats(), 0.0, 1.0), "int bounds": (floats(4), -1, 1), "int": (ints(6), 1, 3),
        "crossed": (floats(4), 1.0, -1.0)}.items()],
    Row("clamp", "int by floats", (ints(6), 0.5, 2.5), torch=torch_function("clamp")),
    Row("clamp", "edges", (floats(3, given=(0, 1, 2)), 0.0, 1.0), torch=torch_function("clamp"), smooth=False),
]

# -- in place ----------------------------------------------------------------------------------------------------------

for _name in ("add_", "sub_", "mul_", "div_"):
    def _in_place(t: Any, x: Any, y: Any, name: str = _name) -> Any:
        return getattr(x.clone(), name)(y)

    ROWS += [
        Row(_name, "same", (floats(2, 3), floats(2, 3, low=0.5)), torch=_in_place),
        Row(_name, "broadcast", (floats(2, 3), floats(3, low=0.5)), torch=_in_place),
        Row(_name, "scalar", (floats(2, 3), 1.5), torch=_in_place),
        Row(_name, "int scalar", (floats(2, 3), 3), torch=_in_place),
        Row(_name, "layouts", (floats(2, 3), floats(2, 3, low=0.5, layout="transposed")), torch=_in_place),
        Row(_name, "0d", (floats(), floats(low=0.5)), torch=_in_place),
        Row(_name, "empty", (floats(0, 3), floats(3, low=0.5)), torch=_in_place),
        Row(_name, "int operand", (floats(2, 3), ints(3, low=1)), torch=_in_place),
    ]
ROWS += [
    Row("add_", "int", (ints(2, 3), ints(3)), torch=lambda t, x, y: x.clone().add_(y)),
    *[Row("fill_", name, args, torch=lambda t, x, v: x.clone().fill_(v)) for name, args in {
        "plain": (floats(2, 3), 1.5), "int": (ints(4), 3), "empty": (floats(0), 1.0), "0d": (floats(), 2)}.items()],
    *[Row("copy_", name, args, torch=lambda t, x, s: x.clone().copy_(s)) for name, args in {
        "same": (floats(2, 3), floats(2, 3)), "broadcast": (floats(2, 3), floats(3)),
        "transposed": (floats(2, 3), floats(2, 3, layout="transposed")), "from int": (floats(2, 3), ints(3)),
        "0d": (floats(2), floats()), "empty": (floats(0, 2), floats(2))}.items()],
]
