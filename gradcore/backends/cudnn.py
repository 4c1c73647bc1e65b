"""PyTorch's switches for cuDNN, which gradcore does not use: they may be set, and all but ``allow_tf32`` change nothing."""

from __future__ import annotations

import sys
from types import ModuleType

from gradcore.devices.precision import allow_in_convolutions, allowed_in_convolutions

enabled = True
benchmark = False
benchmark_limit = 10
#: Kernels of gradcore add in the same order in every run, whatever stands here.
deterministic = False


def is_available() -> bool:
    return False


def version() -> None:
    """There is none."""


class _Switches(ModuleType):
    """This module, whose ``allow_tf32`` is a setting of the devices."""

    @property
    def allow_tf32(self) -> bool:
        """Do convolutions follow :func:`gradcore.set_float32_matmul_precision`? True at first; ``highest`` takes no TF32."""
        return allowed_in_convolutions()

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        allow_in_convolutions(allowed)


sys.modules[__name__].__class__ = _Switches
