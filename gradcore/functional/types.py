"""Queries about tensors and dtypes: promotion, casting, numeric limits."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore import spec
from gradcore.dtypes import category, default_float, is_floating, join, limits, promote
from gradcore.engine.operands import TENSORS
from gradcore.engine.value import Value
from gradcore.errors import SpecError
from gradcore.ops.movement import cast

__all__ = ["broadcast_shapes", "can_cast", "finfo", "iinfo", "is_complex", "is_floating_point", "is_inference", "is_nonzero",
           "is_same_size", "is_signed", "is_tensor", "numel", "promote_types", "result_type"]

Tensor = Any


def is_tensor(obj: Any) -> bool:
    """Whether ``obj`` is a gradcore tensor."""
    return isinstance(obj, Value) or type(obj) in TENSORS


def numel(input: Tensor) -> int:
    """The number of elements of a tensor."""
    return int(input.spec.numel)


def is_floating_point(input: Tensor) -> bool:
    """Whether the tensor's dtype is float16, bfloat16, float32 or float64."""
    return bool(input.spec.floating)


def is_complex(input: Any) -> bool:
    """Always False, since every dtype is real."""
    return False


def is_inference(input: Any) -> bool:
    """Always False: a tensor made in inference mode is like any other, and may be written to."""
    return False


def is_signed(input: Tensor) -> bool:
    """Whether the tensor's dtype has negative numbers."""
    return bool(input.spec.dtype.kind not in "ub")


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape."""
    return bool(input.spec.shape == other.spec.shape)


def is_nonzero(input: Any) -> bool:
    """Whether the only element of a tensor, which is read on the host, is nonzero. Raises RuntimeError for another size."""
    return bool(input)


def broadcast_shapes(*shapes: Any) -> spec.Size:
    """The shape that shapes, given as tuples or ints, broadcast to. Raises :class:`SpecError` if they do not."""
    given = [(shape,) if isinstance(shape, int) else tuple(shape) for shape in shapes]
    if any(n < 0 for shape in given for n in shape):
        raise SpecError(f"broadcast_shapes: Attempting to broadcast a dimension with negative length: {given}")
    return spec.Size(spec.broadcast_shapes(*given))


def promote_types(type1: Any, type2: Any) -> np.dtype[Any]:
    """The smallest dtype that two dtypes promote to, by PyTorch's table; float16 and bfloat16 give float32."""
    return join(np.dtype(type1), np.dtype(type2))


def result_type(tensor1: Any, tensor2: Any) -> np.dtype[Any]:
    """The dtype of arithmetic between two tensors or Python numbers, except for the division of integers."""
    return promote([x.spec if isinstance(x, Value) else type(x) for x in (tensor1, tensor2)])


def promoted(*tensors: Tensor) -> spec.TensorSpec:
    """A spec without dimensions, of the dtype that tensors promote to."""
    return spec.TensorSpec.of((), promote([x.spec for x in tensors]))


def fitted(value: Any, dtype: np.dtype[Any]) -> Any:
    """A number beside tensors of a dtype: whole beside integers, a bool beside bools; a tensor of one element is read.

    Raises RuntimeError for one out of an integer dtype's range, in which negative integers wrap around to unsigned ones.
    """
    if is_floating(dtype):
        return value
    if dtype.kind == "b":
        return bool(value)
    value, own = value.item() if isinstance(value, Value) else value, np.iinfo(dtype)  # type: ignore[attr-defined]
    # Both comparisons are False for NaN.
    if not (own.min or (0 if isinstance(value, float) else -own.max)) <= value <= own.max:
        raise RuntimeError(f"value cannot be converted to type {dtype.name} without overflow: {value}")
    return int(value)


def as_weight(x: Any, like: Tensor) -> Any:
    """A 0-d tensor of integers or bools in the dtype of the floats that it weights; anything else as it is."""
    if isinstance(x, Value) and not x.spec.shape and not x.spec.floating and like.spec.floating:
        return cast(x, dtype=like.spec.dtype)
    return x


def can_cast(from_: Any, to: Any) -> bool:
    """Whether a result of one dtype may be written to a tensor of another: not floats to integers, nor numbers to bools."""
    return category(np.dtype(from_)) <= category(np.dtype(to))


class finfo:
    """The limits of a floating dtype, by default the default dtype: ``eps``, ``max``, ``min``, ``tiny``, ``bits``.

    They are Python's numbers, since NumPy's would make what is computed with them round, or overflow, in the dtype itself.
    """

    def __init__(self, dtype: Any = None) -> None:
        kind = default_float() if dtype is None else np.dtype(dtype)
        if not is_floating(kind) and not kind.name.startswith("float"):  # As float8_e5m2, which no tensor has.
            raise TypeError(f"finfo is of floating-point types, but got {kind.name}; iinfo is of integers")
        found = limits(kind)
        self.dtype = kind.name
        self.bits = int(found.bits)
        self.eps, self.max, self.min = float(found.eps), float(found.max), float(found.min)
        self.tiny = self.smallest_normal = float(found.smallest_normal)
        self.resolution = 10.0 ** -int(found.precision)

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={getattr(self, name):g}"
                            for name in ("resolution", "min", "max", "eps", "smallest_normal", "tiny"))
        return f"finfo({numbers}, dtype={self.dtype})"


def iinfo(dtype: Any) -> Any:
    """NumPy's limits of an integer dtype: ``max``, ``min``, ``bits``."""
    kind = np.dtype(dtype)
    if kind.kind not in "iu":
        raise TypeError(f"iinfo is of integers, but got {kind.name}; finfo is of floating-point types")
    return np.iinfo(kind)


TENSOR_METHODS = {fn.__name__: fn for fn in (is_complex, is_inference, is_nonzero, is_same_size, is_signed)}
