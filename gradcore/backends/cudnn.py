"""PyTorch's switches for cuDNN, which gradcore does not use: they may be set, and change nothing."""

from __future__ import annotations

enabled = True
benchmark = False
benchmark_limit = 10
#: Kernels of gradcore add in the same order in every run, whatever stands here.
deterministic = False
#: Convolution computes in float32, whatever stands here.
allow_tf32 = True


def is_available() -> bool:
    return False


def version() -> None:
    """There is none."""
