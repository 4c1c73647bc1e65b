"""Shape rules that several families share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gradcore.dtypes import category, default_float, promote
from gradcore.errors import SpecError
from gradcore.ops.op import Inferred
from gradcore.spec import PIECE, TensorSpec, broadcast_shapes
from gradcore.tiling import intricate

#: A spec, or the type of a Python number.
Operand = TensorSpec | type


def shape_of(x: Operand) -> tuple[int, ...]:
    return x.shape if isinstance(x, TensorSpec) else ()


def need_tensor(op: str, *operands: Operand) -> None:
    if not any(isinstance(x, TensorSpec) for x in operands):
        raise TypeError(f"{op}: at least one operand must be a tensor, but got "
                        + ", ".join(getattr(x, "__name__", str(x)) for x in operands))


def written_into(x: TensorSpec, result: TensorSpec) -> TensorSpec:
    """A result as it is written to ``x``, with its dtype. Raises :class:`SpecError` for a stronger one."""
    if category(result.dtype) > category(x.dtype):
        raise SpecError(f"result type {result.dtype.name} can't be cast to the desired output type {x.dtype.name}")
    return TensorSpec.of(result.shape, x.dtype)


def broadcast(x: Operand, y: Operand) -> TensorSpec:
    """Two operands, broadcast and promoted."""
    need_tensor("an elementwise op", x, y)
    return TensorSpec.of(broadcast_shapes(shape_of(x), shape_of(y)), promote((x, y)))


def need_number(name: str, result: TensorSpec, *operands: Operand | None) -> TensorSpec:
    """The spec of a result, which must not be of bools."""
    if result.dtype.kind == "b":
        raise NotImplementedError(f"{name} is not implemented for bools: expected integers or floats, but got "
                                  + " and ".join(getattr(x, "__name__", str(x)) for x in operands if x is not None))
    return result


def numbers(name: str) -> Any:
    """The rule of an op of two operands that are not both bools."""
    def infer(x: Operand, y: Operand) -> TensorSpec:
        return need_number(name, broadcast(x, y), x, y)

    return infer


def number(name: str) -> Any:
    """The rule of an op of one operand that is not of bools, whose dtype the result has."""
    def infer(x: TensorSpec) -> TensorSpec:
        return need_number(name, like(x), x)

    return infer


def compare(x: Operand, y: Operand) -> TensorSpec:
    need_tensor("a comparison", x, y)
    return TensorSpec.of(broadcast_shapes(shape_of(x), shape_of(y)), np.bool_)


def divide(x: Operand, y: Operand) -> TensorSpec:
    """Broadcast; integers give floats, as true division does."""
    spec = broadcast(x, y)
    return spec if spec.floating else spec.like(default_float())


def like(x: TensorSpec) -> TensorSpec:
    return x.like()


def float_like(x: TensorSpec) -> TensorSpec:
    """The same shape; integers become floats."""
    return x.like(x.dtype if x.floating else default_float())


def float_like_by(temporaries: int) -> Callable[[TensorSpec], Inferred]:
    """The same, for a kernel that on the CPU makes so many doubles of each element of a piece."""
    def infer(x: TensorSpec) -> Inferred:
        return Inferred((float_like(x),), library=intricate(x, temporaries))

    return infer


def bool_like(x: TensorSpec) -> TensorSpec:
    return x.like(np.bool_)


def same(op: str, a: TensorSpec, b: TensorSpec) -> None:
    """Raise unless two specs agree in shape."""
    if a.shape != b.shape:
        raise SpecError(f"{op}: shapes must agree, but got {list(a.shape)} and {list(b.shape)}")


def need_float(op: str, **specs: Any) -> None:
    for name, spec in specs.items():
        if isinstance(spec, TensorSpec) and not spec.floating:
            raise SpecError(f"{op}: {name} must be of a floating type, but is {spec.dtype.name}")


def need_one_dtype(op: str, **specs: TensorSpec | None) -> None:
    found = {name: s.dtype for name, s in specs.items() if s is not None}
    if len(set(found.values())) > 1:
        raise SpecError(f"{op}: {', '.join(found)} must have the same dtype, but got "
                        + ", ".join(f"{name} {dtype.name}" for name, dtype in found.items()))


def pieces(x: TensorSpec, count: int) -> int:
    """Bytes of ``count`` temporaries that hold a piece of ``x``, each aligned."""
    return count * (min(x.numel, PIECE) * x.dtype.itemsize + 16)


def with_workspace(spec: TensorSpec, nbytes: int) -> Inferred:
    """One output and ``nbytes`` bytes of workspace, on every device alike."""
    return Inferred((spec,), workspace=nbytes)


def row_bytes(x: TensorSpec, width: int) -> int:
    """Bytes of a temporary of rows of ``width`` elements: a cache-sized piece of them, but at least one row."""
    return min(x.numel, max(PIECE // max(width, 1), 1) * width) * x.dtype.itemsize


def row_width(x: TensorSpec, dims: int) -> int:
    """Elements of the last ``dims`` dimensions."""
    return math.prod(x.shape[x.ndim - dims:])
