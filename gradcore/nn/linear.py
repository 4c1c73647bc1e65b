"""The layers ``Linear``, ``Bilinear``, ``Identity`` and ``Flatten``."""

from __future__ import annotations

import math
from typing import Any

from gradcore.functional import empty, flatten
from gradcore.functional.products import bilinear
from gradcore.nn import init
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter
from gradcore.ops.linalg import linear

__all__ = ["Bilinear", "Flatten", "Identity", "Linear"]

Tensor = Any


def draw(weight: Tensor, bias: Tensor | None) -> None:
    """Draw a layer's weight and bias uniformly in +-1/sqrt(fan_in), where fan_in is the number of weights of an output."""
    init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        fan_in = math.prod(weight.spec.shape[1:])
        bound = 1 / math.sqrt(fan_in) if fan_in else 0
        init.uniform_(bias, -bound, bound)


class Linear(Module):
    """x W^T + b: weight [out_features, in_features], bias [out_features]."""

    weight: Parameter
    bias: Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self._module_make(bias, device, dtype)

    def _module_make(self, bias: bool, device: Any, dtype: Any) -> None:
        self.weight = Parameter(empty(self.out_features, self.in_features, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(self.out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly in +-1/sqrt(in_features), as in PyTorch."""
        draw(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class NonDynamicallyQuantizableLinear(Linear):
    """The output projection of attention, a class of its own in PyTorch, where quantization leaves it out."""


class Bilinear(Module):
    """x1^T W_k x2 + b_k: weight [out_features, in1_features, in2_features], bias [out_features]."""

    weight: Parameter
    bias: Parameter | None

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got {in1_features}")
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        self.weight = Parameter(empty(out_features, in1_features, in2_features, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly in +-1/sqrt(in1_features), as in PyTorch."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}")


class Identity(Module):
    """Returns its input; arguments of the constructor are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Flatten(Module):
    """Merges the dimensions from ``start_dim`` to ``end_dim`` into one."""

    _module_in_repr = "start_dim end_dim"

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        return flatten(input, self.start_dim, self.end_dim)
