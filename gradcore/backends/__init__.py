"""PyTorch's switches of what it computes with.

``cuda.matmul.allow_tf32`` is another name for :func:`gradcore.set_float32_matmul_precision`; with ``cudnn.allow_tf32 = False``
convolutions do not follow it. The other switches of ``cudnn`` change nothing.
"""

from __future__ import annotations

from types import SimpleNamespace

from gradcore.backends import cudnn, mps
from gradcore.devices.precision import get_float32_matmul_precision, set_float32_matmul_precision

__all__ = ["cuda", "cudnn", "mps"]


class _Matmul:
    """Settings of matrix products on a GPU."""

    @property
    def allow_tf32(self) -> bool:
        """May products of float32 matrices round their operands to TF32? False at first."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        set_float32_matmul_precision("high" if allowed else "highest")


cuda = SimpleNamespace(matmul=_Matmul())
