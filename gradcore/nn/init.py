"""Ways to fill a new parameter, with PyTorch's names, defaults and formulas."""

from __future__ import annotations

import math
import warnings
from typing import Any

from gradcore import _random
from gradcore.engine import modes
from gradcore.ops import creation

Tensor = Any
Generator = _random.Generator

_GAINS = {"linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0, "conv_transpose2d": 1.0,
          "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """What a nonlinearity multiplies a deviation with to keep the variance. Raises ValueError for an unknown one."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}: expected leaky_relu, {', '.join(_GAINS)}")
    return _GAINS[nonlinearity]


@modes.no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    return creation.fill_(tensor, val)


def ones_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 0.0)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform in [a, b)."""
    return _random.uniform_(tensor, a, b, generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    return _random.normal_(tensor, mean, std, generator)


def _fans(tensor: Tensor) -> tuple[int, int]:
    shape = tensor.spec.shape
    if len(shape) < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, AISTATS 2010."""
    bound = gain * math.sqrt(6.0 / sum(_fans(tensor)))
    return _random.uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    return _random.normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor))), generator)


def _deviation(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode.lower()} not supported, please use one of ['fan_in', 'fan_out']")
    fan = _fans(tensor)[mode.lower() == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def _empty(tensor: Tensor) -> bool:
    if 0 in tensor.spec.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return True
    return False


def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
                     generator: Generator | None = None) -> Tensor:
    """He et al., Delving deep into rectifiers, arXiv:1502.01852."""
    if _empty(tensor):
        return tensor
    bound = math.sqrt(3.0) * _deviation(tensor, a, mode, nonlinearity)
    return _random.uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
                    generator: Generator | None = None) -> Tensor:
    if _empty(tensor):
        return tensor
    return _random.normal_(tensor, 0.0, _deviation(tensor, a, mode, nonlinearity), generator)
