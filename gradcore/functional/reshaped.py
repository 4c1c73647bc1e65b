"""Views taken in place: the tensor itself gets the shape and the strides, and its history the view."""

from __future__ import annotations

import math
from typing import Any

from gradcore.engine import modes
from gradcore.engine.owners import note_write
from gradcore.engine.views import check_recorded_write, show_as
from gradcore.errors import SpecError
from gradcore.functional import shape as sh
from gradcore.ops import creation, movement

Tensor = Any


def _shown(name: str, input: Tensor, view: Any, *args: Any) -> Tensor:
    # A result has its history in every mode: without, its gradient would have the shape of before.
    with modes.set_grad_enabled(modes.is_grad_enabled() or not input.is_leaf):
        if modes.is_grad_enabled():
            check_recorded_write(name, input, False)
        show_as(input, view(input, *args))
    note_write(input, name)
    return input


def t_(input: Tensor) -> Tensor:
    """``t``, of the tensor itself: no element moves. Returns it; raises RuntimeError for a leaf that requires grad."""
    if input.spec.ndim > 2:
        raise SpecError(f"t_() expects a tensor with <= 2 dimensions, but self is {input.spec.ndim}D")
    return _shown("t_", input, sh.t)


def transpose_(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """``transpose``, of the tensor itself: no element moves. Returns it; raises RuntimeError for a leaf that requires grad."""
    return _shown("transpose_", input, sh.transpose, dim0, dim1)


def swapaxes_(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """:func:`transpose_`."""
    return _shown("swapaxes_", input, sh.transpose, axis0, axis1)


def swapdims_(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """:func:`transpose_`."""
    return _shown("swapdims_", input, sh.transpose, dim0, dim1)


def squeeze_(input: Tensor, dim: sh.Dim = None, *more: int) -> Tensor:
    """``squeeze``, of the tensor itself: no element moves. Returns it; raises RuntimeError for a leaf that requires grad."""
    return _shown("squeeze_", input, sh.squeeze, dim, *more)


def unsqueeze_(input: Tensor, dim: int) -> Tensor:
    """``unsqueeze``, of the tensor itself: no element moves. Returns it; raises RuntimeError for a leaf that requires grad."""
    return _shown("unsqueeze_", input, sh.unsqueeze, dim)


def resize_(input: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    """Another shape, of the tensor itself, which returns it: fewer elements are the first ones, over the same bytes; more take
    bytes of their own, which its views do not share, and those that are new have any value. Of a view whose elements do not lie
    side by side, the elements are those that do, from its first one on.

    Raises RuntimeError for a tensor that requires grad, and for a negative size.
    """
    shape = sh.size_of("resize_", sizes if size is None else (size,))
    if input.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    if shape == input.spec.shape:
        return input
    if any(n < 0 for n in shape):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    numel = math.prod(shape)
    with modes.no_grad():
        flat = _side_by_side(input)
        before = flat.spec.numel
        if numel > before:
            grown = creation.empty(shape=(numel,), dtype=input.spec.dtype, device=input.storage.device)
            movement.copy_(grown[:before], flat)
            flat = grown
        shown = sh.view(flat[:numel], shape)
    if shown.storage is not input.storage:
        # A recorded write to it is none to what it was a view of.
        input.base = None
    input.data = shown
    return input


def _side_by_side(x: Tensor) -> Tensor:
    base = x.base
    if x.spec.contiguous or base is None or not base.spec.contiguous or base.storage is not x.storage:
        return sh.reshape(x, -1)
    at = x.spec.offset - base.spec.offset
    return movement.as_strided(base, shape=(base.spec.numel - at,), strides=(1,), offset=at)


def resize_as_(input: Tensor, the_template: Tensor) -> Tensor:
    """:func:`resize_` to the shape of another tensor."""
    return resize_(input, the_template.spec.shape)


TENSOR_METHODS = {fn.__name__: fn for fn in (resize_, resize_as_, squeeze_, swapaxes_, swapdims_, t_, transpose_, unsqueeze_)}
