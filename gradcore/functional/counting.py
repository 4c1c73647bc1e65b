"""Counts of values: ``bincount``, ``histc`` and ``histogram``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gradcore.engine.operands import plain_number
from gradcore.engine.sites import need_values
from gradcore.engine.value import Value
from gradcore.errors import SpecError
from gradcore.functional import picking
from gradcore.functional import shape as sh
from gradcore.functional.creation import linspace
from gradcore.functional.searching import bisected
from gradcore.ops import creation, elementwise, movement, reduce

Tensor = Any


class Histogram(NamedTuple):
    """What :func:`histogram` returns: [bins] and [bins + 1]."""

    hist: Any
    bin_edges: Any


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each value occurs in an integer vector [N], or the sum of its ``weights`` [N].

    The result has max(input) + 1 elements, and at least ``minlength``; the maximum is read on the host. Raises
    :class:`SpecError` unless ``input`` is a vector without negative numbers, and
    :class:`~gradcore.errors.DataDependentShape` on the device ``meta``.
    """
    if input.spec.ndim != 1 or input.spec.dtype.kind not in "iu":
        raise SpecError(f"bincount only supports 1-d non-negative integral inputs, but got {input.spec}")
    if weights is not None and weights.spec.shape != input.spec.shape:
        raise SpecError(f"weights should be 1-d and have the same length as input, but got {list(weights.spec.shape)} "
                        f"for {list(input.spec.shape)}")
    if minlength < 0:
        raise SpecError(f"minlength should be >= 0, but got {minlength}")
    need_values("bincount", device := input.storage.device)
    largest = -1
    if input.spec.numel:
        if input.min().item() < 0:
            raise SpecError(f"bincount only supports 1-d non-negative integral inputs, but got {input.min().item()}")
        largest = int(input.max().item())
    dtype = np.dtype(np.int64 if weights is None else np.float32 if weights.spec.dtype == np.float32 else np.float64)
    counts = creation.full(0, shape=(max(largest + 1, minlength),), dtype=dtype, device=device)
    terms = (creation.full(1, shape=input.spec.shape, dtype=dtype, device=device) if weights is None
             else movement.cast(weights, dtype=dtype))
    return picking.scatter_add_(counts, 0, movement.cast(input, dtype=np.dtype(np.int64)), terms)


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of ``bins`` intervals of equal width from ``min`` to ``max``, in the dtype of ``input``.

    The last interval includes ``max``; what lies outside counts nowhere, nor does NaN. If ``min`` equals ``max``, the range is
    that of the elements. It is not read on the host, so one that is not finite counts nothing, where PyTorch raises. Integers
    are counted on every device, as PyTorch does on a GPU. Raises :class:`SpecError` for bools, for ``bins`` < 1 and for ``min``
    > ``max``.
    """
    if input.spec.dtype.kind == "b":
        raise SpecError(f"histc: expected a tensor of numbers, but got {input.spec}")
    if not input.spec.floating:
        return movement.cast(histc(movement.cast(input, dtype=np.dtype(np.float64)), bins, min, max), dtype=input.spec.dtype)
    if bins < 1:
        raise SpecError(f"histc: bins must be > 0, but got {bins}")
    min, max = plain_number("histc", "min", min), plain_number("histc", "max", max)
    if min > max:
        raise SpecError(f"histc: max must be larger than min, but got {max} and {min}")
    x, low, high = sh.reshape(input, (-1,)).detach(), min, max
    if min == max and input.spec.numel:
        low, high = x.min(), x.max()
        flat = movement.cast_to(elementwise.eq(low, high), input.spec)
        low, high = low - flat, high + flat
    elif min == max:
        low, high = min - 1, max + 1
    places = (x - low) * bins / (high - low)
    # A position is NaN where x is, or where the range is not finite.
    within = elementwise.logical_and(elementwise.logical_and(x >= low, x <= high), places >= 0)
    places = elementwise.where(within, elementwise.clamp(places, 0.0, bins - 1.0), creation.new_full(input, (), 0))
    counts = creation.new_full(input, (bins,), 0)
    places = movement.cast(places, dtype=np.dtype(np.int64))
    return picking.scatter_add_(counts, 0, places, movement.cast_to(within, input.spec))


def histogram(input: Tensor, bins: int | Tensor, *, range: Sequence[float] | None = None, weight: Tensor | None = None,
              density: bool = False) -> Histogram:
    """How many elements lie in each of ``bins`` intervals, or the sum of their ``weight``, and the edges of the intervals.

    ``bins`` is a number of intervals of equal width in ``range``, by default from the least element to the largest, which are
    read on the host; or the edges, an ascending vector. The last interval includes its end; what lies outside counts nowhere.
    With ``density``, counts are divided by their sum and by the widths. Raises :class:`SpecError` for what is not float32 or
    float64, for edges and weights that do not fit, and for a range that is not finite, or descends.
    """
    if not input.spec.floating or input.spec.narrow:
        raise SpecError(f"histogram: expected a tensor of float32 or float64, but got {input.spec}")
    for name, given in ("bins", bins), ("weight", weight):
        if isinstance(given, Value) and given.spec.dtype != input.spec.dtype:
            raise SpecError(f"histogram: expected {name} of the input's {input.spec.dtype.name}, but got {given.spec}")
    if weight is not None and weight.spec.shape != input.spec.shape:
        raise SpecError(f"histogram: expected a weight for each element of {list(input.spec.shape)}, but got {weight.spec}")
    x = sh.reshape(input, -1).detach()
    if isinstance(bins, Value):
        if bins.spec.ndim != 1 or bins.spec.numel < 2:
            raise SpecError(f"histogram: expected two edges or more as a vector, but got {bins.spec}")
        if range is not None:
            raise SpecError(f"histogram: range={tuple(range)} has no effect where bins are edges")
        edges: Any = bins
        edges = edges.detach()
    else:
        edges = _edges(x, bins, range)
    count = edges.spec.numel - 1
    places = bisected(edges, x, True) - 1
    # NaN lies behind all edges.
    inside = elementwise.logical_and(elementwise.ge(x, edges[0]), elementwise.le(x, edges[-1]))
    terms = movement.cast_to(inside, x.spec)
    if weight is not None:
        terms = elementwise.where(inside, sh.reshape(weight, -1).detach(), 0.0)
    places = elementwise.clamp(places, 0, count - 1)
    found = picking.scatter_add_(creation.new_full(x, (count,), 0.0), 0, places, terms)
    if density:
        found = found / (reduce.sum(found, dims=(0,), keepdim=True) * (edges[1:] - edges[:-1]))
    return Histogram(found, edges)


def _edges(x: Tensor, bins: Any, range: Sequence[float] | None) -> Tensor:
    bins = sh.plain(bins)
    if not isinstance(bins, int) or bins < 1:
        raise SpecError(f"histogram: bins must be > 0, or edges, but got {bins!r}")
    if range is None:
        need_values("histogram", x.storage.device)
        low, high = (x.min().item(), x.max().item()) if x.spec.numel else (0.0, 1.0)
    elif len(range) != 2:
        raise SpecError(f"histogram: range must be a pair of numbers, but got {range}")
    else:
        low, high = (float(plain_number("histogram", "range", end)) for end in range)
    if not np.isfinite((low, high)).all():
        raise SpecError(f"histogram: range [{low}, {high}] is not finite")
    if low > high:
        raise SpecError(f"histogram: min should not exceed max, but got min {low} max {high}")
    if low == high:
        low, high = low - 0.5, high + 0.5
    return linspace(low, high, bins + 1, dtype=x.spec.dtype, device=x.storage.device)


METHODS = ["bincount", "histc", "histogram"]

__all__ = [*METHODS]  # noqa: PLE0604 - strings all
