"""Python's operators as methods of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore import functional
from gradcore.dtypes import category
from gradcore.engine.autocast import raised
from gradcore.engine.dispatch import operator
from gradcore.engine.owners import upload
from gradcore.engine.value import Value
from gradcore.engine.views import become
from gradcore.functional.overwritten import is_better_remade
from gradcore.ops import elementwise, movement, pointwise
from gradcore.ops.in_place import IN_PLACE

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


def _yields(other: Any, name: str) -> bool:
    """Is the right operand, for whose class the operator has this name, one of the user's that defines it?"""
    kind = type(other)
    return (not isinstance(other, COMPARED) and kind.__module__ != "builtins"
            and getattr(kind, name, None) is not getattr(object, name, None))


def _plain(op: Any, turned: str) -> Any:
    """The method of an operator that is an op."""
    def method(self: Any, other: Any) -> Any:
        return NotImplemented if _yields(other, turned) else op(self, other)

    return method


def _beside(turned: str) -> Any:
    return lambda x, other: NotImplemented if _yields(other, turned) else beside(x, other)


def _given(op: Any, turned: str) -> Any:
    """The same, for an operator that also takes a NumPy array on the right."""
    def method(self: Any, other: Any) -> Any:
        return NotImplemented if _yields(other, turned) else op(self, beside(self, other))

    return method


def _summed(in_place: Any, op: Any, turned: str) -> Any:
    """The method of an operator that adds in place."""
    def method(self: Any, other: Any) -> Any:
        if is_better_remade(self, other):
            return become(self, op(self, other))
        return NotImplemented if _yields(other, turned) else in_place(self, other)

    return method


def _turned(op: Any) -> Any:
    """The method of an operator whose tensor is on the right."""
    def method(self: Any, other: Any) -> Any:
        return op(other, self)

    return method


class Operators(Value):
    """The operators ``x + y``, ``-x``, ``x @ y``, ``x < y`` and similar ones.

    The other operand may be a tensor or a Python number; in arithmetic and ``==`` also a NumPy array on the right, unless the
    tensor is on a GPU; or an object of the user's whose class has the operator for a tensor on the left. Raises TypeError for
    other types.
    """

    __slots__ = ()

    # The four most used operators have a shorter path than a call of the op.
    __add__ = operator(elementwise.add, _beside("__radd__"))
    __sub__ = operator(elementwise.sub, _beside("__rsub__"))
    __mul__ = operator(elementwise.mul, _beside("__rmul__"))
    __truediv__ = operator(elementwise.div, _beside("__rtruediv__"))

    __pow__, __floordiv__, __mod__ = map(_given, (elementwise.pow, elementwise.floor_divide, elementwise.remainder),
                                         ("__rpow__", "__rfloordiv__", "__rmod__"))

    __radd__, __rsub__, __rmul__ = map(_turned, (elementwise.add, elementwise.sub, elementwise.mul))
    __rpow__, __rfloordiv__, __rmod__ = map(_turned, (elementwise.pow, elementwise.floor_divide, elementwise.remainder))

    def __rtruediv__(self, other: Any) -> Any:
        below = raised(self)
        return elementwise.div(beside(below, other), below)

    def __matmul__(self, other: Any) -> Any:
        if _yields(other, "__rmatmul__"):
            return NotImplemented
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

    __lt__, __le__, __gt__, __ge__ = map(_plain, (elementwise.lt, elementwise.le, elementwise.gt, elementwise.ge),
                                         ("__gt__", "__ge__", "__lt__", "__le__"))

    __and__, __or__, __xor__ = map(_plain, (pointwise.bitwise_and, pointwise.bitwise_or, pointwise.bitwise_xor),
                                   ("__rand__", "__ror__", "__rxor__"))
    __rand__, __ror__, __rxor__ = map(_turned, (pointwise.bitwise_and, pointwise.bitwise_or, pointwise.bitwise_xor))
    __lshift__, __rshift__ = map(_plain, (pointwise.bitwise_left_shift, pointwise.bitwise_right_shift),
                                 ("__rlshift__", "__rrshift__"))
    __rlshift__, __rrshift__ = map(_turned, (pointwise.bitwise_left_shift, pointwise.bitwise_right_shift))

    # Where one yields, Python calls the operator that is not in place.
    __iadd__, __isub__ = (_summed(IN_PLACE[op.name], op, f"__r{op.name}__") for op in (elementwise.add, elementwise.sub))
    __imul__, __itruediv__ = (_plain(IN_PLACE[op], f"__r{name}__") for op, name in (("mul", "mul"), ("div", "truediv")))
    __ipow__, __ifloordiv__, __imod__ = (_plain(IN_PLACE[op], f"__r{name}__") for op, name in (
        ("pow", "pow"), ("floor_divide", "floordiv"), ("remainder", "mod")))
    __iand__, __ior__, __ixor__, __ilshift__, __irshift__ = (_plain(IN_PLACE[f"bitwise_{op}"], f"__r{name}__") for op, name in (
        ("and", "and"), ("or", "or"), ("xor", "xor"), ("left_shift", "lshift"), ("right_shift", "rshift")))


for _name, _method in list(vars(Operators).items()):
    # In errors, help() and profiles those that were made above would all be called "method".
    if getattr(_method, "__name__", "") == "method":
        _method.__name__, _method.__qualname__, _method.__module__ = _name, f"Operators.{_name}", __name__
