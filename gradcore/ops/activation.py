"""Activations. Each gradient is one launch by an op of its own, so that backward can be differentiated again."""

from __future__ import annotations

import math

from gradcore.errors import SpecError
from gradcore.ops.elementwise import exp
from gradcore.ops.op import op
from gradcore.ops.shapes import need_float, pieces, with_workspace
from gradcore.spec import TensorSpec


def _float(x: TensorSpec) -> TensorSpec:
    need_float("an activation", x=x)
    return x.like()


def _grad(dy: TensorSpec, x: TensorSpec) -> TensorSpec:
    return dy.like()


def _relu_spec(x: TensorSpec) -> TensorSpec:
    if x.dtype.kind == "b":
        raise SpecError(f"relu: expected integers or floats, but got {x}: Boolean inputs not supported for relu")
    return x.like()


relu = op("relu", _relu_spec, may_alias=("x",), x=lambda g, out: relu_grad(g, out), again=lambda x: relu(x))
relu_grad = op("relu_grad", _grad, may_alias=("x",), dy=lambda g, x: relu_grad(g, x), doc="0 where x <= 0, else dy.")

tanh = op("tanh", _float, may_alias=("x",), x=lambda g, out: tanh_grad(g, out))
tanh_grad = op("tanh_grad", _grad, may_alias=("x",),
               dy=lambda g, x: tanh_grad(g, x),
               x=lambda g, dy, x: g * dy * x * -2,
               doc="dy * (1 - x^2), where x is the result of tanh.")

sigmoid = op("sigmoid", _float, may_alias=("x",), x=lambda g, out: sigmoid_grad(g, out))
sigmoid_grad = op("sigmoid_grad", _grad,
                  dy=lambda g, x: sigmoid_grad(g, x),
                  x=lambda g, dy, x: g * dy * (x * -2 + 1),
                  doc="dy * x * (1 - x), where x is the result of sigmoid.")


def _erf_spec(x: TensorSpec) -> object:
    return with_workspace(_float(x), pieces(x, 4))


erf = op("erf", _erf_spec, contiguous=True, may_alias=("x",), x=lambda g, x: g * (exp(-(x * x)) * (2 / math.sqrt(math.pi))))


def _gelu_spec(x: TensorSpec, *, tanh: bool = False) -> object:
    return with_workspace(_float(x), pieces(x, 5))


def _gelu_grad_spec(dy: TensorSpec, x: TensorSpec, *, tanh: bool = False) -> object:
    return with_workspace(dy.like(), pieces(x, 6))


def _gelu_second(g: object, dy: object, x: object, tanh: bool) -> object:
    return g * dy * _gelu_curvature(x, tanh)  # type: ignore[operator]


def _gelu_curvature(x: object, by_tanh: bool) -> object:
    """The second derivative of gelu, out of ops."""
    if not by_tanh:  # (2 - x^2) phi(x), phi being the normal density
        return exp(x * x * -0.5) * (x * x * -1 + 2) * (1 / math.sqrt(2 * math.pi))  # type: ignore[operator]
    c, k = math.sqrt(2 / math.pi), 0.044715
    u = x * c * (x * x * k + 1)  # type: ignore[operator]
    t = tanh(u)
    du = (x * x * (3 * k) + 1) * c  # type: ignore[operator]
    ddu = x * (6 * k * c)  # type: ignore[operator]
    return (1 - t * t) * (du + x * 0.5 * (ddu - t * du * du * 2))  # type: ignore[operator]


gelu = op("gelu", _gelu_spec, contiguous=True, may_alias=("x",), x=lambda g, x, tanh: gelu_grad(g, x, tanh=tanh),
          again=lambda x, tanh: gelu(x, tanh=tanh),
          doc="x Phi(x), exactly or by tanh. Hendrycks and Gimpel, arXiv:1606.08415.")
gelu_grad = op("gelu_grad", _gelu_grad_spec, contiguous=True, may_alias=("dy", "x"),
               dy=lambda g, x, tanh: gelu_grad(g, x, tanh=tanh), x=_gelu_second)

__all__ = ["erf", "gelu", "gelu_grad", "relu", "relu_grad", "sigmoid", "sigmoid_grad", "tanh", "tanh_grad"]
