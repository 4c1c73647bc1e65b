"""``gradcore.backends.cuda``: TF32, and PyTorch's choice among its kernels of attention, of which gradcore has one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from gradcore.devices.precision import get_float32_matmul_precision, set_float32_matmul_precision

__all__ = ["enable_cudnn_sdp", "enable_flash_sdp", "enable_math_sdp", "enable_mem_efficient_sdp", "is_built", "matmul",
           "sdp_kernel"]


def is_built() -> bool:
    """Is CuPy installed, without which no GPU is used? :func:`gradcore.cuda.is_available` says whether there is one."""
    return find_spec("cupy") is not None


class _Matmul:
    """Settings of matrix products on a GPU. All but ``allow_tf32`` may be set, and change nothing: sums are float32."""

    # A name that is misspelt is an error.
    __slots__ = ("allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation", "allow_fp16_reduced_precision_reduction")

    def __init__(self) -> None:
        self.allow_bf16_reduced_precision_reduction = self.allow_fp16_reduced_precision_reduction = True
        self.allow_fp16_accumulation = False

    @property
    def allow_tf32(self) -> bool:
        """May products of float32 matrices round their operands to TF32? False at first."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        set_float32_matmul_precision("high" if allowed else "highest")


matmul = _Matmul()


def enable_flash_sdp(enabled: bool) -> None:
    """Do nothing: attention has one kernel, which never stores the scores."""


enable_mem_efficient_sdp = enable_math_sdp = enable_cudnn_sdp = enable_flash_sdp


@contextmanager
def sdp_kernel(enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True,
               enable_cudnn: bool = True) -> Iterator[Any]:
    """Do nothing, for the same reason."""
    yield {}
