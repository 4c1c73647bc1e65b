"""PyTorch's switches for cuDNN, which gradcore does not use: they may be set, and all but ``allow_tf32`` change nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def flags(enabled: bool = False, benchmark: bool = False, benchmark_limit: int = 10, deterministic: bool = False,
          allow_tf32: bool = True) -> Iterator[None]:
    """Set the switches within a ``with`` block. Packages switch cuDNN off around a CTC loss with it."""
    given = {"enabled": enabled, "benchmark": benchmark, "benchmark_limit": benchmark_limit, "deterministic": deterministic,
             "allow_tf32": allow_tf32}
    module = sys.modules[__name__]
    was = {name: getattr(module, name) for name in given}
    try:
        for name, value in given.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in was.items():
            setattr(module, name, value)


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
