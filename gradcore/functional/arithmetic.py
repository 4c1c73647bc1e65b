"""Sums, products and quotients, with PyTorch's signatures."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.arguments import into, with_name
from gradcore.dtypes import is_floating
from gradcore.engine.value import Value
from gradcore.functional.creation import tensor
from gradcore.functional.types import fitted, result_type
from gradcore.ops import creation, elementwise, movement, pointwise
from gradcore.ops.op import Op

Tensor = Any


def elementwise_function(op: Op, name: str = "") -> Any:
    """A public function for an elementwise op of one or two operands, with the op's name unless another is given."""
    name = name or op.name
    if len(op.inputs) == 1:
        def function(input: Tensor, *, out: Any = None) -> Tensor:
            if out is not None:
                return into(name, out, function(input))
            return op(input)  # type: ignore[operator]
    else:
        def function(input: Tensor, other: Any, *, out: Any = None) -> Tensor:  # type: ignore[misc]
            if out is not None:
                return into(name, out, function(input, other))  # type: ignore[call-arg]
            return op(input, other)  # type: ignore[operator]

    return with_name(function, name, op.__doc__ or "")


def factor(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    """The argument ``name``, which multiplies a tensor, beside a result of a dtype.

    Raises RuntimeError for a float or a number out of range beside integers, and for a bool beside anything but bools.
    """
    if isinstance(value, (float, np.floating)) and not is_floating(dtype):
        raise RuntimeError(f"For integral input tensors, argument {name} must not be a floating point number: got {value}")
    if isinstance(value, bool) and dtype.kind != "b":
        raise RuntimeError(f"Boolean {name} only supported for Boolean results: got {value} for a result of {dtype.name}")
    return fitted(value, dtype)


def scaled(input: Any, other: Any, alpha: Any) -> Any:
    """alpha * other, in the dtype of the result with ``input``; see :func:`factor`."""
    if type(alpha) is int and alpha == 1:
        return other
    dtype = result_type(input, other)
    alpha = factor("alpha", alpha, dtype)
    if dtype.kind == "b" and not isinstance(other, Value):
        return other and alpha
    if alpha == 1:
        return other
    if not isinstance(other, Value):
        return other * alpha
    # In the result's dtype, since that of ``other`` may be too narrow.
    return elementwise.mul(other if other.spec.dtype == dtype else movement.cast(other, dtype=dtype), alpha)


def add(input: Tensor, other: Any, *, alpha: Any = 1, out: Any = None) -> Tensor:
    """input + alpha * other."""
    if out is not None:
        return into("add", out, add(input, other, alpha=alpha))
    return elementwise.add(_operand(input, other), scaled(input, other, alpha))


def sub(input: Tensor, other: Any, *, alpha: Any = 1, out: Any = None) -> Tensor:
    """input - alpha * other."""
    if out is not None:
        return into("sub", out, sub(input, other, alpha=alpha))
    return elementwise.sub(_operand(input, other), scaled(input, other, alpha))


def div(input: Tensor, other: Any, *, rounding_mode: str | None = None, out: Any = None) -> Tensor:
    """input / other; ``rounding_mode`` ``"floor"`` rounds down, ``"trunc"`` towards 0. Raises RuntimeError for another mode."""
    if out is not None:
        return into("div", out, div(input, other, rounding_mode=rounding_mode))
    input = _operand(input, other)
    if rounding_mode is None:
        return elementwise.div(input, other)
    dtype = result_type(input, other)
    if dtype.kind == "b":
        raise NotImplementedError(f"div with rounding_mode={rounding_mode!r} is not implemented for bools: expected integers "
                                  "or floats")
    if rounding_mode == "floor":
        return _without_slope(elementwise.floor_divide(input, other), input, other)
    if rounding_mode != "trunc":
        raise RuntimeError("div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
                           f"{rounding_mode!r}")
    if is_floating(dtype):
        x, y = (v.detach() if hasattr(v, "detach") else v for v in (input, other))
        return _without_slope(pointwise.trunc(elementwise.div(x, y)), input, other)
    input, other = (movement.cast(v, dtype=dtype) if isinstance(v, Value) else v for v in (input, other))
    # Floats cannot represent all large integers.
    return elementwise.floor_divide(elementwise.sub(input, pointwise.fmod(input, other)), other)


def mul(input: Tensor, other: Any, *, out: Any = None) -> Tensor:
    """x * y."""
    return elementwise.mul(_operand(input, other), other) if out is None else into("mul", out, mul(input, other))


def floor_divide(input: Tensor, other: Any, *, out: Any = None) -> Tensor:
    """x / y, rounded down."""
    if out is not None:
        return into("floor_divide", out, floor_divide(input, other))
    return elementwise.floor_divide(_operand(input, other), other)


def _operand(input: Any, other: Any) -> Any:
    """The first operand, of two numbers as a tensor, as PyTorch's functions of arithmetic take it."""
    both = isinstance(input, (int, float)) and isinstance(other, (int, float))
    return tensor(input) if both else input


def _without_slope(made: Tensor, *operands: Any) -> Tensor:
    """``made`` with a gradient of 0 with respect to each operand, also where that of a quotient is undefined."""
    for v in operands:
        if getattr(v, "requires_grad", False):
            never = creation.full(False, shape=(), dtype=np.dtype(bool), device=made.storage.device)
            made = elementwise.where(never, v, made)
    return made
