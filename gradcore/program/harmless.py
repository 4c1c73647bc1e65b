"""Tells which assignments leave all as it is, or do what a replay does too, by the library's functions that carry them out."""

from __future__ import annotations

from collections.abc import Container
from types import CodeType, FrameType
from typing import Any

from gradcore._gradients import Gradients
from gradcore._tensor import Tensor
from gradcore.nn.module import Module
from gradcore.program.requiring import SETS_REQUIRES_GRAD
from gradcore.program.values import copied, equal, is_plain

SETS_GRADIENT: CodeType = Gradients.grad.fset.__code__  # type: ignore[attr-defined]
_SETS_DATA: CodeType = Gradients.data.fset.__code__  # type: ignore[attr-defined]
_SETS_ATTRIBUTE: CodeType = Module.__setattr__.__code__
_PUTS: CodeType = Module._put.__code__
#: The in-place operators. What they return, which the statement assigns, is the tensor that was there.
OPERATORS = frozenset(f.__code__ for kind in Tensor.__mro__ for name, f in vars(kind).items()
                       if name in {f"__i{x}__" for x in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or",
                                                         "xor", "lshift", "rshift")})
#: What an assignment of the user's calls.
ASSIGNING = frozenset((SETS_GRADIENT, _SETS_DATA, SETS_REQUIRES_GRAD, _SETS_ATTRIBUTE))


def is_harmless(frame: FrameType, carried: Container[tuple[Any, ...]]) -> bool:
    """Does a function of :data:`ASSIGNING`, or one that exchanges parts of a module, change nothing that a replay would not?

    ``frame`` is that of the call, which has just begun; ``carried`` has the keys of the places that a replay assigns to.
    """
    code, given = frame.f_code, frame.f_locals
    owner, value = given["self"], given.get("value")
    if code is SETS_GRADIENT:
        return value is None
    if code is _SETS_DATA:
        return isinstance(value, Tensor) and value.storage is owner.storage and value.spec is owner.spec
    if code is SETS_REQUIRES_GRAD:
        # What tensors require at the end of the run tells, for this and for `requires_grad_()`.
        return True
    if code in (_SETS_ATTRIBUTE, _PUTS) and ("attribute", id(owner), given["name"]) in carried:
        return given.get("kind", "_buffers") == "_buffers"
    if code not in (_SETS_ATTRIBUTE, _PUTS) or given["name"] not in owner.__dict__:
        return False
    there = owner.__dict__[given["name"]]
    # A list with the same items is another list.
    return there is value or (is_plain(value) and copied(value) is value and equal(there, value))
