"""``cummax``, ``cummin`` and ``logcumsumexp``, by scans with doubling strides: log2(n) steps over n elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.errors import SpecError
from gradcore.functional import shape as sh
from gradcore.functional.mathematics import Ranked
from gradcore.ops import creation, elementwise, movement, pointwise

Tensor = Any


def _shifted(x: Tensor, dim: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first ``step`` elements; then for each of the others, the element ``step`` before it, and the element itself."""
    rest = x.spec.shape[dim] - step
    return movement.narrow(x, dim, 0, step), movement.narrow(x, dim, 0, rest), movement.narrow(x, dim, step, rest)


def _steps(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())] if n else []


def _running(input: Tensor, dim: int, better: Any) -> Ranked:
    d = sh.dim_of(dim, input)
    x = sh.atleast_1d(input)
    n, values = x.spec.shape[d], x.detach()
    line = creation.arange(0, 1, length=n, dtype=np.dtype(np.int64), device=x.storage.device)
    places = movement.expand(sh.reshape(line, (n, *(1,) * (x.spec.ndim - d - 1))), shape=x.spec.shape)
    for step in _steps(n):
        (head, before, here), (first, there, at) = (_shifted(t, d, step) for t in (values, places))
        # A NaN beats everything, and of two equal elements the later one counts.
        later = elementwise.logical_or(better(here, before), elementwise.ne(here, here))
        values, places = (sh.cat([a, elementwise.where(later, b, c)], d) for a, b, c in (
            (head, here, before), (first, at, there)))
    places = sh.contiguous(places)
    return Ranked(*(sh.reshape(t, input.spec.shape) for t in (movement.take_along(x, places, dim=d, wrap=False), places)))


def cummax(input: Tensor, dim: int) -> Ranked:
    """Cumulative maxima along ``dim``, and their indices (the last of equal ones), int64; a NaN stays."""
    return _running(input, dim, elementwise.ge)


def cummin(input: Tensor, dim: int) -> Ranked:
    """Cumulative minima along ``dim``, and their indices (the last of equal ones), int64; a NaN stays."""
    return _running(input, dim, elementwise.le)


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log(cumsum(exp(input))) along ``dim``, without overflow. Backward keeps log2(n) tensors of the input's size.

    Raises :class:`SpecError` for integers.
    """
    if not input.spec.floating:
        raise SpecError(f"logcumsumexp: expected a floating dtype, but got {input.spec.dtype.name}")
    d = sh.dim_of(dim, input)
    x = sh.atleast_1d(input)
    steps = _steps(x.spec.shape[d])
    for step in steps:
        head, before, here = _shifted(x, d, step)
        x = sh.cat([head, pointwise.logaddexp(before, here)], d)
    return sh.reshape(x, input.spec.shape) if steps else sh.clone(input)


METHODS = "cummax cummin logcumsumexp".split()

__all__ = [*METHODS]  # noqa: PLE0604 - strings all
