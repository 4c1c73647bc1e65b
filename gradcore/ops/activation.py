"""Activations. Each gradient is one launch by an op of its own, so that backward can be differentiated again."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.elementwise import abs, exp, gt, le, logical_and, lt, minimum, sign, where
from gradcore.ops.movement import sum_to
from gradcore.ops.op import Infer, op, spending
from gradcore.ops.shapes import Operand, need_float, pieces, shape_of, with_workspace
from gradcore.spec import TensorSpec, broadcast_shapes


def _float(x: TensorSpec) -> TensorSpec:
    need_float("an activation", input=x)
    return x.like()


def _like_dy(infer: Infer) -> Infer:
    """The shape rule of an activation's gradient, which takes dy and then what the activation takes."""
    def grad(dy: TensorSpec, *others: Any, **attrs: Any) -> TensorSpec:
        return dy.like()

    dy, *_ = inspect.signature(grad).parameters.values()
    setattr(grad, "__signature__", inspect.Signature([dy, *inspect.signature(infer).parameters.values()]))
    return grad


# -- that keep what they return ----------------------------------------------------------------------------------------


def _relu_spec(x: TensorSpec) -> TensorSpec:
    if x.dtype.kind == "b":
        raise SpecError(f"relu: expected integers or floats, but got {x}: Boolean inputs not supported for relu")
    return x.like()


def _hardtanh_spec(x: TensorSpec, *, low: float, high: float) -> TensorSpec:
    return x.like()


relu = op("relu", _relu_spec, may_alias=("x",), x=spending(lambda g, out: relu_grad(g, out)), again=lambda x: relu(x),
          doc="x where it is positive, else 0.")
relu_grad = op("relu_grad", _like_dy(_relu_spec), may_alias=("x",), dy=lambda g, x: relu_grad(g, x),
               doc="0 where x <= 0, else dy.")
hardtanh = op("hardtanh", _hardtanh_spec, may_alias=("x",), signs=True,
              x=spending(lambda g, out, attrs: hardtanh_grad(g, out, **attrs)), again=lambda x, attrs: hardtanh(x, **attrs),
              doc="x kept between two numbers; unlike clamp's, its gradient is 0 at them, so the result is what it keeps.")
hardtanh_grad = op("hardtanh_grad", _like_dy(_hardtanh_spec), may_alias=("dy", "x"),
                   dy=lambda g, x, attrs: hardtanh_grad(g, x, **attrs),
                   doc="dy where x lies between the two, else 0.")
tanh = op("tanh", _float, may_alias=("x",), x=spending(lambda g, out: tanh_grad(g, out)))
tanh_grad = op("tanh_grad", _like_dy(_float), may_alias=("x",),
               dy=lambda g, x: tanh_grad(g, x),
               x=lambda g, dy, x: g * dy * x * -2,
               doc="dy * (1 - x^2), where x is the result of tanh.")
sigmoid = op("sigmoid", _float, may_alias=("x",), x=lambda g, out: sigmoid_grad(g, out))
sigmoid_grad = op("sigmoid_grad", _like_dy(_float),
                  dy=lambda g, x: sigmoid_grad(g, x),
                  x=lambda g, dy, x: g * dy * (x * -2 + 1),
                  doc="dy * x * (1 - x), where x is the result of sigmoid.")

# -- that keep what they read ------------------------------------------------------------------------------------------


def _erf_spec(x: TensorSpec) -> object:
    return with_workspace(_float(x), pieces(x, 4))


def _gelu_spec(x: TensorSpec, *, tanh: bool = False) -> object:
    return with_workspace(_float(x), pieces(x, 5))


def _gelu_grad_spec(dy: TensorSpec, x: TensorSpec, *, tanh: bool = False) -> object:
    return with_workspace(dy.like(), pieces(x, 6))


def _gelu_curve(x: Any, by_tanh: bool) -> Any:
    if not by_tanh:  # (2 - x^2) phi(x), phi being the normal density
        return exp(x * x * -0.5) * (x * x * -1 + 2) * (1 / math.sqrt(2 * math.pi))
    c, k = math.sqrt(2 / math.pi), 0.044715
    u = x * c * (x * x * k + 1)
    t = tanh(u)
    du = (x * x * (3 * k) + 1) * c
    ddu = x * (6 * k * c)
    return (1 - t * t) * (du + x * 0.5 * (ddu - t * du * du * 2))


erf = op("erf", _erf_spec, contiguous=True, may_alias=("x",), x=lambda g, x: g * (exp(-(x * x)) * (2 / math.sqrt(math.pi))))
gelu = op("gelu", _gelu_spec, contiguous=True, may_alias=("x",), x=spending(lambda g, x, tanh: gelu_grad(g, x, tanh=tanh)),
          again=lambda x, tanh: gelu(x, tanh=tanh),
          doc="x Phi(x), exactly or by tanh. Hendrycks and Gimpel, arXiv:1606.08415.")
gelu_grad = op("gelu_grad", _gelu_grad_spec, contiguous=True, may_alias=("dy", "x"),
               dy=lambda g, x, tanh: gelu_grad(g, x, tanh=tanh), x=lambda g, dy, x, tanh: g * dy * _gelu_curve(x, tanh))


def _with_grad(name: str, infer: Infer, curve: Callable[..., Any] | None = None, doc: str = "",
               grad_doc: str = "") -> tuple[Any, Any]:
    """An activation, and its gradient; ``curve`` is its second derivative, out of ops, None for 0."""
    made = op(name, infer, may_alias=("x",), signs=True, x=spending(lambda g, x, attrs: grad(g, x, **attrs)),
              again=lambda x, attrs: made(x, **attrs), doc=doc)
    second: dict[str, Any] = {} if curve is None else {"x": lambda g, dy, x, attrs: g * dy * curve(x, **attrs)}
    grad = op(f"{name}_grad", _like_dy(infer), may_alias=("dy", "x"), signs=True,
              dy=lambda g, x, attrs: grad(g, x, **attrs), doc=grad_doc, **second)
    return made, grad


def _elu_spec(x: TensorSpec, *, alpha: float, scale: float, inner: float) -> TensorSpec:
    return _float(x)


def _elu_curve(x: Any, alpha: float, scale: float, inner: float) -> Any:
    return where(lt(x, 0), exp(minimum(x, 0.0) * inner) * (alpha * scale * inner * inner), 0.0)


def _softplus_spec(x: TensorSpec, *, beta: float, threshold: float) -> TensorSpec:
    return _float(x)


def _softplus_curve(x: Any, beta: float, threshold: float) -> Any:
    s = sigmoid(x * beta)
    return where(gt(x * beta, threshold), 0.0, s * (1 - s) * beta)


def _silu_curve(x: Any) -> Any:
    s = sigmoid(x)
    return s * (1 - s) * (x * (1 - s * 2) + 2)


def _mish_curve(x: Any) -> Any:
    t, s = tanh(softplus(x, beta=1.0, threshold=20.0)), sigmoid(x)
    return (1 - t * t) * s * (x * (1 - s) - x * t * s * 2 + 2)


def _softsign_curve(x: Any) -> Any:
    a = abs(x) + 1
    return sign(x) / (a * a * a) * -2


elu, elu_grad = _with_grad(
    "elu", _elu_spec, _elu_curve,
    "scale x where x is positive, else scale alpha (exp(inner x) - 1). Clevert et al., arXiv:1511.07289; selu: Klambauer et "
    "al., arXiv:1706.02515; celu: Barron, arXiv:1704.07483.")
softplus, softplus_grad = _with_grad("softplus", _softplus_spec, _softplus_curve,
                                     "log(1 + exp(beta x)) / beta, and x where beta x is above the threshold.")
silu, silu_grad = _with_grad("silu", _float, _silu_curve, "x sigmoid(x). Elfwing, Uchibe and Doya, arXiv:1702.03118.")
mish, mish_grad = _with_grad("mish", _float, _mish_curve, "x tanh(softplus(x)). Misra, arXiv:1908.08681.")
softsign, softsign_grad = _with_grad("softsign", _float, _softsign_curve, "x / (1 + |x|).")
logsigmoid, logsigmoid_grad = _with_grad("logsigmoid", _float, lambda x: sigmoid(x) * sigmoid(-x) * -1,
                                         grad_doc="dy sigmoid(-x).")
hardsigmoid, hardsigmoid_grad = _with_grad("hardsigmoid", _float, doc="x / 6 + 1 / 2, kept between 0 and 1.")
hardswish, hardswish_grad = _with_grad("hardswish", _float, lambda x: where(logical_and(gt(x, -3), lt(x, 3)), 1 / 3, x * 0),
                                       "x hardsigmoid(x). Howard et al., arXiv:1905.02244.")

# -- with operands besides: numbers, or for the slope a tensor ---------------------------------------------------------


def _slope_spec(x: TensorSpec, slope: Operand) -> TensorSpec:
    need_float("leaky_relu", input=x, slope=slope)
    return TensorSpec.of(broadcast_shapes(x.shape, shape_of(slope)), x.dtype)


def _shrink_spec(x: TensorSpec, lambd: Operand) -> TensorSpec:
    need_float("a shrinking activation", input=x)
    return x.like()


def _threshold_spec(x: TensorSpec, threshold: Operand, value: Operand) -> TensorSpec:
    return x.like()


leaky_relu = op("leaky_relu", _slope_spec, may_alias=("x",),
                x=spending(lambda g, x, slope, x_spec: sum_to(leaky_relu_grad(g, x, slope), to=x_spec)),
                slope=lambda g, x, slope_spec: sum_to(g * minimum(x, 0.0), to=slope_spec),
                again=lambda x, slope: leaky_relu(x, slope), doc="x where it is positive, else slope x.")
leaky_relu_grad = op("leaky_relu_grad", _like_dy(_slope_spec), may_alias=("dy", "x"),
                     dy=lambda g, x, slope: leaky_relu_grad(g, x, slope),
                     slope=lambda g, dy, x, slope_spec: sum_to(where(gt(x, 0), 0.0, g * dy), to=slope_spec))
hardshrink = op("hardshrink", _shrink_spec, may_alias=("x",), x=spending(lambda g, x, lambd: shrink_grad(g, x, lambd)),
                doc="x outside [-lambd, lambd], else 0.")
softshrink = op("softshrink", _shrink_spec, may_alias=("x",), x=spending(lambda g, x, lambd: shrink_grad(g, x, lambd)),
                doc="x brought nearer to 0 by lambd.")
shrink_grad = op("shrink_grad", _like_dy(_shrink_spec), may_alias=("dy", "x"), dy=lambda g, x, lambd: shrink_grad(g, x, lambd),
                 doc="dy outside [-lambd, lambd], else 0.")
threshold = op("threshold", _threshold_spec, may_alias=("x",), x=lambda g, x, threshold: where(le(x, threshold), 0.0, g),
               doc="x above the threshold, else value.")
