"""Import of other libraries' tensors by DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.device import Device, get_device
from gradcore.dtypes import bfloat16
from gradcore.engine.dlpack import Given, array_of, gpu_of, is_capsule
from gradcore.engine.owners import borrow
from gradcore.functional.creation import empty, from_numpy, tensor

Tensor = Any


def from_dlpack(ext_tensor: Any, *, device: str | Device | None = None, copy: bool | None = None) -> Tensor:
    """A tensor that shares the memory of another library's tensor on the CPU or a GPU; see :func:`from_numpy`.

    ``ext_tensor`` has a ``__dlpack__`` method, or is a DLPack capsule, which is consumed. The data is copied if ``copy`` is
    True, to another device, and if it is read-only or empty. On a GPU, the current stream waits for the work that the other
    library has submitted to its own. Raises TypeError for anything else, ValueError for ``copy=False`` if only a copy is
    possible, BufferError for another kind of device, or a dtype that is neither NumPy's nor bfloat16.
    """
    if not hasattr(ext_tensor, "__dlpack__") and not is_capsule(ext_tensor):
        raise TypeError(f"from_dlpack expects an object with __dlpack__ or its capsule, but got {type(ext_tensor).__name__}")
    number = gpu_of(ext_tensor)
    home = get_device("cpu" if number is None else f"cuda:{number}")
    elsewhere = device is not None and get_device(device) is not home
    if number is None:
        array = array_of(ext_tensor)
        shared = array.flags.writeable and array.size > 0
    else:
        # DLPack numbers the legacy default stream 1, though its handle is 0.
        given = Given(ext_tensor, home.current.handle or 1)
        array = home.array_of_others(given)
        shared = given.writable and array.size > 0
    if copy is False and (elsewhere or not shared):
        raise ValueError("from_dlpack(copy=False): read-only and empty arrays, and arrays for another device, must be copied")
    if number is None:
        return from_numpy(array) if shared and not copy and not elsewhere else tensor(array, device=device)
    dtype = bfloat16() if given.bfloat else np.dtype(array.dtype)
    found = borrow(array, home, dtype) if array.size else empty(*array.shape, dtype=dtype, device=home)
    return found.to(device=device, copy=copy or (array.size > 0 and not shared))
