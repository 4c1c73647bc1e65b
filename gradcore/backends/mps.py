"""PyTorch's questions about Apple's GPUs, for which gradcore has no kernels."""

from __future__ import annotations


def is_available() -> bool:
    return False


def is_built() -> bool:
    return False
