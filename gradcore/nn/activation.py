"""Activations as modules, which call the functions of :mod:`gradcore.nn.functional`."""

from __future__ import annotations

from typing import Any

from gradcore.functional import full
from gradcore.nn import functional as F
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter
from gradcore.ops import activation

__all__ = ["CELU", "ELU", "GELU", "GLU", "SELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
           "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SiLU", "Sigmoid", "Softmax", "Softmax2d",
           "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold"]

Tensor = Any


class _InPlace(Module):
    """An activation that is in place if ``inplace``: see :mod:`gradcore.nn.functional`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return ", ".join(filter(None, (super().extra_repr(), "inplace=True" if self.inplace else "")))


class ReLU(_InPlace):
    """max(x, 0); see :func:`gradcore.nn.functional.relu`."""

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(input, True) if self.inplace else activation.relu(input)


class SiLU(_InPlace):
    """x * sigmoid(x), also called swish. Elfwing et al., arXiv:1702.03118."""

    def forward(self, input: Tensor) -> Tensor:
        return F.silu(input, self.inplace)


class Mish(_InPlace):
    """x * tanh(log(1 + exp(x))). Misra, arXiv:1908.08681."""

    def forward(self, input: Tensor) -> Tensor:
        return F.mish(input, self.inplace)


class Hardsigmoid(_InPlace):
    """x / 6 + 1 / 2, clamped to [0, 1]."""

    def forward(self, input: Tensor) -> Tensor:
        return F.hardsigmoid(input, self.inplace)


class Hardswish(_InPlace):
    """x * hardsigmoid(x). Howard et al., arXiv:1905.02244."""

    def forward(self, input: Tensor) -> Tensor:
        return F.hardswish(input, self.inplace)


class SELU(_InPlace):
    """ELU with the constants that preserve mean 0 and variance 1. Klambauer et al., arXiv:1706.02515."""

    def forward(self, input: Tensor) -> Tensor:
        return F.selu(input, self.inplace)


class ELU(_InPlace):
    """x if x > 0, else alpha * (exp(x) - 1). Clevert et al., arXiv:1511.07289."""

    _module_in_repr = "alpha"

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        return F.elu(input, self.alpha, self.inplace)


class CELU(ELU):
    """x if x > 0, else alpha * (exp(x / alpha) - 1). Barron, arXiv:1704.07483."""

    def forward(self, input: Tensor) -> Tensor:
        return F.celu(input, self.alpha, self.inplace)


class LeakyReLU(_InPlace):
    """x if x > 0, else negative_slope * x."""

    _module_in_repr = "negative_slope"

    def __init__(self, negative_slope: float = 1e-2, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, input: Tensor) -> Tensor:
        return F.leaky_relu(input, self.negative_slope, self.inplace)


class RReLU(_InPlace):
    """x if x > 0, else slope * x; the slope is uniform in [lower, upper] in training, else their mean. arXiv:1505.00853."""

    _module_in_repr = "lower upper"

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.lower = lower
        self.upper = upper

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)


class Hardtanh(_InPlace):
    """x clamped to [min_val, max_val]. Raises ValueError unless ``min_val`` is less than ``max_val``."""

    _module_in_repr = "min_val max_val"

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        if max_val <= min_val:
            raise ValueError(f"max_val must be larger than min_val, but got {max_val} and {min_val}")
        self.min_val = min_val
        self.max_val = max_val

    def forward(self, input: Tensor) -> Tensor:
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)


class ReLU6(Hardtanh):
    """x clamped to [0, 6]."""

    _module_in_repr = ""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)


class Threshold(_InPlace):
    """x where x > ``threshold``, else ``value``."""

    _module_in_repr = "threshold value"

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold = threshold
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.threshold(input, self.threshold, self.value, self.inplace)


class PReLU(Module):
    """x if x > 0, else weight * x, with a learned weight for each channel, or one for all. He et al., arXiv:1502.01852."""

    _module_in_repr = "num_parameters"
    weight: Parameter

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(full((num_parameters,), float(init), device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Fill the weight with ``init``."""
        self.weight.data.fill_(self.init)

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)


class GELU(Module):
    """x * Phi(x), with the normal distribution function, exact or with ``approximate="tanh"``. arXiv:1606.08415."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Tanh(Module):
    """The hyperbolic tangent, element by element."""

    def forward(self, input: Tensor) -> Tensor:
        return activation.tanh(input)


class Sigmoid(Module):
    """``1 / (1 + exp(-x))``, element by element."""

    def forward(self, input: Tensor) -> Tensor:
        return activation.sigmoid(input)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x > ``threshold``."""

    _module_in_repr = "beta threshold"

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Tensor) -> Tensor:
        return F.softplus(input, self.beta, self.threshold)


class _Shrink(Module):
    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(_Shrink):
    """x where |x| > ``lambd``, else 0."""

    def forward(self, input: Tensor) -> Tensor:
        return F.hardshrink(input, self.lambd)


class Softshrink(_Shrink):
    """sign(x) * max(|x| - lambd, 0)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.softshrink(input, self.lambd)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.tanhshrink(input)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.softsign(input)


class LogSigmoid(Module):
    """log(sigmoid(x)), without underflow."""

    def forward(self, input: Tensor) -> Tensor:
        return F.logsigmoid(input)


class _Along(Module):
    """An activation along the dimension ``dim``."""

    _module_in_repr = "dim"

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim: Any = dim


class Softmax(_Along):
    """exp(x) / sum(exp(x)) along ``dim``."""

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(input, self.dim)


class LogSoftmax(Softmax):
    """The logarithm of the softmax along ``dim``."""

    def forward(self, input: Tensor) -> Tensor:
        return F.log_softmax(input, self.dim)


class Softmin(_Along):
    """The softmax of -x along ``dim``."""

    def forward(self, input: Tensor) -> Tensor:
        return F.softmin(input, self.dim)


class Softmax2d(Module):
    """The softmax over the channels of [N, C, H, W] or [C, H, W]."""

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(input, -3)


class GLU(_Along):
    """a * sigmoid(b), where a and b are the two halves of the input along ``dim``. Dauphin et al., arXiv:1612.08083."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)

    def forward(self, input: Tensor) -> Tensor:
        return F.glu(input, self.dim)
