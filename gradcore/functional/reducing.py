"""Elements folded into positions along a dimension: ``scatter_reduce`` and ``index_reduce``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gradcore.engine.value import Value
from gradcore.errors import SpecError
from gradcore.functional import picking
from gradcore.functional import shape as sh
from gradcore.functional.folding import argsort
from gradcore.ops import creation, elementwise, movement, placing, pointwise
from gradcore.ops.shapes import need_one_dtype
from gradcore.spec import TensorSpec

Tensor = Any


def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """A copy of ``input`` with ``src`` reduced along ``dim`` into the positions of ``index``.

    ``reduce`` is ``"sum"``, ``"prod"``, ``"mean"``, ``"amax"`` or ``"amin"``; the elements of ``input`` take part unless
    ``include_self`` is False. Equal extremes share the gradient, and that of a product is exact for zeros. Raises
    :class:`SpecError` for another reduction. A product takes log2(n) rounds for n elements along ``dim``.
    """
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise SpecError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    if not isinstance(src, Value):
        raise TypeError(f"scatter_reduce(): argument 'src' must be Tensor, not {type(src).__name__}")
    src = picking.source_of("scatter_reduce", input, index, src)
    need_one_dtype("scatter_reduce", input=input.spec, src=src.spec)
    if reduce == "mean" and input.spec.dtype.kind == "b":
        raise NotImplementedError("scatter_reduce(reduce='mean') is not implemented for bools: use 'sum', 'prod', 'amax' or "
                                  "'amin'")
    if reduce == "prod":
        return _product(input, dim, index, src, include_self)
    if reduce in ("sum", "mean"):
        kept = input if include_self else picking.scatter(input, dim, index, 0)
        total = picking.scatter_add(kept, dim, index, src)
        if reduce == "sum":
            return total
        count = _counts(input, dim, index, include_self)
        return total / count if total.spec.floating else elementwise.floor_divide(total, count)
    return _extreme(input, dim, index, src, reduce == "amax", include_self)


def _product(input: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool) -> Tensor:
    """Products of the elements with the same position, which sorting makes neighbors: of twice as many in each round."""
    first = input if include_self else picking.scatter(input, dim, index, 1)
    d = sh.dim_of(dim, input)
    values = movement.cast_to(movement.expand(src, shape=index.spec.shape), src.spec.widened())
    where, found = sh.atleast_1d(index, values)
    order = argsort(where, d)
    where, found = picking.gather(where, d, order), picking.gather(found, d, order)
    count, step = where.spec.shape[d], 1

    def same(step: int) -> Tensor:
        """Does each position lead to the same place as the one so many before it?"""
        return elementwise.eq(*(movement.narrow(where, d, k, count - step) for k in (step, 0)))

    while step < count:
        later, before = (movement.narrow(found, d, k, count - step) for k in (step, 0))
        found = sh.cat([movement.narrow(found, d, 0, step), elementwise.where(same(step), before * later, later)], d)
        step *= 2
    if count > 1:
        # The last of repeated positions is what a write leaves: the others get no gradient.
        found = sh.cat([elementwise.where(same(1), 1, movement.narrow(found, d, 0, count - 1)),
                        movement.narrow(found, d, count - 1, 1)], d)
    where, found = (sh.reshape(x, index.spec.shape) for x in (where, found))
    ones = creation.full(1, shape=input.spec.shape, dtype=found.spec.dtype, device=input.storage.device)
    return movement.cast_to(first * picking.scatter(ones, dim, where, found), input.spec)


def _counts(x: Tensor, dim: int, index: Tensor, include_self: bool) -> Tensor:
    """How many elements are reduced into each position, at least 1."""
    start = creation.new_full(x, x.spec.shape, int(include_self))
    ones = creation.new_full(x, index.spec.shape, 1)
    return elementwise.clamp(picking.scatter_add_(start, dim, index, ones), 1, None)


def _extreme(input: Tensor, dim: int, index: Tensor, src: Tensor, largest: bool, include_self: bool) -> Tensor:
    own, given = input.detach(), src.detach()
    if own.spec.dtype.itemsize == 1:
        wide = np.dtype(np.int32)
        return _extreme(own.to(wide), dim, index, given.to(wide), largest, include_self).to(own.spec.dtype)
    best = sh.clone(own) if include_self else picking.scatter(own, dim, index, _worst(own.spec, largest))
    picking.scatter_by("scatter_reduce", partial(placing.extreme_along_, largest=largest), best, dim, index, given)
    if not (input.requires_grad or src.requires_grad):
        return best
    # The mean of the winners, each minus its own value: it adds 0, and a gradient that the winners share. An infinite one is
    # the value itself, since minus itself it is NaN.
    mine = elementwise.eq(own, best) if include_self else _untouched(own, dim, index)
    theirs = elementwise.eq(given, picking.gather(best, dim, index))
    count = picking.scatter_add(movement.cast_to(mine, input.spec), dim, index, movement.cast_to(theirs, input.spec))
    own, given, best = (pointwise.nan_to_num(x, posinf=0.0, neginf=0.0) for x in (own, given, best))
    shares = elementwise.where(mine, input - own, 0.0), elementwise.where(theirs, src - given, 0.0)
    share = picking.scatter_add(shares[0], dim, index, shares[1])
    return best + share / count


def _worst(spec: TensorSpec, largest: bool) -> Any:
    """What every number is better than."""
    if spec.floating:
        return -math.inf if largest else math.inf
    return int(np.iinfo(spec.dtype).min if largest else np.iinfo(spec.dtype).max)


def _untouched(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Where nothing is written at the positions of ``index``."""
    yes = creation.full(True, shape=x.spec.shape, dtype=np.dtype(np.bool_), device=x.storage.device)
    return picking.scatter_(yes, dim, index, False)


def scatter_reduce_(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """:func:`scatter_reduce` in place; returns the tensor."""
    return _overwritten(scatter_reduce, input, dim, index, src, reduce, include_self=include_self)


def _overwritten(function: Callable[..., Tensor], input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str,
                 **named: bool) -> Tensor:
    # The gradient of a product reads the overwritten values, so a copy of them is kept.
    x = sh.clone(input) if reduce == "prod" and input.requires_grad | src.requires_grad else input
    return movement.copy_(input, function(x, dim, index, src, reduce, **named))


def index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """A copy of ``input`` with the slices of ``source`` along ``dim`` reduced into its slices at ``index``.

    ``reduce`` is ``"prod"``, ``"mean"``, ``"amax"`` or ``"amin"``; see :func:`scatter_reduce`. Raises :class:`SpecError` for
    another reduction, and :class:`DimError` for slices that do not fit.
    """
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise SpecError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    x, places, given = picking.slices_of("index_reduce", input, dim, index, source)
    where = movement.expand(sh.along(places, sh.dim_of(dim, input), given), shape=given.spec.shape)
    return sh.reshape(scatter_reduce(x, dim, where, given, reduce, include_self=include_self), input.spec.shape)


def index_reduce_(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """:func:`index_reduce` in place; returns the tensor."""
    return _overwritten(index_reduce, input, dim, index, source, reduce, include_self=include_self)


TENSOR_METHODS: dict[str, Callable[..., Any]] = {fn.__name__: fn for fn in (scatter_reduce_, index_reduce_)}

METHODS = ["scatter_reduce", "index_reduce"]

__all__ = ["index_reduce", "scatter_reduce"]
