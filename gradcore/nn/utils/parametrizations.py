"""Parametrizations that PyTorch has: a weight as a direction and a length."""

from __future__ import annotations

from typing import Any

from gradcore.nn.module import Module
from gradcore.nn.utils.parametrize import register_parametrization
from gradcore.nn.utils.weight_norm import length_of

Tensor = Any

__all__ = ["weight_norm"]


class _WeightNorm(Module):
    """v g / |v|, of ``original0`` = g and ``original1`` = v."""

    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        return v * (g / length_of(v, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return length_of(weight, self.dim), weight.clone()


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """A weight made of the length of each slice of ``dim``, or of everything, and a direction. arXiv:1602.07868.

    Undone by :func:`~gradcore.nn.utils.parametrize.remove_parametrizations`. Raises ValueError for what is no parameter.
    """
    return register_parametrization(module, name, _WeightNorm(dim))
