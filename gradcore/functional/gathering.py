"""Block-diagonal matrices, combinations, Vandermonde matrices, and the ``*_scatter`` functions."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from gradcore.engine.owners import upload
from gradcore.errors import SpecError
from gradcore.functional import arranging, diagonals, folding, picking
from gradcore.functional import shape as sh
from gradcore.functional.padding import pad
from gradcore.ops import arrangement, creation, elementwise, movement, placing
from gradcore.spec import TensorSpec, default_float, promote

Tensor = Any

# -- products of sets ------------------------------------------------------------------------------------------------------


def block_diag(*tensors: Any) -> Tensor:
    """A matrix with the given ones along its diagonal and zeros elsewhere; 1-d tensors are rows, 0-d ones 1 x 1 matrices.

    Raises :class:`SpecError` for more than two dimensions.
    """
    given = sh.listed(tensors)
    for k, x in enumerate(given):
        if x.spec.ndim > 2:
            raise SpecError("torch.block_diag: Input tensors must have 2 or fewer dimensions. "
                            f"Input {k} has {x.spec.ndim} dimensions")
    if not given:
        return creation.empty(shape=(1, 0), dtype=default_float(), device=None)
    dtype = promote([x.spec for x in given])
    blocks = [sh.atleast_2d(x.to(dtype)) for x in given]
    whole, before, rows = sum(x.spec.shape[1] for x in blocks), 0, []
    for x in blocks:
        rows.append(pad(x, (before, whole - before - x.spec.shape[1])))
        before += x.spec.shape[1]
    return sh.cat(rows, 0)


def cartesian_prod(*tensors: Any) -> Tensor:
    """The Cartesian product of vectors, as rows [n * m * ..., number of vectors]; a single vector is returned as it is."""
    given = sh.listed(tensors)
    for x in given:
        if x.spec.ndim != 1:
            raise SpecError(f"Expect a 1D vector, but got shape {list(x.spec.shape)}")
    if len({x.spec.dtype for x in given}) > 1:
        raise SpecError(f"meshgrid expects all tensors to have the same dtype, but got {[x.spec.dtype.name for x in given]}")
    if len(given) == 1:
        return given[0]
    return sh.stack([sh.reshape(x, -1) for x in arranging.meshgrid(*given)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of ``r`` elements of a vector, in its order, as rows [K, r]; ``with_replacement`` allows repeats."""
    if input.spec.ndim != 1:
        raise SpecError(f"Expect a 1D vector, but got shape {list(input.spec.shape)}")
    if r < 0:
        raise SpecError(f"Expect a non-negative number, but got {r}")
    if r == 0:
        return creation.empty(shape=(0,), dtype=input.spec.dtype, device=input.storage.device)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(input.spec.shape[0]), r)), np.int64).reshape(-1, r)
    return movement.take(input, upload(places, input.storage.device, op="combinations", role="temporary", constant=True), dim=0)


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix [n, N] of a vector [n]: its powers as columns, the highest first unless ``increasing``.

    ``N`` is n by default.
    """
    if x.spec.ndim != 1:
        raise SpecError(f"x must be a one-dimensional tensor, but got {list(x.spec.shape)}")
    n, count = x.spec.shape[0], x.spec.shape[0] if N is None else N
    if count < 0:
        raise SpecError(f"N must be non-negative, but got {count}")
    dtype = x.spec.dtype if x.spec.floating else np.dtype(np.int64)
    one = creation.full(1, shape=(n, min(count, 1)), dtype=dtype, device=x.storage.device)
    if count < 2:
        return one
    again = movement.expand(sh.unsqueeze(x, 1), shape=(n, count - 1))
    powers = sh.cat([one, folding.cumprod(again, 1)], 1)
    return powers if increasing else arrangement.flip(powers, dims=(1,))


# -- into a part of a copy -------------------------------------------------------------------------------------------------


def _put(name: str, copy: Tensor, part: Tensor, src: Tensor) -> Tensor:
    if part.spec.shape != src.spec.shape:
        raise SpecError(f"{name}: expected src to have a size equal to the part of self. src size = {list(src.spec.shape)}, "
                        f"part size = {list(part.spec.shape)}")
    movement.copy_(part, src)
    return copy


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of ``input`` with ``src`` written at index ``index`` of ``dim``."""
    copy = sh.clone(input)
    return _put("select_scatter", copy, sh.select(copy, dim, index), src)


def slice_scatter(input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
                  step: int = 1) -> Tensor:
    """A copy of ``input`` with ``src`` written to the slice ``start:end:step`` of ``dim``."""
    copy = sh.clone(input)
    return _put("slice_scatter", copy, copy[(slice(None),) * sh.dim_of(dim, input) + (slice(start, end, step),)], src)


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy of ``input`` with ``src`` written to a diagonal of two dimensions; see :func:`diagonal`."""
    copy = sh.clone(input)
    return _put("diagonal_scatter", copy, diagonals.diagonal(copy, offset, dim1, dim2), src)


# -- folded into places ----------------------------------------------------------------------------------------------------


def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """A copy of ``input`` with ``src`` reduced along ``dim`` into the positions of ``index``.

    ``reduce`` is ``"sum"``, ``"mean"``, ``"amax"`` or ``"amin"``; the elements of ``input`` take part unless ``include_self``
    is False. Equal extremes share the gradient. Raises NotImplementedError for ``"prod"``, :class:`SpecError` for another
    reduction.
    """
    if reduce == "prod":
        raise NotImplementedError("scatter_reduce(reduce='prod') is not implemented: use 'sum', 'mean', 'amax' or 'amin'")
    if reduce not in ("sum", "mean", "amax", "amin"):
        raise SpecError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    for d, n in enumerate(index.spec.shape):
        if n != src.spec.shape[d]:
            src = movement.narrow(src, d, 0, n)
    if reduce == "mean" and input.spec.dtype.kind == "b":
        raise NotImplementedError("scatter_reduce(reduce='mean') is not implemented for bools: use 'sum', 'amax' or 'amin'")
    if reduce in ("sum", "mean"):
        kept = input if include_self else picking.scatter(input, dim, index, 0)
        total = picking.scatter_add(kept, dim, index, src)
        if reduce == "sum":
            return total
        count = _counts(input, dim, index, include_self)
        return total / count if total.spec.floating else elementwise.floor_divide(total, count)
    return _extreme(input, dim, index, src, reduce == "amax", include_self)


def _counts(x: Tensor, dim: int, index: Tensor, include_self: bool) -> Tensor:
    """How many elements are reduced into each position, at least 1."""
    start = creation.full(int(include_self), shape=x.spec.shape, dtype=x.spec.dtype, device=x.storage.device)
    ones = creation.full(1, shape=index.spec.shape, dtype=x.spec.dtype, device=x.storage.device)
    return elementwise.clamp(picking.scatter_add_(start, dim, index, ones), 1, None)


def _extreme(input: Tensor, dim: int, index: Tensor, src: Tensor, largest: bool, include_self: bool) -> Tensor:
    own, given = input.detach(), src.detach()
    if own.spec.dtype.itemsize == 1:
        wide = np.dtype(np.int32)
        return _extreme(own.to(wide), dim, index, given.to(wide), largest, include_self).to(own.spec.dtype)
    best = sh.clone(own) if include_self else picking.scatter(own, dim, index, _worst(own.spec, largest))
    picking.scatter_by("scatter_reduce", functools.partial(placing.extreme_along_, largest=largest), best, dim, index, given)
    if not (input.requires_grad or src.requires_grad):
        return best
    # The mean of the winners, minus its own value: it adds 0, and a gradient that the winners share.
    mine = elementwise.eq(own, best) if include_self else _untouched(own, dim, index)
    theirs = elementwise.eq(src.detach(), picking.gather(best, dim, index))
    count = picking.scatter_add(movement.cast_to(mine, input.spec), dim, index, movement.cast_to(theirs, input.spec))
    share = picking.scatter_add(elementwise.where(mine, input, 0.0), dim, index, elementwise.where(theirs, src, 0.0)) / count
    return best + elementwise.where(elementwise.isfinite(best), share - share.detach(), 0.0)


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
    kept = sh.clone(input) if input.requires_grad else input
    return movement.copy_(input, scatter_reduce(kept, dim, index, src, reduce, include_self=include_self))


#: Methods of a tensor that are not functions.
TENSOR_METHODS = {"scatter_reduce_": scatter_reduce_}

METHODS = "select_scatter slice_scatter diagonal_scatter scatter_reduce".split()

__all__ = [  # noqa: PLE0604 - strings all
    *METHODS, "block_diag", "cartesian_prod", "combinations", "vander"]
