"""Losses element by element, of ops that would keep more than their operands if they were made of smaller ones."""

from __future__ import annotations

from typing import Any

from gradcore.errors import SpecError
from gradcore.ops.activation import sigmoid
from gradcore.ops.elementwise import clamp, log, log1p
from gradcore.ops.op import op
from gradcore.ops.shapes import Operand, need_float, pieces, with_workspace
from gradcore.spec import TensorSpec

#: What a logarithm is at least, as in PyTorch: the loss of a certain error is finite.
LEAST_LOG = -100.0


def _huber_spec(x: TensorSpec, delta: type) -> Any:
    need_float("huber", input=x)
    return with_workspace(x.like(), pieces(x, 1))


def _pair(name: str, x: TensorSpec, target: Operand) -> None:
    need_float(name, input=x, target=target)
    if isinstance(target, TensorSpec) and (target.shape != x.shape or target.dtype != x.dtype):
        raise SpecError(f"{name}: input and target must have the same shape and dtype, but got {x} and {target}")


def _bce_spec(x: TensorSpec, target: TensorSpec) -> Any:
    _pair("binary_cross_entropy", x, target)
    return with_workspace(x.like(), pieces(x, 2))


def _bce_logits_spec(x: TensorSpec, target: Operand) -> Any:
    _pair("binary_cross_entropy_with_logits", x, target)
    return with_workspace(x.like(), pieces(x, 1))


huber = op("huber", _huber_spec, contiguous=True, may_alias=("x",), x=lambda g, x, delta: g * clamp(x, -delta, delta),
           doc="x^2 / 2 where |x| < delta, else delta (|x| - delta / 2). Huber, Annals of Mathematical Statistics 35 (1964).")
bce = op("bce", _bce_spec, contiguous=True, may_alias=("x",),
         x=lambda g, x, target: g * (x - target) / clamp(x * (1 - x), 1e-12, None),
         target=lambda g, x: g * (clamp(log1p(-x), LEAST_LOG, None) - clamp(log(x), LEAST_LOG, None)),
         doc="-(target log x + (1 - target) log(1 - x)), the logarithms being -100 at least.")
bce_logits = op("bce_logits", _bce_logits_spec, contiguous=True,
                x=lambda g, x, target: g * (sigmoid(x) - target),
                target=lambda g, x: -g * x,
                doc="log(1 + exp(x)) - target x, without overflow; for a target of 1 that is log(1 + exp(-x)).")

__all__ = ["bce", "bce_logits", "huber"]
