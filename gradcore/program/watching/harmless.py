"""Tells which assignments leave all as it is, or do what a replay does too, by the library's functions that carry them out."""

from __future__ import annotations

from collections.abc import Container
from types import CodeType, FrameType
from typing import Any

from gradcore._gradients import Gradients
from gradcore._tensor import Tensor
from gradcore.engine.leaf import leaf_of
from gradcore.nn.module import Module
from gradcore.nn.utils.prune import BasePruningMethod
from gradcore.nn.utils.spectral_norm import SpectralNorm
from gradcore.nn.utils.weight_norm import WeightNorm
from gradcore.program.guarding.frames import by_id
from gradcore.program.guarding.values import copied, equal, is_plain

#: What an assignment calls, and ``requires_grad_()`` of a tensor or of a module, too.
SETS_REQUIRES_GRAD: CodeType = Gradients.requires_grad.fset.__code__  # type: ignore[attr-defined]
SETS_GRADIENT: CodeType = Gradients.grad.fset.__code__  # type: ignore[attr-defined]
_SETS_DATA: CodeType = Gradients.data.fset.__code__  # type: ignore[attr-defined]
_SETS_ATTRIBUTE: CodeType = Module.__setattr__.__code__
_PUTS: CodeType = Module._module_put.__code__
#: The in-place operators. What they return, which the statement assigns, is the tensor that was there.
OPERATORS = by_id(f.__code__ for kind in Tensor.__mro__ for name, f in vars(kind).items()
                  if name in {f"__i{x}__" for x in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or",
                                                    "xor", "lshift", "rshift")})
#: What gives a module a parameter, buffer or child, in the place of another, say, or takes it away.
EXCHANGES = (_PUTS, Module.__delattr__.__code__)
#: Hooks that store the weight which they compute before each call of a layer.
STORES_WEIGHT = {WeightNorm.__call__.__code__: "weight_norm", SpectralNorm.__call__.__code__: "spectral_norm",
                 BasePruningMethod.__call__.__code__: "prune"}
#: What an assignment of the user's calls.
ASSIGNING = frozenset((SETS_GRADIENT, _SETS_DATA, SETS_REQUIRES_GRAD, _SETS_ATTRIBUTE))


def is_harmless(frame: FrameType, carried: Container[tuple[Any, ...]], new: Container[Any]) -> bool:
    """Does a function of :data:`ASSIGNING`, or one that exchanges parts of a module, change nothing that a replay would not?

    ``frame`` is that of the call, which has just begun; ``carried`` has the keys of the places that a replay assigns to, and
    ``new`` contains what the run has made.
    """
    code, given = frame.f_code, frame.f_locals
    owner, value = given["self"], given.get("value")
    if code is SETS_GRADIENT:
        return value is None or _is_kept(owner, value) or _is_made_for(owner, value, new)
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


def _is_kept(owner: Any, value: Any) -> bool:
    """Is it the gradient that a leaf has, as in ``p.grad = p.grad.mul_(0.5)``?"""
    leaf = leaf_of(owner)
    return leaf is not None and leaf.grad is value


def _is_made_for(owner: Any, value: Any, new: Container[Any]) -> bool:
    """Is it the gradient that a leaf from before the run is given like one of a backward: made in the run, without a graph?"""
    return (isinstance(value, Tensor) and value.edge is None and value.storage in new
            and leaf_of(owner) is not None and owner not in new)
