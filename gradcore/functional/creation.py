"""Functions that create tensors from values or from a shape."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.arguments import warn
from gradcore.devices.device import Device, device_of_new, devices, get_device
from gradcore.dtypes import bfloat16, category, checked_dtype, default_float, is_floating, set_default_float
from gradcore.engine.custom import custom_node
from gradcore.engine.dlpack import Given, array_of, gpu_of
from gradcore.engine.operands import install_transfer, plain_number
from gradcore.engine.owners import borrow, is_traced, made_of_numbers, send, upload
from gradcore.engine.state import local
from gradcore.engine.value import Value
from gradcore.errors import SpecError
from gradcore.functional.shape import plain, size_of
from gradcore.functional.types import fitted
from gradcore.ops import creation, elementwise, movement

Tensor = Any


def get_default_dtype() -> np.dtype[Any]:
    """The dtype of tensors made from Python floats: float32, unless changed by :func:`set_default_dtype`."""
    return default_float()


def set_default_dtype(dtype: Any) -> None:
    """Set the dtype of Python floats, new tensors and quotients of integers. Raises TypeError unless it is floating."""
    dtype = np.dtype(dtype)
    if not is_floating(dtype):
        raise TypeError(f"only floating-point types are supported as the default type, but got {dtype.name}")
    if dtype != default_float():
        set_default_float(dtype)
        for device in devices():
            device.calls.clear()


def _check_range(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
    """Raises RuntimeError for Python numbers out of an integer dtype's range; negative integers may wrap in unsigned dtypes."""
    if dtype.kind not in "iu" or not values.size:
        return
    for end in (values.max().item(), values.min().item()):
        fitted(end, dtype)


def _has_doubles(data: Any) -> bool:
    """Do lists hold arrays, tensors or NumPy numbers of float64? Python floats, which NumPy makes float64, do not count."""
    if isinstance(data, (list, tuple)):
        kinds = set(map(type, data))
        return np.float64 in kinds or (not kinds <= {float, int, bool} and any(map(_has_doubles, data)))
    return not isinstance(data, float) and getattr(data, "dtype", None) == np.float64


def over_gpu(source: Any, device: Device) -> tuple[Tensor, bool]:
    """A tensor over the memory of another library's on this GPU, or an empty one; and may the memory be written to?

    The current stream waits for the work that the other library has submitted to its own.
    """
    # DLPack numbers the legacy default stream 1, though its handle is 0.
    given = Given(source, device.current.handle or 1)
    array = device.array_of_others(given)
    dtype = bfloat16() if given.bfloat else np.dtype(array.dtype)
    return borrow(array, device, dtype) if array.size else empty(*array.shape, dtype=dtype, device=device), given.writable


def _read(data: Any) -> Any:
    """Data in which tensors, also in lists, are arrays of their values, whether they require a gradient or not. So are other
    libraries' arrays on a GPU, which do not become NumPy's by themselves."""
    if isinstance(data, (list, tuple)):
        # By type, since a list may be long.
        kinds = set(map(type, data))
        return [_read(x) for x in data] if builtins.any(
            issubclass(kind, (Value, list, tuple)) or hasattr(kind, "__dlpack_device__") for kind in kinds) else data
    if not isinstance(data, Value) and (number := gpu_of(data)) is not None:
        data, _ = over_gpu(data, get_device(f"cuda:{number}"))
    elif not isinstance(data, (Value, np.ndarray)) and str(getattr(data, "dtype", None)) == "torch.bfloat16":
        # PyTorch makes no NumPy array of those.
        data = array_of(data)
    return data.storage.device.read(data.storage, data.spec) if isinstance(data, Value) else data


def tensor(data: Any, *, dtype: Any = None, device: str | int | Device | None = None, requires_grad: bool = False) -> Tensor:
    """A new tensor with a copy of ``data``: a number, nested lists, an array or a tensor, also another library's.

    Python floats get the default dtype, Python integers int64; arrays keep their dtype, also in lists. Raises TypeError or
    ValueError for data that is ragged or not numeric, RuntimeError for None.
    """
    if isinstance(data, Value):
        warn("To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
             "sourceTensor.detach().clone().requires_grad_(True), rather than tensor(sourceTensor).")
    return copied(data, dtype, device, requires_grad)


def copied(data: Any, dtype: Any, device: str | int | Device | None, requires_grad: bool) -> Tensor:
    device = device_of_new(device)
    constant, data = is_traced(device) and made_of_numbers(data), _read(data)
    plain = not isinstance(data, (np.ndarray, np.generic))
    try:
        values = np.asarray(data)
    except ValueError as error:
        raise ValueError(f"tensor(): expected numbers in a regular shape: {error}") from None
    if values.dtype == object and plain:
        items = values.reshape(-1).tolist()
        if None in items:
            raise RuntimeError("Could not infer dtype of NoneType")
        if all(type(n) is int for n in items):
            raise SpecError(f"value cannot be converted to type int64 without overflow: {max(items, key=builtins.abs)}")
    try:
        category(values.dtype)
    except TypeError:
        raise TypeError(f"tensor(): new tensors hold numbers, but got data of dtype {values.dtype}") from None
    if plain and values.dtype.kind in "iuf":
        _check_range(values, np.dtype(dtype or (values.dtype if values.dtype.kind == "f" else np.int64)))
    if dtype is not None:
        values = values.astype(checked_dtype(dtype))
    elif plain and values.dtype == np.float64 and not _has_doubles(data):
        values = values.astype(get_default_dtype())
    elif not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    result = upload(values, device, op="tensor", numbers=constant)
    if constant:
        # Each replay makes it again, for what is written to it or held of it.
        result = movement.clone(result)
    result.requires_grad = requires_grad
    return result


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on the CPU that shares the array's memory and keeps it alive; a copy if the array is read-only or empty.

    Shared bytes are not of the pool, so reports list them apart from their sums. Raises TypeError for anything but an array
    of numbers, ValueError for strides that are negative or not multiples of the element size.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    if not array.size or not array.flags.writeable:
        return tensor(array)
    return borrow(array, get_device("cpu"))


def transfer(x: Tensor, device: Device, non_blocking: bool = False) -> Tensor:
    """A copy of ``x`` on another device, through which gradients go back.

    With ``non_blocking``, a copy from pinned memory is asynchronous.
    """
    if non_blocking and x.storage.device.pinned:
        result = send(x.spec, device, x)
    elif device.type == "meta":
        result = upload(np.broadcast_to(np.zeros((), x.spec.dtype), x.spec.shape), device)
    else:
        result = upload(x.storage.device.read(x.storage, x.spec), device)
    if x.edge is not None and local.state.grad:
        home = x.storage.device.compute
        result.edge = (custom_node("ToCopy", [x.edge], [result], (), lambda grads, _: [transfer(grads[0], home)]), 0)
    return result


install_transfer(transfer)


def full(size: Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None,
         requires_grad: bool = False) -> Tensor:
    """A tensor filled with one value; without ``dtype``, the dtype is that of the value. A tensor as the value is read."""
    fill_value = plain_number("full", "fill_value", fill_value)
    if dtype is None:
        dtype = np.bool_ if isinstance(fill_value, bool) else np.int64 if isinstance(fill_value, (int, np.integer)) else \
            get_default_dtype()
    result = creation.full(fill_value, shape=size_of("full", (size if isinstance(size, int) else tuple(size),)),
                           dtype=np.dtype(dtype), device=device)
    result.requires_grad = requires_grad
    return result


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros, of the default dtype unless ``dtype`` is given."""
    return full(size_of("zeros", size), 0, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones, of the default dtype unless ``dtype`` is given."""
    return full(size_of("ones", size), 1, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """An uninitialized tensor."""
    result = creation.empty(shape=size_of("empty", size), dtype=np.dtype(dtype or get_default_dtype()), device=device)
    result.requires_grad = requires_grad
    return result


def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor filled with one value, with the shape, dtype and device of ``input`` unless given."""
    return full(input.spec.shape, fill_value, dtype=dtype or input.spec.dtype,
                device=device_of_new(device, input.storage.device), requires_grad=requires_grad)


def zeros_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros with the shape, dtype and device of ``input`` unless given."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones with the shape, dtype and device of ``input`` unless given."""
    return full_like(input, 1, dtype=dtype, device=device, requires_grad=requires_grad)


def empty_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """An uninitialized tensor with the shape, dtype and device of ``input`` unless given."""
    return empty(input.spec.shape, dtype=dtype or input.spec.dtype, device=device_of_new(device, input.storage.device),
                 requires_grad=requires_grad)


def arange(start: float | None = None, end: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None,
           requires_grad: bool = False) -> Tensor:
    """Numbers from ``start`` (0 if only one bound is given) up to but not including ``end``, in steps of ``step``.

    Bounds that are tensors are read on the host. Raises TypeError without a bound.
    """
    start, end, step = _bounds("arange", start, end, step)
    if dtype is None:
        dtype = np.int64 if builtins.all(isinstance(v, (int, np.integer)) for v in (start, end, step)) else get_default_dtype()
    whole = _whole(dtype, start, end, step)
    # As PyTorch counts: integers of other dtypes by the bounds as they are.
    length = creation.length_of_range(*(whole if np.dtype(dtype) == np.int64 else (start, end, step)))
    result = creation.arange(whole[0], whole[2], length=length, dtype=np.dtype(dtype), device=device)
    result.requires_grad = requires_grad
    return result


def _bounds(name: str, start: Any, end: Any, step: Any) -> Any:
    """The numbers of a range of which one bound may be left out: the first then, whichever is given, is 0."""
    start, end, step = (plain_number(name, part, x) for part, x in (("start", start), ("end", end), ("step", step)))
    if start is None and end is None:
        raise TypeError(f"{name}() missing 1 required positional argument: 'end'")
    return (0, start if end is None else end, step) if start is None or end is None else (start, end, step)


def _whole(dtype: Any, *bounds: Any) -> tuple[Any, ...]:
    """The bounds of a range, truncated if its elements are integers."""
    return bounds if dtype is None or np.dtype(dtype).kind not in "iu" else tuple(map(int, bounds))


def linspace(start: Tensor | float, end: Tensor | float, steps: int, *, dtype: Any = None, device: Any = None,
             requires_grad: bool = False) -> Tensor:
    """``steps`` evenly spaced numbers from ``start`` to ``end`` inclusive; bounds that are tensors are read on the host.

    Raises RuntimeError for bounds that the dtype does not hold.
    """
    steps = plain(steps)
    if not isinstance(steps, int):
        raise TypeError(f"linspace(): argument 'steps' must be int, not {type(steps).__name__}")
    start, end = (v.item() if hasattr(v, "item") else v for v in (start, end))
    if steps < 0:
        raise SpecError(f"number of steps must be non-negative, but got {steps}")
    dtype = np.dtype(dtype or get_default_dtype())
    bounds = np.asarray((start, end)[:steps])
    _check_range(bounds.astype(np.float64) if bounds.dtype == object else bounds, dtype)
    start, end = _whole(dtype, *((start, end) if steps > 1 else (start, start)))
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    found = creation.arange(float(start), step, length=steps, dtype=dtype, device=device)
    if steps > 1 and not (float(start).is_integer() and float(step).is_integer()):
        # Rounding misses the end, which may make another integer of it.
        last = full((1,), end, dtype=dtype, device=device)
        movement.copy_(movement.narrow(found, 0, steps - 1, 1), last)
    found.requires_grad = requires_grad
    return found


def logspace(start: float, end: float, steps: int, base: float = 10.0, *, dtype: Any = None, device: Any = None,
             requires_grad: bool = False) -> Tensor:
    """``base`` to the powers of ``linspace(start, end, steps)``, computed in float64."""
    if steps > 1:
        start, end = _whole(dtype, start, end)
    powers = linspace(start, end, steps, dtype=np.dtype(np.float64), device=device)
    result = movement.cast(elementwise.pow(float(base), powers), dtype=np.dtype(dtype or get_default_dtype()))
    result.requires_grad = requires_grad
    return result


def range(start: float, end: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None,
          requires_grad: bool = False) -> Tensor:
    """Numbers from ``start`` (0 if only one bound is given) to ``end`` inclusive, in steps of ``step``.

    They are floats unless ``dtype`` is given. Prefer :func:`arange`, which excludes ``end``, as Python's ranges do.
    """
    start, end, step = _bounds("range", start, end, step)
    creation.length_of_range(start, end, step)  # raises for a step that never reaches the end
    result = creation.arange(start, step, length=int((end - start) / step) + 1, dtype=np.dtype(dtype or get_default_dtype()),
                             device=device)
    result.requires_grad = requires_grad
    return result


def scalar_tensor(s: float, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A 0-d tensor of a number, of the default dtype unless ``dtype`` is given."""
    return full((), s, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The identity matrix [n, m], where m is n by default."""
    rows, columns = plain(n), plain(n if m is None else m)
    result = creation.eye(rows=rows, columns=columns, dtype=np.dtype(dtype or get_default_dtype()), device=device)
    result.requires_grad = requires_grad
    return result


__all__ = [
    "arange", "empty", "empty_like", "eye", "from_numpy", "full", "full_like", "get_default_dtype",
    "linspace", "logspace", "ones", "ones_like", "range", "scalar_tensor", "set_default_dtype", "tensor", "transfer", "zeros",
    "zeros_like"]
