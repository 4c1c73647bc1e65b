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


def _to_front(x: Tensor, dim: int) -> Tensor:
    """``x`` with ``dim`` first, contiguous, so that shifted parts are, too."""
    return sh.contiguous(sh.transpose(x, 0, dim)) if dim else x


def _scan(x: Tensor, fold: Any) -> Tensor:
    """Each element folded with all before it along the first dimension."""
    for step in _steps(x.spec.shape[0]):
        head, before, here = _shifted(x, 0, step)
        x = sh.cat([head, fold(before, here)], 0)
    return x


def _running(input: Tensor, dim: int, extreme: Any) -> Ranked:
    d = sh.dim_of(dim, input)
    x = sh.atleast_1d(input)
    line = _to_front(x.detach(), d)
    if line.spec.dtype.kind == "b":
        line = movement.cast(line, dtype=np.dtype(np.uint8))
    values = _scan(line, extreme)
    # The place of an extreme is the last one up to here where the element is what the extreme is, or a NaN.
    n = line.spec.shape[0]
    new = elementwise.logical_or(elementwise.eq(line, values), elementwise.ne(line, line))
    places = creation.arange(0, 1, length=n, dtype=np.dtype(np.int32 if n < 1 << 31 else np.int64), device=x.storage.device)
    places = elementwise.where(new, sh.reshape(places, (n, *(1,) * (x.spec.ndim - 1))), 0)
    places = movement.cast(_scan(places, elementwise.maximum), dtype=np.dtype(np.int64))
    places = sh.contiguous(sh.transpose(places, 0, d))
    return Ranked(*(sh.reshape(t, input.spec.shape) for t in (movement.take_along(x, places, dim=d, wrap=False), places)))


def cummax(input: Tensor, dim: int) -> Ranked:
    """Cumulative maxima along ``dim``, and their indices (the last of equal ones), int64; a NaN stays."""
    return _running(input, dim, elementwise.maximum)


def cummin(input: Tensor, dim: int) -> Ranked:
    """Cumulative minima along ``dim``, and their indices (the last of equal ones), int64; a NaN stays."""
    return _running(input, dim, elementwise.minimum)


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log(cumsum(exp(input))) along ``dim``, without overflow. Backward keeps log2(n) tensors of the input's size.

    Raises :class:`SpecError` for integers.
    """
    if not input.spec.floating:
        raise SpecError(f"logcumsumexp: expected a floating dtype, but got {input.spec.dtype.name}")
    d = sh.dim_of(dim, input)
    x = sh.atleast_1d(input)
    if not _steps(x.spec.shape[d]):
        return sh.clone(input)
    found = sh.transpose(_scan(_to_front(x, d), pointwise.logaddexp), 0, d)
    return sh.reshape(sh.contiguous(found), input.spec.shape)


METHODS = "cummax cummin logcumsumexp".split()

__all__ = [*METHODS]  # noqa: PLE0604 - strings all
