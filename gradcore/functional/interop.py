"""Tensors of other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.device import Device
from gradcore.functional.creation import tensor

Tensor = Any


def from_dlpack(ext_tensor: Any, *, device: str | Device | None = None, copy: bool | None = None) -> Tensor:
    """A tensor with a copy of what another library's tensor on the CPU holds: bytes that the pool did not hand out would have
    no owner. The other way, ``numpy.from_dlpack(x)`` and its like share memory with ``x`` and keep it alive.

    Raises TypeError for what has no ``__dlpack__``, ValueError for ``copy=False``, BufferError for another device or dtype than
    NumPy's.
    """
    if not hasattr(ext_tensor, "__dlpack__"):
        raise TypeError(f"from_dlpack expects an object with __dlpack__, but got {type(ext_tensor).__name__}")
    if copy is False:
        raise ValueError("from_dlpack(copy=False) is not supported: memory of another library is copied")
    return tensor(np.from_dlpack(ext_tensor), device=device)
