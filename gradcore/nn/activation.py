"""The most common activations as modules."""

from __future__ import annotations

from typing import Any

from gradcore.nn import functional as F
from gradcore.nn.module import Module
from gradcore.ops import activation

Tensor = Any


class ReLU(Module):
    """max(x, 0); see :func:`gradcore.nn.functional.relu`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(input, True) if self.inplace else activation.relu(input)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


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


class Softmax(Module):
    """exp(x) / sum(exp(x)) along ``dim``."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """The logarithm of the softmax along ``dim``."""

    def forward(self, input: Tensor) -> Tensor:
        return F.log_softmax(input, self.dim)
