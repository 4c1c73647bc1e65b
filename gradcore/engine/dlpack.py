"""Capsules of DLPack where NumPy does not know the dtype: bfloat16 goes through it as the 16 bits that it is made of.

The structures are those of dlpack.h, version 1: https://dmlc.github.io/dlpack/latest/c_api.html
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gradcore.dtypes import bfloat16

_UNSIGNED, _BFLOAT = 1, 4
#: The kind of device that a GPU is.
CUDA = 2
#: Where a capsule's tensor begins in what it points to, in bytes, by the capsule's name.
_STARTS = {b"dltensor": 0, b"dltensor_versioned": 32}
#: Where the flags of a versioned one stand, and the flag of what must not be written to.
_FLAGS, _READ_ONLY = 24, 1


class _Tensor(ctypes.Structure):
    """DLTensor up to its dtype."""

    _fields_ = (("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _tensor(capsule: Any) -> _Tensor:
    name = _name(capsule)
    if name not in _STARTS:
        raise ValueError(f"from_dlpack: expected an unused capsule, named 'dltensor', but got {name!r}: a capsule can be "
                         "consumed only once")
    return _Tensor.from_address(_pointer(capsule, name) + _STARTS[name])


def gpu_of(source: Any) -> int | None:
    """The number of the GPU that another library's tensor, or what a capsule holds, lies on; None for any other place."""
    if is_capsule(source):
        tensor = _tensor(source)
        kind, number = tensor.device, tensor.device_id
    elif hasattr(source, "__dlpack_device__"):
        kind, number = source.__dlpack_device__()
    else:
        # Its capsule will say.
        return None
    return int(number) if kind == CUDA else None


def is_capsule(value: Any) -> bool:
    return type(value).__name__ == "PyCapsule"


def as_bfloat(capsule: Any) -> Any:
    """The capsule of an array of uint16, which then says that it holds bfloat16."""
    _tensor(capsule).code = _BFLOAT
    return capsule


def array_of(source: Any) -> np.ndarray[Any, Any]:
    """An array over the memory of another library's tensor, or of what a capsule holds.

    NumPy takes what came by a capsule from before version 1 for read-only, since that cannot say: other libraries write to it.
    NumPy before 2.3 takes any for read-only.
    """
    given = Given(source)
    array: np.ndarray[Any, Any] = np.from_dlpack(given)
    if given.writable and not array.flags.writeable:
        array = np.asarray(_Writable(array))
    return array.view(bfloat16()) if given.bfloat else array


class Given:
    """What NumPy or CuPy is given: the capsule, with uint16 in place of bfloat16.

    ``stream`` is the stream of a GPU that the tensor is to be used on, as DLPack names it; its library sees to the order.
    """

    def __init__(self, source: Any, stream: int | None = None) -> None:
        if is_capsule(source):
            self.capsule = source
        else:
            order = {} if stream is None else {"stream": stream}
            try:
                self.capsule = source.__dlpack__(max_version=(1, 0), **order)
            except TypeError:
                # A library from before version 1.
                self.capsule = source.__dlpack__(**order)
        tensor = _tensor(self.capsule)
        name = _name(self.capsule)
        flags = 0 if name == b"dltensor" else ctypes.c_uint64.from_address(_pointer(self.capsule, name) + _FLAGS).value
        #: Does the capsule not say that the bytes are read-only?
        self.writable = not flags & _READ_ONLY
        self.device = tensor.device, tensor.device_id
        self.bfloat = (tensor.code, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1)
        if self.bfloat:
            tensor.code = _UNSIGNED

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class _Writable:
    """The bytes of an array, which it keeps alive."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.owner = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}
