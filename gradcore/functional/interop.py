"""Tensors over the memory of other libraries' arrays and tensors, where they can share it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.devices.device import Device, device_of_new, get_device
from gradcore.dtypes import is_floating
from gradcore.engine.dlpack import array_of, gpu_of, is_capsule
from gradcore.engine.value import Value
from gradcore.functional.creation import copied, from_numpy, over_gpu, tensor

Tensor = Any


def from_dlpack(ext_tensor: Any, *, device: str | int | Device | None = None, copy: bool | None = None) -> Tensor:
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
        found, writable = over_gpu(ext_tensor, home)
        shared = writable and found.spec.numel > 0
    if copy is False and (elsewhere or not shared):
        raise ValueError("from_dlpack(copy=False): read-only and empty arrays, and arrays for another device, must be copied")
    if number is None:
        return from_numpy(array) if shared and not copy and not elsewhere else tensor(array, device=device)
    return found.to(device=device, copy=copy or (found.spec.numel > 0 and not shared))


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A vector over the memory of ``buffer``, such as a bytearray, from ``offset`` bytes on: ``count`` elements, or all.

    What cannot be written to, such as bytes, is copied. Raises ValueError for a size that does not fit.
    """
    dtype = np.dtype(dtype)
    nbytes = memoryview(buffer).nbytes
    left = nbytes - offset
    if not count or not nbytes:
        raise ValueError(f"both buffer length ({nbytes}) and count ({count}) must not be 0")
    if not 0 <= offset < nbytes:
        raise ValueError(f"offset ({offset} bytes) must be non-negative and no greater than buffer length ({nbytes} bytes) - 1")
    if count < 0 and left % dtype.itemsize:
        raise ValueError(f"buffer length ({left} bytes) after offset ({offset} bytes) must be a multiple of element size "
                         f"({dtype.itemsize})")
    if count > 0 and count * dtype.itemsize > left:
        raise ValueError(f"requested buffer length ({count} * {dtype.itemsize} bytes) after offset ({offset} bytes) must not "
                         f"be greater than actual buffer length ({nbytes} bytes)")
    found = as_tensor(np.frombuffer(buffer, dtype, count, offset), device="cpu")
    return found.requires_grad_() if requires_grad else found


def as_tensor(data: Any, dtype: Any = None, device: str | int | Device | None = None) -> Tensor:
    """``data`` as a tensor, without a copy if possible.

    A tensor of that dtype and device is returned itself. The memory of a writable array of that dtype, or of another library's
    tensor on that device, is shared (see :func:`from_dlpack`). Other data is copied, as by :func:`tensor`.
    """
    if isinstance(data, Value):
        known: Tensor = data
        return known.to(device=device, dtype=dtype)
    there = device_of_new(device)
    if gpu_of(data) is not None:
        return from_dlpack(data, device=there).to(dtype=dtype)
    if there is get_device("cpu"):
        if hasattr(data, "__dlpack_device__") and not isinstance(data, np.ndarray) and data.__dlpack_device__()[0] == 1:
            data = array_of(data)
        if isinstance(data, np.ndarray) and _lends(data) and (dtype is None or np.dtype(dtype) == data.dtype):
            return from_numpy(data)
    return tensor(data, dtype=dtype, device=device)


def asarray(obj: Any, *, dtype: Any = None, device: str | int | Device | None = None, copy: bool | None = None,
            requires_grad: bool = False) -> Tensor:
    """:func:`as_tensor`; with ``copy=True`` always a new tensor."""
    if requires_grad or copy:
        if isinstance(obj, Value):
            dtype, device = dtype or obj.spec.dtype, device_of_new(device, obj.storage.device)
        return copied(obj, dtype, device, requires_grad)
    return as_tensor(obj, dtype, device)


def _lends(array: np.ndarray[Any, Any]) -> bool:
    """Can a tensor share the array's memory?"""
    return bool(array.size and array.flags.writeable and array.dtype.isnative and (
        array.dtype.kind in "biuf" or is_floating(array.dtype)) and not any(s < 0 or s % array.itemsize for s in array.strides))
