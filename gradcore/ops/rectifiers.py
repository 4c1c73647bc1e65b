"""Activations besides the four of ``activation``: each keeps its input alone, and its gradient is one launch."""

from __future__ import annotations

from typing import Any

from gradcore.ops.activation import sigmoid, tanh
from gradcore.ops.elementwise import abs, exp, gt, le, logical_and, lt, minimum, sign, where
from gradcore.ops.movement import sum_to
from gradcore.ops.op import op
from gradcore.ops.shapes import Operand, need_float, shape_of
from gradcore.spec import TensorSpec, broadcast_shapes

# -- without a parameter -----------------------------------------------------------------------------------------------


def _one(x: TensorSpec) -> TensorSpec:
    need_float("an activation", input=x)
    return x.like()


def _grad(dy: TensorSpec, x: TensorSpec) -> TensorSpec:
    return dy.like()


def _silu_curve(x: Any) -> Any:
    s = sigmoid(x)
    return s * (1 - s) * (x * (1 - s * 2) + 2)


def _softplus_of(x: Any) -> Any:
    return softplus(x, beta=1.0, threshold=20.0)


def _mish_curve(x: Any) -> Any:
    t, s = tanh(_softplus_of(x)), sigmoid(x)
    return (1 - t * t) * s * (x * (1 - s) - x * t * s * 2 + 2)


def _softsign_curve(x: Any) -> Any:
    a = abs(x) + 1
    return sign(x) / (a * a * a) * -2


def _hardswish_curve(x: Any) -> Any:
    return where(logical_and(gt(x, -3), lt(x, 3)), 1 / 3, x * 0)


silu = op("silu", _one, may_alias=("x",), x=lambda g, x: silu_grad(g, x), again=lambda x: silu(x),
          doc="x sigmoid(x). Elfwing, Uchibe and Doya, arXiv:1702.03118.")
silu_grad = op("silu_grad", _grad, may_alias=("dy", "x"), dy=lambda g, x: silu_grad(g, x),
               x=lambda g, dy, x: g * dy * _silu_curve(x))
mish = op("mish", _one, may_alias=("x",), x=lambda g, x: mish_grad(g, x), again=lambda x: mish(x),
          doc="x tanh(softplus(x)). Misra, arXiv:1908.08681.")
mish_grad = op("mish_grad", _grad, may_alias=("dy", "x"), dy=lambda g, x: mish_grad(g, x),
               x=lambda g, dy, x: g * dy * _mish_curve(x))
softsign = op("softsign", _one, may_alias=("x",), x=lambda g, x: softsign_grad(g, x), again=lambda x: softsign(x),
              doc="x / (1 + |x|).")
softsign_grad = op("softsign_grad", _grad, may_alias=("dy", "x"), dy=lambda g, x: softsign_grad(g, x),
                   x=lambda g, dy, x: g * dy * _softsign_curve(x))
logsigmoid = op("logsigmoid", _one, may_alias=("x",), x=lambda g, x: logsigmoid_grad(g, x), again=lambda x: logsigmoid(x))
logsigmoid_grad = op("logsigmoid_grad", _grad, may_alias=("dy", "x"), dy=lambda g, x: logsigmoid_grad(g, x),
                     x=lambda g, dy, x: g * dy * (sigmoid(x) * sigmoid(-x)) * -1, doc="dy sigmoid(-x).")
hardsigmoid = op("hardsigmoid", _one, may_alias=("x",), x=lambda g, x: hardsigmoid_grad(g, x), again=lambda x: hardsigmoid(x),
                 doc="x / 6 + 1 / 2, kept between 0 and 1.")
hardsigmoid_grad = op("hardsigmoid_grad", _grad, may_alias=("dy", "x"), dy=lambda g, x: hardsigmoid_grad(g, x))
hardswish = op("hardswish", _one, may_alias=("x",), x=lambda g, x: hardswish_grad(g, x), again=lambda x: hardswish(x),
               doc="x hardsigmoid(x). Howard et al., arXiv:1905.02244.")
hardswish_grad = op("hardswish_grad", _grad, may_alias=("dy", "x"), dy=lambda g, x: hardswish_grad(g, x),
                    x=lambda g, dy, x: g * dy * _hardswish_curve(x))

# -- with one: a number, or for the slope a tensor ---------------------------------------------------------------------


def _slope_spec(x: TensorSpec, slope: Operand) -> TensorSpec:
    need_float("leaky_relu", input=x, slope=slope)
    return TensorSpec.of(broadcast_shapes(x.shape, shape_of(slope)), x.dtype)


def _slope_grad_spec(dy: TensorSpec, x: TensorSpec, slope: Operand) -> TensorSpec:
    return dy.like()


def _shrink_spec(x: TensorSpec, lambd: Operand) -> TensorSpec:
    need_float("a shrinking activation", input=x)
    return x.like()


def _shrink_grad_spec(dy: TensorSpec, x: TensorSpec, lambd: Operand) -> TensorSpec:
    return dy.like()


def _threshold_spec(x: TensorSpec, threshold: Operand, value: Operand) -> TensorSpec:
    return x.like()


leaky_relu = op("leaky_relu", _slope_spec, may_alias=("x",),
                x=lambda g, x, slope, x_spec: sum_to(leaky_relu_grad(g, x, slope), to=x_spec),
                slope=lambda g, x, slope_spec: sum_to(g * minimum(x, 0.0), to=slope_spec),
                again=lambda x, slope: leaky_relu(x, slope), doc="x where it is positive, else slope x.")
leaky_relu_grad = op("leaky_relu_grad", _slope_grad_spec, may_alias=("dy", "x"),
                     dy=lambda g, x, slope: leaky_relu_grad(g, x, slope),
                     slope=lambda g, dy, x, slope_spec: sum_to(where(gt(x, 0), 0.0, g * dy), to=slope_spec))
hardshrink = op("hardshrink", _shrink_spec, may_alias=("x",), x=lambda g, x, lambd: shrink_grad(g, x, lambd),
                doc="x outside [-lambd, lambd], else 0.")
softshrink = op("softshrink", _shrink_spec, may_alias=("x",), x=lambda g, x, lambd: shrink_grad(g, x, lambd),
                doc="x brought nearer to 0 by lambd.")
shrink_grad = op("shrink_grad", _shrink_grad_spec, may_alias=("dy", "x"), dy=lambda g, x, lambd: shrink_grad(g, x, lambd),
                 doc="dy outside [-lambd, lambd], else 0.")
threshold = op("threshold", _threshold_spec, may_alias=("x",), x=lambda g, x, threshold: where(le(x, threshold), 0.0, g),
               doc="x above the threshold, else value.")

# -- with several ------------------------------------------------------------------------------------------------------


def _elu_spec(x: TensorSpec, *, alpha: float, scale: float, inner: float) -> TensorSpec:
    return _one(x)


def _elu_grad_spec(dy: TensorSpec, x: TensorSpec, *, alpha: float, scale: float, inner: float) -> TensorSpec:
    return dy.like()


def _elu_curve(x: Any, alpha: float, scale: float, inner: float) -> Any:
    return where(gt(x, 0), 0.0, exp(minimum(x, 0.0) * inner) * (alpha * scale * inner * inner))


elu = op("elu", _elu_spec, may_alias=("x",),
         x=lambda g, x, alpha, scale, inner: elu_grad(g, x, alpha=alpha, scale=scale, inner=inner),
         again=lambda x, alpha, scale, inner: elu(x, alpha=alpha, scale=scale, inner=inner),
         doc="scale x where x is positive, else scale alpha (exp(inner x) - 1). Clevert et al., arXiv:1511.07289; selu: "
             "Klambauer et al., arXiv:1706.02515; celu: Barron, arXiv:1704.07483.")
elu_grad = op("elu_grad", _elu_grad_spec, may_alias=("dy", "x"),
              dy=lambda g, x, alpha, scale, inner: elu_grad(g, x, alpha=alpha, scale=scale, inner=inner),
              x=lambda g, dy, x, alpha, scale, inner: g * dy * _elu_curve(x, alpha, scale, inner))


def _softplus_spec(x: TensorSpec, *, beta: float, threshold: float) -> TensorSpec:
    return _one(x)


def _softplus_grad_spec(dy: TensorSpec, x: TensorSpec, *, beta: float, threshold: float) -> TensorSpec:
    return dy.like()


def _softplus_curve(x: Any, beta: float, threshold: float) -> Any:
    s = sigmoid(x * beta)
    return where(gt(x * beta, threshold), 0.0, s * (1 - s) * beta)


softplus = op("softplus", _softplus_spec, may_alias=("x",),
              x=lambda g, x, beta, threshold: softplus_grad(g, x, beta=beta, threshold=threshold),
              again=lambda x, beta, threshold: softplus(x, beta=beta, threshold=threshold),
              doc="log(1 + exp(beta x)) / beta, and x where beta x is above the threshold.")
softplus_grad = op("softplus_grad", _softplus_grad_spec, may_alias=("dy", "x"),
                   dy=lambda g, x, beta, threshold: softplus_grad(g, x, beta=beta, threshold=threshold),
                   x=lambda g, dy, x, beta, threshold: g * dy * _softplus_curve(x, beta, threshold))


def _hardtanh_spec(x: TensorSpec, *, low: float, high: float) -> TensorSpec:
    return x.like()


def _hardtanh_grad_spec(dy: TensorSpec, x: TensorSpec, *, low: float, high: float) -> TensorSpec:
    return dy.like()


hardtanh = op("hardtanh", _hardtanh_spec, may_alias=("x",),
              x=lambda g, out, low, high: hardtanh_grad(g, out, low=low, high=high),
              again=lambda x, low, high: hardtanh(x, low=low, high=high),
              doc="x kept between two numbers; unlike clamp's, its gradient is 0 at them, so the result is what it keeps.")
hardtanh_grad = op("hardtanh_grad", _hardtanh_grad_spec, may_alias=("dy", "x"),
                   dy=lambda g, x, low, high: hardtanh_grad(g, x, low=low, high=high),
                   doc="dy where x lies between the two, else 0.")

__all__ = ["elu", "elu_grad", "hardshrink", "hardsigmoid", "hardsigmoid_grad", "hardswish", "hardswish_grad", "hardtanh",
           "hardtanh_grad", "leaky_relu", "leaky_relu_grad", "logsigmoid", "logsigmoid_grad", "mish", "mish_grad",
           "shrink_grad", "silu", "silu_grad", "softplus", "softplus_grad", "softshrink", "softsign", "softsign_grad",
           "threshold"]
