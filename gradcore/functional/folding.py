"""Products, cumulative sums, sorting and elements by rank, variance and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gradcore.arguments import warn
from gradcore.engine.autocast import raising
from gradcore.engine.operands import real
from gradcore.errors import DimError, SpecError
from gradcore.functional import mathematics as m
from gradcore.functional import shape as sh
from gradcore.functional.linalg import matrix_norm
from gradcore.functional.mathematics import Ranked, need_dim
from gradcore.ops import elementwise, movement, order, reduce, scan
from gradcore.ops.shapes import need_number
from gradcore.spec import normalize_dims

Tensor = Any
Dim = int | Sequence[int] | None


# -- products and running sums -------------------------------------------------------------------------------------------


def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The product over ``dim``, or of all elements; int64 for integers and bools. Gradients are exact for zeros too."""
    x = input if dtype is None else input.to(dtype)
    if dim is None:
        need_dim("prod", keepdim)
        made = scan.prod(sh.reshape(x, -1), dim=0, keepdim=False)
    else:
        made = scan.prod(x, dim=sh.dim_of(dim, x), keepdim=keepdim)
    return made if dtype is None else made.to(dtype)


def cumsum(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Cumulative sums along ``dim``; int64 for integers and bools."""
    x = input if dtype is None else input.to(dtype)
    made = scan.cumsum(x, dim=sh.dim_of(dim, x), reverse=False)
    return made if dtype is None else made.to(dtype)


def cumprod(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Cumulative products along ``dim``; int64 for integers and bools."""
    x = input if dtype is None else input.to(dtype)
    made = scan.cumprod(x, dim=sh.dim_of(dim, x))
    return made if dtype is None else made.to(dtype)


def nansum(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over ``dim``, or of all elements, with NaNs left out."""
    x = elementwise.where(elementwise.isnan(input), 0, input) if input.spec.floating else input
    return m.sum(x, dim, keepdim, dtype=dtype)


def nanmean(input: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over ``dim``, or of all elements, with NaNs left out."""
    some = m.sum(elementwise.logical_not(elementwise.isnan(input)), dim, keepdim)
    return nansum(input, dim, keepdim, dtype=dtype) / some


def cumsum_(input: Tensor, dim: int) -> Tensor:
    """:func:`cumsum` in place; returns the tensor."""
    need_number("cumsum_", input.spec, input.spec)
    return movement.copy_(input, cumsum(input, dim, dtype=input.spec.dtype))


def cumprod_(input: Tensor, dim: int) -> Tensor:
    """:func:`cumprod` in place; returns the tensor."""
    need_number("cumprod_", input.spec, input.spec)
    # The gradient reads the overwritten values, so a copy of them is kept.
    x = sh.clone(input) if input.requires_grad else input
    return movement.copy_(input, cumprod(x, dim, dtype=input.spec.dtype))


# -- ranks ---------------------------------------------------------------------------------------------------------------


def _ranked(x: Tensor, dim: int, start: int, length: int, descending: bool = False) -> Ranked:
    return Ranked(*order.ranked(x, dim=dim, start=start, length=length, descending=descending))


def _size(x: Tensor, d: int) -> int:
    return x.spec.shape[d] if x.spec.ndim else 1


def need_elements(name: str, x: Tensor, d: int) -> int:
    """The size of a dimension. Raises :class:`DimError` for 0."""
    n = _size(x, d)
    if not n:
        raise DimError(f"{name}(): Expected reduction dim {d} to have non-zero size.")
    return n


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Ranked:
    """Elements sorted along ``dim``, and their indices in ``input``, int64. Always stable; NaN counts as the largest."""
    d = sh.dim_of(dim, input)
    return _ranked(input, d, 0, _size(input, d), descending)


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort ``input`` along ``dim``, int64; see :func:`sort`."""
    return sort(input.detach(), dim, descending).indices


def msort(input: Tensor) -> Tensor:
    """Elements sorted along dimension 0."""
    return sort(input, 0).values


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Ranked:
    """The ``k`` largest or smallest elements along ``dim``, sorted, and their indices, int64. Backward keeps the indices."""
    d, k = sh.dim_of(dim, input), sh.plain(k)
    if not 0 <= k <= _size(input, d):
        raise SpecError(f"selected index k out of range: {k} of {_size(input, d)} elements")
    return _ranked(input, d, 0, k, largest)


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Ranked:
    """The ``k``-th smallest element along ``dim``, counted from 1, and its index, int64."""
    d, k = sh.dim_of(dim, input), sh.plain(k)
    n = need_elements("kthvalue", input, d)
    if not 1 <= k <= n:
        raise SpecError(f"kthvalue(): selected number k out of range for dimension {dim}: {k} of {n} elements")
    found = _ranked(input, d, k - 1, 1)
    return found if keepdim else Ranked(*(sh.squeeze(x, d) for x in found))


def shared(flat: Tensor, found: Tensor) -> Tensor:
    """The element ``found`` of ``flat``, with a gradient that all elements equal to it share, as in ``amax``."""
    if not found.requires_grad:
        return found
    value = found.detach()
    # By size, since -inf would not be larger than what stands for the others.
    sign = 1 - 2 * movement.cast_to(elementwise.lt(value, 0), value.spec)
    same = elementwise.where(elementwise.eq(flat, value), flat * sign, -math.inf)
    return elementwise.where(elementwise.isnan(found), found, reduce.amax(same, dims=(0,), keepdim=False) * sign)


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median of all elements, or along ``dim`` with its index; the lower of two middle ones, NaN if there is one."""
    if dim is None:
        need_dim("median", keepdim)
        flat = sh.reshape(input, -1)
        if not flat.spec.numel:
            return movement.cast_to(m.sum(flat) * math.nan, input.spec)
        return shared(flat, median(flat, 0).values)
    d, x = sh.dim_of(dim, input), sh.atleast_1d(input)
    found = kthvalue(x, (need_elements("median", x, d) + 1) // 2, d, True)
    if x.spec.floating:
        # If there are NaNs, the median is the first of them, which gets the gradient.
        nan = elementwise.isnan(x)
        some = reduce.any(nan, dims=(d,), keepdim=True)
        first = reduce.argmax(movement.cast(nan, dtype="int8"), dim=d, keepdim=True)
        bad = movement.take_along(x, first, dim=d)
        found = Ranked(elementwise.where(some, bad, found.values), elementwise.where(some, first, found.indices))
    return found if keepdim and input.spec.ndim else Ranked(*(sh.squeeze(t, d) for t in found))


class Extremes(NamedTuple):
    """The smallest and the largest elements."""

    min: Any
    max: Any


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Extremes:
    """The smallest and the largest element, of all or along ``dim``."""
    return Extremes(m.amin(input, dim, keepdim), m.amax(input, dim, keepdim))


# -- variance --------------------------------------------------------------------------------------------------------------


def _arguments(dim: Any, unbiased: bool | None, correction: float | None) -> tuple[Dim, float]:
    """The dimensions and the correction. ``x.var(False)`` passes ``unbiased`` in the place of ``dim``."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise TypeError("var() takes unbiased or correction, but got both")
    return dim, (1 if unbiased in (None, True) else 0) if correction is None else correction


def var(input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
        correction: float | None = None) -> Tensor:
    """The variance over ``dim``, or of all elements: the sum of squared deviations over n - ``correction``.

    ``correction`` is 1 by default, and 0 with ``unbiased=False``.
    """
    dims, less = _arguments(dim, unbiased, correction)
    over = normalize_dims(dims, input.spec.ndim)
    shape = input.spec.shape
    if math.prod(shape[d] for d in over) <= less:
        warn(f"var(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input numel "
             f"divided by output numel), but got correction={less} for shape {list(shape)} and dims {list(over)}.")
    return reduce.var(input, dims=over, correction=less, keepdim=keepdim)


def std(input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
        correction: float | None = None) -> Tensor:
    """The square root of :func:`var`; the gradient is 0 where it is 0."""
    if input.spec.dtype == np.float16:
        # The variance may overflow or underflow in float16 where its root does not.
        return std(input.to(np.dtype(np.float32)), dim, unbiased, keepdim, correction=correction).to(input.spec.dtype)
    found = var(input, dim, unbiased, keepdim, correction=correction)
    if not found.requires_grad:
        return elementwise.sqrt(found)
    zero = elementwise.eq(found, 0)
    return elementwise.where(zero, 0.0, elementwise.sqrt(elementwise.where(zero, 1.0, found)))


def var_mean(input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
             correction: float | None = None) -> tuple[Tensor, Tensor]:
    """A pair of :func:`var` and the mean."""
    dims, less = _arguments(dim, unbiased, correction)
    return var(input, dims, None, keepdim, correction=less), m.mean(input, dims, keepdim)


def std_mean(input: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *,
             correction: float | None = None) -> tuple[Tensor, Tensor]:
    """A pair of :func:`std` and the mean."""
    dims, less = _arguments(dim, unbiased, correction)
    return std(input, dims, None, keepdim, correction=less), m.mean(input, dims, keepdim)


# -- norms -----------------------------------------------------------------------------------------------------------------


def norm(input: Tensor, p: float | str | None = "fro", dim: Dim = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The p-norm over ``dim``, or of all elements; ``p="fro"`` and None mean 2, and "nuc" that of ``linalg.matrix_norm``."""
    if p not in ("fro", None) and isinstance(p, str):
        return matrix_norm(input, p, tuple(range(input.spec.ndim)) if dim is None else dim, keepdim, dtype=dtype)
    x = input if dtype is None else input.to(dtype)
    power = 2.0 if p in ("fro", None) else real(p)
    return reduce.vector_norm(x, p=power, dims=normalize_dims(dim, x.spec.ndim), keepdim=keepdim)


@raising
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of ``input - other``."""
    return norm(input - other, p)


#: Methods of a tensor that are not functions.
TENSOR_METHODS = {"cumsum_": cumsum_, "cumprod_": cumprod_}

METHODS = ("prod cumsum cumprod nansum nanmean sort argsort msort topk kthvalue median aminmax var std norm dist").split()

__all__ = [*METHODS, "std_mean", "var_mean"]  # noqa: PLE0604 - strings all
