"""Tensors of other libraries."""

from __future__ import annotations

from typing import Any

from gradcore.devices.device import Device, get_device
from gradcore.engine.dlpack import array_of, is_capsule
from gradcore.functional.creation import from_numpy, tensor

Tensor = Any


def from_dlpack(ext_tensor: Any, *, device: str | Device | None = None, copy: bool | None = None) -> Tensor:
    """A tensor over the memory of another library's tensor on the CPU, which it keeps alive; see :func:`from_numpy`.

    ``ext_tensor`` has a ``__dlpack__``, or is a capsule that one gave, which is used up. It is a copy where ``copy`` says so,
    on another device, and of what is read-only or empty. Raises TypeError for anything else, ValueError for ``copy=False``
    where only a copy is possible, BufferError for another device or dtype than NumPy's and bfloat16.
    """
    if not hasattr(ext_tensor, "__dlpack__") and not is_capsule(ext_tensor):
        raise TypeError(f"from_dlpack expects an object with __dlpack__ or its capsule, but got {type(ext_tensor).__name__}")
    array = array_of(ext_tensor)
    elsewhere = device is not None and get_device(device) is not get_device("cpu")
    shared = not elsewhere and array.flags.writeable and array.size > 0
    if copy is False and not shared:
        raise ValueError("from_dlpack(copy=False): what is read-only, empty, or goes to another device is copied")
    return from_numpy(array) if shared and not copy else tensor(array, device=device)
