"""Types: what holds the results of two of them, what is kept when one becomes another, and what a type can hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore import spec
from gradcore.engine.operands import TENSORS
from gradcore.engine.value import Value
from gradcore.spec import category, default_float, is_floating, join, limits, promote

__all__ = ["broadcast_shapes", "can_cast", "finfo", "iinfo", "is_complex", "is_floating_point", "is_inference", "is_nonzero",
           "is_same_size", "is_signed", "is_tensor", "numel", "promote_types", "result_type"]


def is_tensor(obj: Any) -> bool:
    """Is it a tensor of this library?"""
    return isinstance(obj, Value) or type(obj) in TENSORS


def numel(input: Any) -> int:
    """How many elements a tensor has."""
    return int(input.spec.numel)


def is_floating_point(input: Any) -> bool:
    """Is the tensor's dtype float16, bfloat16, float32 or float64?"""
    return bool(input.spec.floating)


def is_complex(input: Any) -> bool:
    """False: every dtype is real."""
    return False


def is_inference(input: Any) -> bool:
    """False: a tensor that was made in inference mode is like any other, and may be written to."""
    return False


def is_signed(input: Any) -> bool:
    """Can the tensor's dtype hold negative numbers?"""
    return bool(input.spec.dtype.kind not in "ub")


def is_same_size(input: Any, other: Any) -> bool:
    """Have the two tensors one shape?"""
    return bool(input.spec.shape == other.spec.shape)


def is_nonzero(input: Any) -> bool:
    """Is the only element not 0? It is read on the host. Raises RuntimeError for more elements, or none."""
    return bool(input)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that tensors of these shapes, tuples or ints, broadcast to. Raises :class:`SpecError` where they do not."""
    return spec.broadcast_shapes(*((shape,) if isinstance(shape, int) else tuple(shape) for shape in shapes))


def promote_types(type1: Any, type2: Any) -> np.dtype[Any]:
    """The smallest dtype that holds both, by PyTorch's table; float16 and bfloat16 give float32."""
    return join(np.dtype(type1), np.dtype(type2))


def result_type(tensor1: Any, tensor2: Any) -> np.dtype[Any]:
    """The dtype of arithmetic between two tensors or Python numbers; integers divided are another matter."""
    return promote([x.spec if isinstance(x, Value) else type(x) for x in (tensor1, tensor2)])


def can_cast(from_: Any, to: Any) -> bool:
    """May a result of one dtype be written over another? Not floats over integers, nor either over bool."""
    return category(np.dtype(from_)) <= category(np.dtype(to))


def finfo(dtype: Any = None) -> Any:
    """NumPy's limits of a floating dtype, the default one if none is given: ``eps``, ``max``, ``min``, ``tiny``, ``bits``."""
    dtype = default_float() if dtype is None else np.dtype(dtype)
    if not is_floating(dtype):
        raise TypeError(f"finfo is of floating-point types, but got {dtype.name}; iinfo is of integers")
    return limits(dtype)


def iinfo(dtype: Any) -> Any:
    """NumPy's limits of an integer dtype: ``max``, ``min``, ``bits``."""
    return np.iinfo(np.dtype(dtype))

