"""Convolutions and linear layers that include the batch norm behind them, for evaluation."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from gradcore.engine.modes import no_grad
from gradcore.functional import ones_like, reshape, rsqrt, unsqueeze, zeros_like
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter

Tensor = Any
Layer = TypeVar("Layer", bound=Module)

__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]


def _copied(layer: Layer, bn: Any) -> Layer:
    if layer.training or bn.training:
        raise AssertionError("Fusion only for eval!")
    if bn.running_mean is None or bn.running_var is None:
        raise AssertionError("bn.running_mean and bn.running_var must not be None")
    return copy.deepcopy(layer)


def fuse_conv_bn_eval(conv: Layer, bn: Module, transpose: bool = False) -> Layer:
    """A copy of a convolution that also does what the batch norm behind it does, both in evaluation.

    ``transpose`` is for transposed convolutions. Raises AssertionError in training, and for a norm without running statistics.
    """
    fused: Any = _copied(conv, bn)
    norm: Any = bn
    fused.weight, fused.bias = fuse_conv_bn_weights(fused.weight, fused.bias, norm.running_mean, norm.running_var, norm.eps,
                                                    norm.weight, norm.bias, transpose)
    return fused


def fuse_conv_bn_weights(conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float,
                         bn_w: Tensor | None, bn_b: Tensor | None, transpose: bool = False) -> tuple[Parameter, Parameter]:
    """Weight and bias of :func:`fuse_conv_bn_eval`, which require gradients if the convolution's do."""
    with no_grad():
        bias, scale, shift = (make(bn_rm) if given is None else given for make, given in (
            (zeros_like, conv_b), (ones_like, bn_w), (zeros_like, bn_b)))
        rstd = rsqrt(bn_rv + bn_eps)
        shape = [1] * conv_w.spec.ndim
        shape[1 if transpose else 0] = -1
        weight = (conv_w * reshape(scale * rstd, shape)).to(conv_w.spec.dtype)
        made = ((bias - bn_rm) * rstd * scale + shift).to((conv_w if conv_b is None else conv_b).spec.dtype)
    return Parameter(weight, conv_w.requires_grad), Parameter(made, bias.requires_grad)


def fuse_linear_bn_eval(linear: Layer, bn: Module) -> Layer:
    """A copy of a linear layer that also does what the batch norm behind it does, both in evaluation.

    Raises AssertionError in training, for a norm without running statistics, and for one of another number of features.
    """
    fused: Any = _copied(linear, bn)
    norm: Any = bn
    if norm.num_features not in (fused.out_features, 1):
        raise AssertionError("To fuse, linear.out_features == bn.num_features or bn.num_features == 1, got "
                             f"linear.out_features={fused.out_features} and bn.num_features={norm.num_features}")
    fused.weight, fused.bias = fuse_linear_bn_weights(fused.weight, fused.bias, norm.running_mean, norm.running_var, norm.eps,
                                                      norm.weight, norm.bias)
    return fused


def fuse_linear_bn_weights(linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor,
                           bn_b: Tensor) -> tuple[Parameter, Parameter]:
    """Weight and bias of :func:`fuse_linear_bn_eval`, which require gradients if the layer's do."""
    with no_grad():
        bias = zeros_like(bn_rm) if linear_b is None else linear_b
        scale = bn_w * rsqrt(bn_rv + bn_eps)
        weight = linear_w * unsqueeze(scale, -1).to(linear_w.spec.dtype)
        made = ((bias - bn_rm) * scale + bn_b).to((linear_w if linear_b is None else linear_b).spec.dtype)
    return Parameter(weight, linear_w.requires_grad), Parameter(made, bias.requires_grad)
