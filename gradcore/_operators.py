"""Python's operators as methods of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore import functional
from gradcore.engine.dispatch import operator
from gradcore.engine.owners import upload
from gradcore.engine.value import Value
from gradcore.ops import elementwise, movement, pointwise
from gradcore.ops.in_place import IN_PLACE
from gradcore.spec import category

#: Types that ``==`` and ``!=`` compare element by element; for all others Python compares identity.
COMPARED = (Value, int, float, complex, np.generic, np.ndarray)


def beside(x: Any, other: Any) -> Any:
    """The right operand of an operator on ``x``: a NumPy array as a tensor, anything else unchanged.

    In PyTorch NumPy computes such an operator, so the dtype is NumPy's for the two; with a tensor on a GPU it is an error, and
    the array is left unchanged here. Raises TypeError for an array that is not of numbers.
    """
    if not isinstance(other, np.ndarray) or x.storage.device.type == "cuda":
        return other
    values = other.astype(np.result_type(x.spec.dtype, other.dtype), copy=False)
    category(values.dtype)
    # A 0-d tensor would not take part in the choice of the result's dtype.
    return upload(np.atleast_1d(values) if x.spec.ndim else values, x.storage.device, op="tensor")


class Operators(Value):
    """The operators ``x + y``, ``-x``, ``x @ y``, ``x < y`` and similar ones.

    The other operand may be a tensor or a Python number; in arithmetic and ``==`` also a NumPy array on the right, unless the
    tensor is on a GPU. Raises TypeError for other types.
    """

    __slots__ = ()

    # The four most used operators have a shorter path than a call of the op.
    __add__ = operator(elementwise.add, beside)
    __sub__ = operator(elementwise.sub, beside)
    __mul__ = operator(elementwise.mul, beside)
    __truediv__ = operator(elementwise.div, beside)

    def __radd__(self, other: Any) -> Any:
        return elementwise.add(other, self)

    def __rsub__(self, other: Any) -> Any:
        return elementwise.sub(other, self)

    def __rmul__(self, other: Any) -> Any:
        return elementwise.mul(other, self)

    def __rtruediv__(self, other: Any) -> Any:
        return elementwise.div(beside(self, other), self)

    def __pow__(self, other: Any) -> Any:
        return elementwise.pow(self, beside(self, other))

    def __rpow__(self, other: Any) -> Any:
        return elementwise.pow(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return elementwise.floor_divide(self, beside(self, other))

    def __mod__(self, other: Any) -> Any:
        return elementwise.remainder(self, beside(self, other))

    def __rfloordiv__(self, other: Any) -> Any:
        return elementwise.floor_divide(other, self)

    def __rmod__(self, other: Any) -> Any:
        return elementwise.remainder(other, self)

    def __matmul__(self, other: Any) -> Any:
        given = beside(self, other)
        return functional.matmul(self if given is other else movement.cast_to(self, given.spec), given)

    def __neg__(self) -> Any:
        return elementwise.neg(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return elementwise.abs(self)

    def __invert__(self) -> Any:
        return pointwise.bitwise_not(self)

    def __eq__(self, other: object) -> Any:
        return elementwise.eq(self, beside(self, other)) if isinstance(other, COMPARED) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return elementwise.ne(self, beside(self, other)) if isinstance(other, COMPARED) else NotImplemented

    def __lt__(self, other: Any) -> Any:
        return elementwise.lt(self, other)

    def __le__(self, other: Any) -> Any:
        return elementwise.le(self, other)

    def __gt__(self, other: Any) -> Any:
        return elementwise.gt(self, other)

    def __ge__(self, other: Any) -> Any:
        return elementwise.ge(self, other)

    def __and__(self, other: Any) -> Any:
        return pointwise.bitwise_and(self, other)

    def __rand__(self, other: Any) -> Any:
        return pointwise.bitwise_and(other, self)

    def __or__(self, other: Any) -> Any:
        return pointwise.bitwise_or(self, other)

    def __ror__(self, other: Any) -> Any:
        return pointwise.bitwise_or(other, self)

    def __xor__(self, other: Any) -> Any:
        return pointwise.bitwise_xor(self, other)

    def __rxor__(self, other: Any) -> Any:
        return pointwise.bitwise_xor(other, self)

    def __lshift__(self, other: Any) -> Any:
        return pointwise.bitwise_left_shift(self, other)

    def __rshift__(self, other: Any) -> Any:
        return pointwise.bitwise_right_shift(self, other)

    def __rlshift__(self, other: Any) -> Any:
        return pointwise.bitwise_left_shift(other, self)

    def __rrshift__(self, other: Any) -> Any:
        return pointwise.bitwise_right_shift(other, self)

    def __iadd__(self, other: Any) -> Any:
        return elementwise.add_(self, other)

    def __isub__(self, other: Any) -> Any:
        return elementwise.sub_(self, other)

    def __imul__(self, other: Any) -> Any:
        return elementwise.mul_(self, other)

    def __itruediv__(self, other: Any) -> Any:
        return elementwise.div_(self, other)


def _overwriting(name: str) -> Any:
    def operator(self: Any, other: Any) -> Any:
        return IN_PLACE[name](self, other)  # type: ignore[operator]

    return operator


for _operator, _name in (("pow", "pow"), ("floordiv", "floor_divide"), ("mod", "remainder"), ("and", "bitwise_and"),
                         ("or", "bitwise_or"), ("xor", "bitwise_xor"), ("lshift", "bitwise_left_shift"),
                         ("rshift", "bitwise_right_shift")):
    setattr(Operators, f"__i{_operator}__", _overwriting(_name))
