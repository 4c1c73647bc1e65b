"""Elementwise functions and methods as users call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.forms import Form, quiet
from tests.rows import Operand, bools, floats, ints

FORMS: list[Form] = []

_x, _y = floats(2, 3, low=0.3, high=0.9), floats(2, 3, low=1.1, high=2)

# -- functions and methods of one and two operands -----------------------------------------------------------------------

UNARY = ("abs absolute neg negative exp exp2 expm1 log log1p log2 log10 sqrt rsqrt square reciprocal sin cos tan asin acos "
         "atan arcsin arccos arctan sinh cosh tanh asinh atanh arcsinh arctanh erf erfc lgamma digamma erfinv "
         "sinc sigmoid relu frac nan_to_num "
         "deg2rad rad2deg positive").split()
CONSTANT = "sign floor ceil round trunc fix".split()
BINARY = ("add subtract sub mul multiply div divide true_divide pow fmod remainder atan2 arctan2 hypot maximum minimum fmax "
          "fmin logaddexp").split()
COMPARE = ("eq ne lt le gt ge not_equal less less_equal greater greater_equal isclose logical_and logical_or "
           "logical_xor").split()
WHOLE = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split()
#: In-place methods: those of one operand, of two.
ONE_ = ("abs absolute neg negative sign sgn floor ceil round trunc fix frac reciprocal square sqrt rsqrt exp exp2 expm1 log "
        "log1p log2 log10 sin cos tan asin acos atan arcsin arccos arctan sinh cosh tanh asinh atanh arcsinh arctanh erf erfc "
        "lgamma digamma erfinv sinc "
        "sigmoid relu nan_to_num deg2rad rad2deg").split()
TWO_ = "add sub subtract mul multiply div divide true_divide pow fmod remainder atan2 arctan2 hypot".split()


def function(name: str) -> Callable[..., Any]:
    return lambda t, *xs: getattr(t, name)(*xs)


def method(name: str) -> Callable[..., Any]:
    return lambda t, x, *others: getattr(x, name)(*others)


def written(name: str) -> Callable[..., Any]:
    return lambda t, x, *others: getattr(x.clone(), f"{name}_")(*others)


def both(name: str, *operands: Operand, **options: Any) -> list[Form]:
    return [Form(name, function(name), operands, **options), Form(f"Tensor.{name}", method(name), operands, **options)]


#: torch's second derivative of lgamma is a series of few terms.
SERIES = {"double": 1e-8}
for _name in UNARY:
    FORMS += both(_name, _x, **SERIES if _name == "digamma" else {})
for _name in ("acosh", "arccosh"):
    FORMS += [*both(_name, _y), Form(f"Tensor.{_name}_", written(_name), (_y,), gradient=False)]
for _n in (0, 1, 2):
    FORMS += [Form(f"polygamma:{_n}", lambda t, x, n=_n: t.polygamma(n, x), (_x,), **SERIES),
              Form(f"Tensor.polygamma:{_n}", lambda t, x, n=_n: x.polygamma(n), (_x,), **SERIES),
              Form(f"Tensor.polygamma_:{_n}", lambda t, x, n=_n: x.clone().polygamma_(n), (_x,), **SERIES)]
for _name in CONSTANT:
    FORMS += both(_name, _x)
for _name in BINARY:
    FORMS += both(_name, _y, floats(3, low=0.3, high=0.9))
for _name in COMPARE:
    FORMS += both(_name, ints(3, 1, high=3), ints(4, high=3), gradient=False)
for _name in WHOLE:
    FORMS += both(_name, ints(3, 1, low=-5, high=9), ints(4), gradient=False)
FORMS += [*both("bitwise_not", ints(4), gradient=False), *both("logical_not", floats(4), gradient=False)]
# torch's gradient of it is not an array.
FORMS += both("sgn", _x, gradient=False)
for _name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf"):
    FORMS += both(_name, floats(3, given=(float("nan"), float("inf"), 1)), gradient=False)
# torch has no derivative of some of them in place.
FORMS += [Form(f"Tensor.{n}_", written(n), (_x,), gradient=not n.endswith(("asinh", "atanh", "arcsinh", "arctanh")),
               **SERIES if n == "digamma" else {}) for n in ONE_]
FORMS += [Form(f"Tensor.{n}_", written(n), (_y, floats(3, low=0.3, high=0.9))) for n in TWO_]
FORMS += [Form(f"Tensor.{n}_", written(n), (_x, floats(3, low=0.3, high=0.9)), smooth=False)
          for n in "eq ne lt le gt ge greater less".split()]
# Here, operands overwritten by these have a gradient of 0; torch passes the gradient on as if nothing had been written.
FORMS += [Form(f"Tensor.{n}_", written(n), (_x, floats(3)), gradient=False)
          for n in "logical_and logical_or logical_xor".split()]
FORMS += [Form(f"Tensor.{n}_", written(n), (ints(6, low=-5, high=9), ints(6)), gradient=False) for n in WHOLE]
FORMS += [Form("Tensor.logical_not_", written("logical_not"), (_x,), gradient=False),
          Form("Tensor.bitwise_not_", written("bitwise_not"), (ints(3),), gradient=False)]

# -- arguments -----------------------------------------------------------------------------------------------------------


def form(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    FORMS.append(Form(name, call, operands, **options))


_f, _g = floats(2, 3), floats(3, low=0.6)
form("add:alpha", lambda t, x, y: t.add(x, y, alpha=-0.5), _f, _g)
form("sub:alpha", lambda t, x, y: x.sub(y, alpha=2), _f, _g)
for _mode in ("floor", "trunc"):
    form(f"div:{_mode}", lambda t, x, y, m=_mode: t.div(x, y, rounding_mode=m), _f, _g, gradient=False)
    form(f"div:{_mode} of ints", lambda t, x, y, m=_mode: t.div(x, y, rounding_mode=m), ints(6, low=-9, high=9), ints(6, low=1),
         gradient=False)
form("Tensor.div_:trunc", lambda t, x, y: x.clone().div_(y, rounding_mode="trunc"), _f, _g, gradient=False)
form("floor_divide", lambda t, x, y: t.floor_divide(x, y), _f, _g, gradient=False)
form("nan_to_num:given", lambda t, x: t.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-3.0),
     floats(4, given=(float("nan"), float("inf"), -float("inf"), 1)), smooth=False)
form("isclose:nan", lambda t, x, y: t.isclose(x, y, equal_nan=True), floats(5, given=(float("nan"), 1, 2, float("inf"), 3)),
     floats(5, given=(float("nan"), 1 + 1e-7, 2.1, float("inf"), float("inf"))), gradient=False)
form("isclose:tolerances", lambda t, x, y: x.isclose(y, rtol=0.1, atol=0.05), _f, _f, gradient=False)
form("allclose", lambda t, x, y: t.allclose(x, y, rtol=0.5), _f, _f, gradient=False)
form("clamp:numbers", lambda t, x: t.clamp(x, -0.5, 0.5), _f)
form("clamp:names", lambda t, x: x.clamp(min=-0.5), _f)
form("clamp:tensors", lambda t, x, a, b: t.clamp(x, min=a, max=b), _f, floats(3, high=0), floats(2, 1, low=0))
form("clip", lambda t, x: t.clip(x, max=0.5), _f)
form("clamp_min", lambda t, x: t.clamp_min(x, 0.1), _f)
form("clamp_max", lambda t, x: x.clamp_max(0.1), _f)
form("Tensor.clamp_", lambda t, x: x.clone().clamp_(-0.5, 0.5), _f)
form("Tensor.clamp_:tensor", lambda t, x, a: x.clone().clamp_(min=a), _f, _g)
form("Tensor.clamp_min_", lambda t, x: x.clone().clamp_min_(0.1), _f)
form("Tensor.clamp_max_", lambda t, x: x.clone().clamp_max_(0.1), _f)
form("lerp:number", lambda t, x, y: t.lerp(x, y, 0.3), _f, _f)
form("lerp:tensor", lambda t, x, y, w: x.lerp(y, w), _f, _f, _g)
form("Tensor.lerp_", lambda t, x, y: x.clone().lerp_(y, 0.7), _f, _f)
form("addcmul", lambda t, x, y, z: t.addcmul(x, y, z, value=0.5), _f, _g, _f)
form("Tensor.addcmul_", lambda t, x, y, z: x.clone().addcmul_(y, z, value=-2), _f, _g, _f)
form("addcdiv", lambda t, x, y, z: x.addcdiv(y, z, value=0.5), _f, _f, _g)
form("Tensor.addcdiv_", lambda t, x, y, z: x.clone().addcdiv_(y, z), _f, _f, _g)
form("where", lambda t, c, x, y: t.where(c, x, y), bools(3, 1), floats(3, 2), floats(2))
form("where:number", lambda t, c, x: t.where(c, x, 0.5), bools(2, 3), _f)
form("where:numbers", lambda t, c: t.where(c, 1.0, 0.5), bools(2, 3), gradient=False)
form("where:condition alone", lambda t, c: t.where(c), bools(3, 4), gradient=False)
form("Tensor.where", lambda t, c, x, y: x.where(c, y), bools(2, 3), _f, _f)
form("masked_fill", lambda t, x, m: t.masked_fill(x, m, -1.0), _f, bools(3))
form("masked_fill:tensor", lambda t, x, m, v: x.masked_fill(m, v), _f, bools(3), floats())
form("masked_fill:int", lambda t, x, m: x.masked_fill(m, 3), ints(4), bools(4), gradient=False)
form("Tensor.masked_fill_", lambda t, x, m: x.clone().masked_fill_(m, 2), _f, bools(2, 1))
form("Tensor.masked_fill_:tensor", lambda t, x, m, v: x.clone().masked_fill_(m, v), _f, bools(2, 1), floats())

# -- operators -----------------------------------------------------------------------------------------------------------

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / y,
    "**": lambda x, y: x ** y, "%": lambda x, y: x % y}
for _name, _operator in OPERATORS.items():
    form(f"Tensor {_name} Tensor", lambda t, x, y, o=_operator: o(x, y), _y, _x)
    form(f"Tensor {_name} number", lambda t, x, o=_operator: o(x, 1.5), _y)
    if _name != "%":
        form(f"number {_name} Tensor", lambda t, x, o=_operator: o(1.5, x), _y)
    form(f"ints {_name} ints", lambda t, x, y, o=_operator: o(x, y), ints(6, low=1), ints(6, low=1), gradient=False)
form("number % Tensor", lambda t, x: 7 % x, ints(4, low=1), gradient=False)
form("Tensor // Tensor", lambda t, x, y: x // y, _y, _x, gradient=False)
form("number // Tensor", lambda t, x: 7 // x, ints(4, low=1), gradient=False)
for _name, _bits in {"&": lambda x, y: x & y, "|": lambda x, y: x | y, "^": lambda x, y: x ^ y, "<<": lambda x, y: x << y,
                     ">>": lambda x, y: x >> y}.items():
    form(f"ints {_name} ints", lambda t, x, y, o=_bits: o(x, y), ints(6, low=-9, high=9), ints(6), gradient=False)
    form(f"ints {_name} number", lambda t, x, o=_bits: o(x, 3), ints(6, low=-9, high=9), gradient=False)
    form(f"number {_name} ints", lambda t, x, o=_bits: o(9, x), ints(6), gradient=False)
    if _name in "&|^":
        form(f"bools {_name} bools", lambda t, x, y, o=_bits: o(x, y), bools(4), bools(4), gradient=False)
form("~ints", lambda t, x: ~x, ints(4), gradient=False)


def _augmented(t: Any, x: Any, y: Any) -> list[Any]:
    made = []
    for name in ("iadd", "isub", "imul", "itruediv", "ipow", "imod", "ifloordiv"):
        z = x.clone()
        made.append(getattr(z, f"__{name}__")(y))
    return made


def _augmented_bits(t: Any, x: Any, y: Any) -> list[Any]:
    return [getattr(x.clone(), f"__{name}__")(y) for name in ("iand", "ior", "ixor", "ilshift", "irshift")]


form("augmented assignment", _augmented, _y, _x, gradient=False)
form("augmented assignment of bits", _augmented_bits, ints(6, low=-9, high=9), ints(6), gradient=False)

# -- activations ---------------------------------------------------------------------------------------------------------


def activation(name: str, *args: Any, **attrs: Any) -> Callable[..., Any]:
    return lambda t, *xs: getattr(t.nn.functional, name)(*xs, *args, **attrs)


_wide = floats(3, 4, low=-2.9, high=2.9)
#: torch computes with constants rounded to float32.
ROUNDED = {"hardsigmoid": 1e-7, "celu": 1e-7}
for _name in ("relu relu6 leaky_relu elu selu celu silu gelu softplus softsign hardtanh hardsigmoid hardswish mish tanhshrink "
              "logsigmoid hardshrink softshrink sigmoid tanh").split():
    for _case, _operand in {"": _wide, ":transposed": floats(3, 4, low=-2.9, high=2.9, layout="transposed"),
                            ":0d": floats(low=0.6, high=0.9), ":empty": floats(0, 2)}.items():
        form(f"nn.functional.{_name}{_case}", activation(_name), _operand, double=ROUNDED.get(_name, 1e-11))
form("nn.functional.leaky_relu:slope", activation("leaky_relu", 0.3), _wide)
form("nn.functional.elu:alpha", activation("elu", alpha=0.3), _wide)
form("nn.functional.celu:alpha", activation("celu", alpha=0.3), _wide, double=ROUNDED["celu"])
form("nn.functional.softplus:beta", activation("softplus", beta=3, threshold=4), _wide)
form("nn.functional.hardtanh:bounds", activation("hardtanh", -0.3, 0.7), _wide)
form("nn.functional.hardshrink:lambd", activation("hardshrink", 0.2), _wide)
form("nn.functional.softshrink:lambd", activation("softshrink", 0.2), _wide)
form("nn.functional.threshold", activation("threshold", 0.3, -1.0), _wide)
form("nn.functional.prelu:one weight", activation("prelu"), _wide, floats(1))
form("nn.functional.prelu:channels", activation("prelu"), floats(2, 3, 2), floats(3))
form("nn.functional.prelu:1d", activation("prelu"), floats(4), floats(1))
form("nn.functional.glu", activation("glu"), floats(3, 4))
form("nn.functional.glu:dim", activation("glu", 0), floats(4, 3))
form("nn.functional.softmin", activation("softmin", dim=1), _wide)
form("nn.functional.softmin:no dim", quiet(lambda t, x: [t.nn.functional.softmin(x), t.nn.functional.softmin(x[0])]), _wide)
for _name in ("prelu",):
    form(_name, lambda t, x, w: t.prelu(x, w), _wide, floats(4))
form("selu", lambda t, x: t.selu(x), _wide)
form("celu", lambda t, x: t.celu(x, 0.5), _wide)
form("Tensor.hardshrink", lambda t, x: x.hardshrink(), _wide)
