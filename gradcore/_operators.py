"""The operators of Python on tensors."""

from __future__ import annotations

from typing import Any

from gradcore import functional
from gradcore.engine.dispatch import binary
from gradcore.engine.node import Value
from gradcore.ops import elementwise

# The four operators that everything is made of have a shorter way than calling the op.
_add, _sub, _mul, _div = elementwise.add, elementwise.sub, elementwise.mul, elementwise.div


class Operators(Value):
    """``x + y``, ``-x``, ``x @ y``, ``x < y`` and their like; the other operand may be a Python number."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return binary(_add, self, other)

    def __sub__(self, other: Any) -> Any:
        return binary(_sub, self, other)

    def __mul__(self, other: Any) -> Any:
        return binary(_mul, self, other)

    def __truediv__(self, other: Any) -> Any:
        return binary(_div, self, other)

    def __radd__(self, other: Any) -> Any:
        return elementwise.add(other, self)

    def __rsub__(self, other: Any) -> Any:
        return elementwise.sub(other, self)

    def __rmul__(self, other: Any) -> Any:
        return elementwise.mul(other, self)

    def __rtruediv__(self, other: Any) -> Any:
        return elementwise.div(other, self)

    def __pow__(self, other: Any) -> Any:
        return elementwise.pow(self, other)

    def __rpow__(self, other: Any) -> Any:
        return elementwise.pow(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return elementwise.floor_divide(self, other)

    def __mod__(self, other: Any) -> Any:
        return elementwise.remainder(self, other)

    def __matmul__(self, other: Any) -> Any:
        return functional.matmul(self, other)

    def __neg__(self) -> Any:
        return elementwise.neg(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return elementwise.abs(self)

    def __invert__(self) -> Any:
        return functional.invert(self)

    def __eq__(self, other: object) -> Any:
        return elementwise.eq(self, other)

    def __ne__(self, other: object) -> Any:
        return elementwise.ne(self, other)

    def __lt__(self, other: Any) -> Any:
        return elementwise.lt(self, other)

    def __le__(self, other: Any) -> Any:
        return elementwise.le(self, other)

    def __gt__(self, other: Any) -> Any:
        return elementwise.gt(self, other)

    def __ge__(self, other: Any) -> Any:
        return elementwise.ge(self, other)

    def __and__(self, other: Any) -> Any:
        return functional.logical(elementwise.logical_and, self, other)

    def __or__(self, other: Any) -> Any:
        return functional.logical(elementwise.logical_or, self, other)

    def __xor__(self, other: Any) -> Any:
        return functional.logical(elementwise.logical_xor, self, other)

    def __iadd__(self, other: Any) -> Any:
        return elementwise.add_(self, other)

    def __isub__(self, other: Any) -> Any:
        return elementwise.sub_(self, other)

    def __imul__(self, other: Any) -> Any:
        return elementwise.mul_(self, other)

    def __itruediv__(self, other: Any) -> Any:
        return elementwise.div_(self, other)
