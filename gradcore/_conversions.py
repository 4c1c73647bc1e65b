"""Conversions of a tensor to Python numbers, NumPy, other libraries, another device or another dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore import dtypes, functional
from gradcore._classes import class_name, class_of
from gradcore.devices.device import Device, get_device
from gradcore.engine import exports
from gradcore.engine.dlpack import CUDA, as_bfloat
from gradcore.engine.exports import Shown
from gradcore.engine.owners import pin
from gradcore.engine.value import Value
from gradcore.errors import SpecError
from gradcore.ops import movement


class Conversions(Value):
    """The methods ``item``, ``numpy``, ``to`` and similar ones."""

    __slots__ = ()

    #: Makes NumPy's arrays and numbers leave operators with a tensor to the tensor.
    __array_priority__ = 1000

    def item(self) -> Any:
        """The value of a tensor with one element, as a Python number. Raises :class:`SpecError` for more or fewer elements."""
        if self.spec.numel != 1:
            raise SpecError(f"a Tensor with {self.spec.numel} elements cannot be converted to Scalar")
        return self.storage.device.read(self.storage, self.spec).item()

    def tolist(self) -> Any:
        """The elements as Python numbers in nested lists, read on the host; of a 0-d tensor a number."""
        return self.storage.device.read(self.storage, self.spec).tolist()

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """The values as a NumPy array, which shares memory with the tensor and keeps it alive.

        Raises RuntimeError for a tensor that requires grad, TypeError for one that is not on the CPU; with ``force`` the first
        is detached and the second copied.
        """
        return (self.detach().cpu() if force else self)._shown("numpy()")  # type: ignore[attr-defined]

    def _shown(self, form: str) -> np.ndarray[Any, Any]:
        """An array over the tensor's memory; the log names ``form`` as the way of export."""
        if self.edge is not None:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if self.storage.device.type != "cpu":
            raise TypeError(f"can't convert {self.storage.device} device type tensor to numpy. Use Tensor.cpu() to copy "
                            "the tensor to host memory first.")
        self.storage.device.note_read(self.storage, self.spec)
        found = np.asarray(Shown(self, form))
        # NumPy's array interface has no name for bfloat16.
        return found if found.dtype == self.spec.dtype else found.view(self.spec.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._shown("__array__"), dtype=dtype, copy=copy)

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """A DLPack capsule, which shares the tensor's memory and keeps it alive.

        Raises BufferError for a tensor that requires grad, or that is on neither the CPU nor a GPU.
        """
        if self.edge is not None:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        kind, _ = self.__dlpack_device__()
        if kind == CUDA:
            array = self.storage.device.array_for_others(self, exports.Shown(self, "__dlpack__"))
        else:
            array = self._shown("__dlpack__")
        bits = array if array.dtype.kind != "V" else array.view(np.uint16)
        capsule = bits.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
        return capsule if bits is array else as_bfloat(capsule)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0) for the CPU, or (2, index of the GPU). Raises BufferError for other devices."""
        device = self.storage.device
        if device.type == "cuda":
            return CUDA, device.index or 0
        if device.type != "cpu":
            raise BufferError(f"DLPack exports tensors on the CPU or a GPU, but this tensor is on {device}, which has no "
                              "memory")
        return 1, 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3; the other library waits for the current stream.

        Raises AttributeError for a tensor on another device, RuntimeError for one that requires grad.
        """
        if self.storage.device.type != "cuda":
            raise AttributeError(f"Can't get __cuda_array_interface__ on a tensor on {self.storage.device}. Use tensor.cuda() "
                                 "to copy it to the GPU first.")
        if self.edge is not None:
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad. If gradients aren't "
                               "required, use var.detach() to get Variable that doesn't require grad.")
        from gradcore.devices.gpu.workspaces import lend

        lend(self.storage.device, self.storage.block)
        exports.note(self, "__cuda_array_interface__")
        own = self.spec
        step = own.dtype.itemsize
        return {"shape": own.shape, "typestr": own.dtype.str, "version": 3,
                # In this protocol 1 is the default stream.
                "stream": self.storage.device.current.handle or 1,
                "strides": None if own.contiguous else tuple(s * step for s in own.strides),
                "data": (self.storage.block.address + own.offset * step if own.numel else 0, False)}

    def to(self, *args: Any, device: Any = None, dtype: Any = None, non_blocking: Any = False, copy: Any = False) -> Any:
        """The tensor on another device, with another dtype, or both; the tensor itself if nothing changes, unless ``copy``.

        With ``non_blocking`` a tensor in pinned memory is copied to a GPU while the host and the GPU's other work go on; it
        must not be written to until the copy is done. Without a GPU, ``to("cpu")`` copies such a tensor, as an upload would.
        """
        device, dtype, non_blocking = given_to(args, device, dtype, non_blocking)
        result = self if dtype is None or np.dtype(dtype) == self.spec.dtype else movement.cast(
            self, dtype=np.dtype(dtype))
        if device is not None:
            source, target = result.storage.device, get_device(device)
            # Without a GPU the CPU stands for one: an upload from pinned memory takes bytes there, as it would on a GPU.
            if target.compute is not source.compute or (source.pinned and not source.locked):
                result = functional.transfer(result, target, non_blocking)
        return movement.clone(result) if copy and result is self else result

    def pin_memory(self) -> Any:
        """A copy in pinned host memory, from which uploads can be asynchronous; the tensor itself if it is there already.

        Without a GPU the copy is in pageable host memory, in a pool that keeps the same records. Raises RuntimeError for a
        tensor that is not on the CPU, or has a graph.
        """
        if self.storage.device.pinned:
            return self
        if self.storage.device.type != "cpu":
            raise RuntimeError(f"cannot pin a tensor on {self.storage.device}: only dense CPU tensors can be pinned")
        if self.edge is not None and not self.is_leaf:  # type: ignore[attr-defined]
            raise RuntimeError("pin_memory() of a tensor that requires grad is not supported: call detach() first")
        result = pin(self)
        result.requires_grad = self.edge is not None
        return result

    def is_pinned(self) -> Any:
        """Is the tensor in page-locked memory? Always False without a GPU."""
        return self.storage.device.locked

    def type(self, dtype: Any = None, non_blocking: Any = False) -> Any:
        """The tensor with another dtype, or itself if it has that. Without a dtype, the name of PyTorch's class for it, which
        is accepted too, as is the class: these also say the kind of device. ``Tensor`` itself is the default dtype.
        """
        if dtype is None:
            return class_name(self)
        if isinstance(dtype, type) and issubclass(dtype, Value):
            dtype = functional.get_default_dtype()
        kind = class_of(dtype)
        if kind is None:
            return self.to(dtype=dtype, non_blocking=non_blocking)
        device = None if self.storage.device.compute.type == kind.place else kind.place
        return self.to(device=device, dtype=kind.dtype, non_blocking=non_blocking)

    def cpu(self) -> Any:
        """The tensor in the CPU's memory; itself if it is there."""
        return self.to("cpu")

    def cuda(self, device: str | int | Device | None = None, non_blocking: Any = False) -> Any:
        """The tensor on a GPU, given by number or name; itself if it is there. DeviceError if there is none."""
        return self.to(device="cuda" if device is None else device, non_blocking=non_blocking)

    def float(self) -> Any:
        """The tensor as float32; itself if it is that, as in all of these."""
        return self.to(np.float32)

    def double(self) -> Any:
        """The tensor as float64."""
        return self.to(np.float64)

    def half(self) -> Any:
        """The tensor as float16."""
        return self.to(np.float16)

    def bfloat16(self) -> Any:
        """The tensor as bfloat16. Raises ImportError without the package ml_dtypes."""
        return self.to(dtypes.bfloat16())

    def long(self) -> Any:
        """The tensor as int64."""
        return self.to(np.int64)

    def int(self) -> Any:
        """The tensor as int32."""
        return self.to(np.int32)

    def short(self) -> Any:
        """The tensor as int16."""
        return self.to(np.int16)

    def char(self) -> Any:
        """The tensor as int8."""
        return self.to(np.int8)

    def byte(self) -> Any:
        """The tensor as uint8."""
        return self.to(np.uint8)

    def bool(self) -> Any:
        """The tensor as bool: which elements are not 0."""
        return self.to(np.bool_)

    def __float__(self) -> Any:
        return float(self.item())

    def __int__(self) -> Any:
        return int(self.item())

    def __index__(self) -> Any:
        if self.spec.floating or self.spec.numel != 1:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __bool__(self) -> Any:
        if self.spec.numel != 1:
            raise RuntimeError(f"Boolean value of Tensor with {self.spec.numel} values is ambiguous")
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        if not self.spec.ndim and self.storage.device.type != "meta":
            return format(self.item(), spec)
        if spec:
            raise TypeError(f"unsupported format string passed to Tensor.__format__: {spec!r} for a tensor of "
                            f"{self.spec.numel} elements; only one of shape [] is formatted as a number")
        return str(self)


def given_to(args: tuple[Any, ...], device: Any = None, dtype: Any = None, non_blocking: Any = False) -> tuple[Any, Any, Any]:
    """The device, the dtype, and whether the host need not wait, of what ``to`` is given, in any place."""
    for a in args:
        if a is True or a is False:
            non_blocking = a
        elif isinstance(a, Value):
            device, dtype = a.device, a.dtype  # type: ignore[attr-defined]
        elif isinstance(a, (Device, str, int)) and not _is_dtype(a):
            device = a
        elif a is not None:
            dtype = a
    return device, dtype, non_blocking


def _is_dtype(name: Any) -> bool:
    if not isinstance(name, str):
        return False
    try:
        np.dtype(name)
    except TypeError:
        return False
    return True
