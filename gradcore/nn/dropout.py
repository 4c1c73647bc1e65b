"""Dropout as a module."""

from __future__ import annotations

from typing import Any

from gradcore.nn import functional as F
from gradcore.nn.module import Module

Tensor = Any


class Dropout(Module):
    """In training: zero with probability ``p``, else x / (1 - p). In evaluation: its input."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p = p
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"
