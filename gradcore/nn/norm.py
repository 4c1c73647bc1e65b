"""Layers that normalise their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.functional import empty
from gradcore.nn import functional as F
from gradcore.nn import init
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter

Tensor = Any


class LayerNorm(Module):
    """(x - mean) / sqrt(var + eps) over the last dimensions, times weight, plus bias.

    Ba, Kiros and Hinton, arXiv:1607.06450.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
                 bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine

        def make(wanted: bool) -> Parameter | None:
            return Parameter(empty(self.normalized_shape, device=device, dtype=dtype)) if wanted else None

        self.register_parameter("weight", make(elementwise_affine))
        self.register_parameter("bias", make(elementwise_affine and bias))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
                f"bias={self.bias is not None}")
