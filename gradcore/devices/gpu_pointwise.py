"""Elementwise kernels of the GPU besides those of ``gpu_elementwise``: functions, activations, bits, in-place forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.devices import gpu_launch as gl
from gradcore.devices.gpu_elementwise import apply, check_apart, function, wide
from gradcore.overwriting import WITH_THEIR_KERNELS
from gradcore.spec import is_floating, limits

gl.KERNELS |= {name: function(name) for name in (
    "exp2 arcsin arccos arcsinh arccosh arctanh erfc erfinv lgamma digamma "
    "sinc logit trunc frac fmod fmax fmin arctan2 hypot logaddexp lerp "
    "silu silu_grad mish mish_grad softsign softsign_grad logsigmoid logsigmoid_grad hardsigmoid hardsigmoid_grad hardswish "
    "hardswish_grad leaky_relu leaky_relu_grad hardshrink softshrink shrink_grad threshold bitwise_and bitwise_or "
    "bitwise_xor bitwise_left_shift bitwise_right_shift").split()}
gl.KERNELS |= {
    "polygamma": function("polygamma", n=None),
    **{name: function(name, value=1) for name in ("addcmul", "addcdiv")},
    **{name: function(name, beta=None, threshold=None) for name in ("softplus", "softplus_grad")},
    **{name: function(name, low=None, high=None) for name in ("hardtanh", "hardtanh_grad")}}


@gl.kernel
def bitwise_not(x: Any, out: Any) -> None:
    apply("BoolNot" if x.dtype == np.bool_ else "BitwiseNot", wide(out.dtype), out, x)


@gl.kernel
def nan_to_num(x: Any, out: Any, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> None:
    if not is_floating(out.dtype):
        apply("Copy", wide(out.dtype), out, x)
        return
    ends = limits(out.dtype)
    apply("NanToNum", wide(out.dtype), out, x, nan, float(ends.max) if posinf is None else posinf,
          float(ends.min) if neginf is None else neginf)


@gl.kernel
def masked_fill_(x: Any, mask: Any, value: Any) -> None:
    check_apart(x, mask)
    apply("MaskedFill", wide(x.dtype), x, x, mask, value)


@gl.kernel
def elu(x: Any, out: Any, *, alpha: float, scale: float, inner: float) -> None:
    apply("Elu", wide(out.dtype), out, x, scale, scale * alpha, inner)


@gl.kernel
def elu_grad(dy: Any, x: Any, out: Any, *, alpha: float, scale: float, inner: float) -> None:
    apply("EluGrad", wide(out.dtype), out, dy, x, scale, scale * alpha, inner)


# -- in place ----------------------------------------------------------------------------------------------------------


def _written(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an in-place op: that of the functional op, with the first operand as its output."""

    def run(x: Any, *others: Any, **attrs: Any) -> None:
        for other in others:
            check_apart(x, other)
        kernel(x, *others, x, **attrs)

    return run


gl.KERNELS |= {f"{name}_": _written(function("erf") if name == "erf" else gl.KERNELS[name])
               for name in WITH_THEIR_KERNELS}
