"""Statistics: differences and slopes, covariance, trapezoidal integrals, ``mode``, ``nanmedian`` and quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.arguments import warn
from gradcore.engine.value import Value
from gradcore.errors import DimError, SpecError
from gradcore.functional import arranging, folding, matrices
from gradcore.functional import mathematics as m
from gradcore.functional import shape as sh
from gradcore.functional.mathematics import Ranked
from gradcore.functional.pointwise import lerp
from gradcore.functional.types import result_type
from gradcore.ops import creation, elementwise, linalg, movement, reduce, scan

Tensor = Any

# -- differences and slopes ------------------------------------------------------------------------------------------------


def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Differences between neighbors along ``dim``, taken ``n`` times; for bools, whether neighbors differ.

    Raises :class:`SpecError` for a 0-d tensor, and for a negative ``n``.
    """
    if not input.spec.ndim:
        raise SpecError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise SpecError(f"order must be non-negative but got {n}")
    d = sh.dim_of(dim, input)
    if not n:
        return sh.clone(input)
    parts = [x for x in (prepend, input, append) if x is not None]
    x = sh.cat(parts, d) if len(parts) > 1 else input
    less = elementwise.logical_xor if x.spec.dtype.kind == "b" else elementwise.sub
    for _ in range(min(n, x.spec.shape[d])):
        length = max(x.spec.shape[d] - 1, 0)
        x = less(movement.narrow(x, d, x.spec.shape[d] - length, length), movement.narrow(x, d, 0, length))
    return x


def gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """The slopes of a sampled function along each of ``dim``, or of all dimensions: central differences, and one-sided ones of
    ``edge_order`` 1 or 2 at the ends.

    ``spacing`` is the distance of neighbors, one for each dimension, or the coordinates along each, as vectors. Raises
    :class:`SpecError` for a dimension with fewer than ``edge_order`` + 1 elements, and unless there is one spacing for each.
    """
    if edge_order not in (1, 2):
        raise SpecError(f"gradient only supports edge_order=1 and edge_order=2, but got {edge_order}")
    # In the order given, which is that of the results.
    listed = range(input.spec.ndim) if dim is None else dim if isinstance(dim, (list, tuple)) else [dim]
    dims = [sh.dim_of(d, input) for d in listed]
    if len(set(dims)) != len(dims):
        raise SpecError(f"gradient: a dimension appears multiple times in the list of dims {dim}")
    given = list(spacing) if isinstance(spacing, (list, tuple)) else [1 if spacing is None else spacing] * len(dims)
    if len(given) != len(dims):
        raise SpecError(f"gradient expected spacing to be a scalar, or one for each of {len(dims)} dimensions, but got "
                        f"{len(given)}")
    if any(input.spec.shape[d] <= edge_order for d in dims):
        raise SpecError(f"gradient expected each dimension size to be at least edge_order+1, but got {list(input.spec.shape)}")
    x = movement.as_float(input)
    return tuple(_slopes(x, d, step, edge_order) for d, step in zip(dims, given, strict=True))


def _slopes(x: Tensor, d: int, spacing: Any, edge_order: int) -> Tensor:
    n = x.spec.shape[d]
    steps = diff(x, dim=d)
    if isinstance(spacing, Value) and spacing.spec.ndim:
        if spacing.spec.shape != (n,):
            raise SpecError(f"gradient expected {n} coordinates for dimension {d}, but got {list(spacing.spec.shape)}")
        between = sh.along(diff(movement.cast_to(spacing, x.spec)), d, x)
        at = d - x.spec.ndim + between.spec.ndim
        before, after = movement.narrow(between, at, 0, n - 2), movement.narrow(between, at, 1, n - 2)
        steps = steps / between
        left, right = movement.narrow(steps, d, 0, n - 2), movement.narrow(steps, d, 1, n - 2)
        inner = (left * after + right * before) / (before + after)
    else:
        steps = steps / spacing
        # Not by way of the steps: those to and from an infinite element would cancel.
        inner = (movement.narrow(x, d, 2, n - 2) - movement.narrow(x, d, 0, n - 2)) / (spacing * 2)
    first, last = movement.narrow(steps, d, 0, 1), movement.narrow(steps, d, n - 2, 1)
    if edge_order == 2:
        # At an end of three points, the slope of the parabola through them is as far from the step as that in the middle.
        first, last = first * 2 - movement.narrow(inner, d, 0, 1), last * 2 - movement.narrow(inner, d, n - 3, 1)
    return sh.cat([first, inner, last], d)


# -- covariance ------------------------------------------------------------------------------------------------------------


def cov(input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """The covariance matrix [D, D] of D variables, the rows of ``input`` [D, N]; 0-d for a vector [N].

    Sums of products are divided by N - ``correction``. ``fweights`` [N] are integer counts of the observations, ``aweights``
    [N] their weights; their values are not checked. Raises :class:`SpecError` for shapes that do not fit.
    """
    if input.spec.ndim > 2:
        raise SpecError("cov(): expected input to have two or fewer dimensions but got an input with "
                        f"{input.spec.ndim} dimensions")
    if input.spec.dtype.kind == "b":
        raise SpecError("cov(): bool dtype is not supported for input")
    x = movement.as_float(sh.reshape(input, (1, -1)) if input.spec.ndim < 2 else input)
    if aweights is not None:
        x = x.to(result_type(x, aweights))
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is not None and given.spec.shape != x.spec.shape[1:]:
            raise SpecError(f"cov(): expected {name} to have one dimension of {x.spec.shape[1]} observations, but got "
                            f"{list(given.spec.shape)}")
    if fweights is not None and fweights.spec.dtype.kind not in "iu":
        raise SpecError("cov(): expected fweights to have integral dtype but got fweights with "
                        f"{fweights.spec.dtype.name} dtype")
    given = [movement.cast_to(w, x.spec) for w in (fweights, aweights) if w is not None]
    if not given:
        return _plain_cov(x, correction)
    weights = given[0] if len(given) == 1 else given[0] * given[1]
    whole = m.sum(weights)
    parts = whole if aweights is None else m.sum(weights * given[-1]) / whole
    freedom = elementwise.clamp(whole - (correction if aweights is None else parts * float(correction)), 0.0, None)
    x = x - m.sum(x * weights, 1, True) / whole
    return sh.squeeze(linalg.matmul(x * weights, sh.transpose(x, 0, 1)) / freedom)


def _plain_cov(x: Tensor, correction: int) -> Tensor:
    freedom = x.spec.shape[1] - correction
    if freedom <= 0:
        warn("cov(): degrees of freedom is <= 0. Correction should be strictly less than the number of observations.")
    x = x - m.mean(x, 1, True)
    return sh.squeeze(linalg.matmul(x, sh.transpose(x, 0, 1)) / float(max(freedom, 0)))


def corrcoef(input: Tensor) -> Tensor:
    """The matrix [D, D] of Pearson's correlation coefficients of D variables, the rows of ``input`` [D, N]."""
    if input.spec.ndim > 2:
        raise SpecError("corrcoef(): expected input to have two or fewer dimensions but got an input with "
                        f"{input.spec.ndim} dimensions")
    found = cov(input)
    if not found.spec.ndim:
        return found / found
    deviations = elementwise.sqrt(matrices.diagonal(found))
    return elementwise.clamp(found / sh.unsqueeze(deviations, 1) / sh.unsqueeze(deviations, 0), -1.0, 1.0)


# -- integrals -------------------------------------------------------------------------------------------------------------


def _areas(name: str, y: Tensor, x: Tensor | None, dx: float | None, dim: int) -> tuple[Tensor, int]:
    """Twice the area between each two neighbors along ``dim``, and ``dim`` counted from 0."""
    if not y.spec.ndim:
        raise DimError(f"Dimension specified as {dim} but tensor has no dimensions")
    d = sh.dim_of(dim, y)
    rest = max(y.spec.shape[d] - 1, 0)
    pairs = movement.narrow(y, d, 0, rest) + movement.narrow(y, d, y.spec.shape[d] - rest, rest)
    if x is None:
        # A float, since the product of small integers would wrap around.
        return (pairs if dx in (None, 1) else pairs * (dx * 1.0)), d
    if dx is not None:
        raise TypeError(f"{name}() takes x or dx, but got both")
    if x.spec.ndim == 1:
        if x.spec.shape[0] != y.spec.shape[d]:
            raise SpecError(f"{name}: There must be one `x` value for each sample point, but got {x.spec.shape[0]} for "
                            f"{y.spec.shape[d]}")
        return pairs * sh.along(diff(x), d, y), d
    wide = sh.reshape(x, ((1,) * (y.spec.ndim - x.spec.ndim) + x.spec.shape))
    return pairs * diff(wide, dim=d), d


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """The integral of ``y`` along ``dim`` by the trapezoidal rule, at points ``x`` or at a distance of ``dx`` (1 by default).

    ``x`` is a vector along ``dim``, or broadcasts with ``y``.
    """
    if x is None and not y.spec.floating:
        # Small integers are added up as int64, in which the sum of two neighbors does not wrap around either.
        y = movement.cast(y, dtype=np.dtype(np.int64))
    areas, d = _areas("trapezoid", y, x, dx, dim)
    return m.sum(areas, d) / 2


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """Cumulative integrals along ``dim``, one fewer than values; see :func:`trapezoid`."""
    areas, d = _areas("cumulative_trapezoid", y, x, dx, dim)
    return folding.cumsum(areas, d) / 2


trapz = trapezoid

# -- one of many -----------------------------------------------------------------------------------------------------------


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Ranked:
    """The most frequent value along ``dim`` (the smallest of several), and the index of its last occurrence.

    The values are sorted, and each is counted from where its run of equal ones begins. A NaN is equal to none.
    """
    d = sh.dim_of(dim, input)
    x = sh.atleast_1d(input)
    n = folding.need_elements("mode", x, d)
    rising, stood = folding.sort(x.detach(), d)
    at = sh.along(creation.arange(0, 1, length=n, dtype=np.dtype(np.int64), device=x.storage.device), d, x)
    begins = elementwise.where(elementwise.ne(rising, scan.before(rising, d, 0)), at, 0)
    last = reduce.argmax(at - scan.cumextreme(begins, dim=d, largest=True), dim=d, keepdim=True)
    return _at(input, x, movement.take_along(stood, last, dim=d), d, keepdim)


def _at(input: Tensor, x: Tensor, places: Tensor, d: int, keepdim: bool) -> Ranked:
    """The element of each row at the index ``places``, and that index."""
    found = (movement.take_along(x, sh.contiguous(places), dim=d, wrap=False), places)
    return Ranked(*(t if keepdim and input.spec.ndim else sh.squeeze(t, d) for t in found))


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """:func:`median` without NaNs: of all elements, or along ``dim`` with its index. NaN if there are only NaNs."""
    if dim is None:
        m.need_dim("nanmedian", keepdim)
        flat = sh.reshape(input, -1)
        if not flat.spec.numel:
            return folding.median(input)
        return folding.shared(flat, nanmedian(flat, 0).values)
    d = sh.dim_of(dim, input)
    x = sh.atleast_1d(input)
    folding.need_elements("median", x, d)
    stood = folding.argsort(x, d)
    some = m.sum(elementwise.eq(x.detach(), x.detach()), d, True)
    middle = elementwise.clamp(elementwise.floor_divide(some - 1, 2), 0, None)
    return _at(input, x, movement.take_along(stood, movement.cast(middle, dtype=np.dtype(np.int64)), dim=d), d, keepdim)


# -- quantiles -------------------------------------------------------------------------------------------------------------

_BETWEEN = ("linear", "lower", "higher", "nearest", "midpoint")


def quantile(input: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *,
             interpolation: str = "linear") -> Tensor:
    """The ``q``-quantile along ``dim``, or of all elements; NaN if one of them is NaN.

    ``q`` is a number in [0, 1], or a vector [Q] of such numbers on the input's device, which adds a leading dimension of
    size Q. Hyndman and Fan, The American Statistician 1996, definition 7. Raises :class:`SpecError` for an empty input,
    another dtype, a number ``q`` out of range, on the CPU also in a vector, or an unknown ``interpolation``.
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation)


def nanquantile(input: Tensor, q: float | Tensor, dim: int | None = None, keepdim: bool = False, *,
                interpolation: str = "linear") -> Tensor:
    """:func:`quantile` of the elements that are not NaN; NaN if all are."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation)


def _quantile(name: str, input: Tensor, q: float | Tensor, dim: int | None, keepdim: bool, interpolation: str) -> Tensor:
    if not input.spec.floating or input.spec.dtype.itemsize < 4:
        raise SpecError(f"{name}() input tensor must be either float or double dtype, but got {input.spec.dtype.name}")
    if interpolation not in _BETWEEN:
        raise SpecError(f"{name}() interpolation must be one of {', '.join(_BETWEEN)}, but got {interpolation}")
    if not input.spec.numel:
        raise SpecError(f"{name}() input tensor must be non-empty")
    values = q if not isinstance(q, Value) else q.array if q.storage.device.type == "cpu" else 0
    if not np.all(np.greater_equal(values, 0) & np.less_equal(values, 1)):
        raise SpecError(f"{name}() q must be in the range [0, 1] but got {values}")
    if isinstance(q, Value) and q.spec.ndim > 1:
        raise SpecError(f"{name}() q must be a scalar or 1D tensor, but got {list(q.spec.shape)}")
    axis = None if dim is None else sh.dim_of(dim, input)
    axis = axis if input.spec.ndim else None
    x = folding.sort(sh.reshape(input, -1) if axis is None else arranging.movedim(input, axis, -1), -1).values
    last = x.spec.shape[-1] - 1
    shares = sh.reshape(q, -1).to(x.spec.dtype) if isinstance(q, Value) else creation.new_full(x, (1,), q)
    if name == "nanquantile":
        # NaN are behind all others.
        count = reduce.sum(elementwise.eq(x, x), dims=(x.spec.ndim - 1,), keepdim=True)
        made = _between(x, movement.cast_to(elementwise.clamp(count - 1, 0, None), x.spec) * shares, interpolation)
    else:
        made = _between(x, shares * last, interpolation)
        highest = movement.narrow(x, x.spec.ndim - 1, last, 1)
        made = elementwise.where(elementwise.isnan(highest), highest, made)
    made = arranging.movedim(made, -1, 0)
    if keepdim:
        made = sh.reshape(made, (-1, *[1] * input.spec.ndim)) if axis is None else sh.unsqueeze(made, axis + 1)
    return made if isinstance(q, Value) and q.spec.ndim else sh.squeeze(made, 0)


def _between(x: Tensor, ranks: Tensor, interpolation: str) -> Tensor:
    """The values [..., Q] at fractional positions ``ranks``, [Q] or [..., Q], in the last dimension of sorted x [..., n]."""
    def at(rank: Tensor) -> Tensor:
        read = movement.take if rank.spec.ndim == 1 else movement.take_along
        return read(x, movement.cast(rank, dtype=np.dtype(np.int64)), dim=x.spec.ndim - 1, wrap=False)

    if interpolation == "nearest":
        return at(elementwise.round(ranks))
    low, high = elementwise.floor(ranks), elementwise.ceil(ranks)
    if interpolation in ("lower", "higher"):
        return at(low if interpolation == "lower" else high)
    return lerp(at(low), at(high), 0.5 if interpolation == "midpoint" else ranks - low)


METHODS = "diff cov corrcoef mode nanmedian quantile nanquantile".split()

__all__ = [*METHODS, "cumulative_trapezoid", "gradient", "trapezoid", "trapz"]  # noqa: PLE0604 - strings all
