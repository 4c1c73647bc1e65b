"""``cummax``, ``cummin`` and ``logcumsumexp``, by scans with doubling strides: log2(n) steps over n elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.errors import SpecError
from gradcore.functional import shape as sh
from gradcore.functional.mathematics import Ranked
from gradcore.ops import creation, elementwise, movement, pointwise

Tensor = Any

#: The least size of a tensor whose lines are laid out along its first dimension: that takes two ops more.
_MANY = 1 << 12


def _shifted(x: Tensor, dim: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first ``step`` elements; then for each of the others, the element ``step`` before it, and the element itself."""
    rest = x.spec.shape[dim] - step
    return movement.narrow(x, dim, 0, step), movement.narrow(x, dim, 0, rest), movement.narrow(x, dim, step, rest)


def _steps(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())] if n else []


def _to_front(x: Tensor, dim: int) -> tuple[Tensor, int]:
    """``x`` with ``dim`` first, contiguous, so that shifted parts are, too; a small one as it is. And where ``dim`` is then."""
    return (sh.contiguous(sh.transpose(x, 0, dim)), 0) if dim and x.spec.numel >= _MANY else (x, dim)


def _scan(x: Tensor, fold: Any, dim: int) -> Tensor:
    """Each element folded with all before it along ``dim``."""
    for step in _steps(x.spec.shape[dim]):
        head, before, here = _shifted(x, dim, step)
        x = sh.cat([head, fold(before, here)], dim)
    return x


def _running(input: Tensor, dim: int, extreme: Any) -> Ranked:
    d = sh.dim_of(dim, input)
    x = sh.atleast_1d(input)
    line, at = _to_front(x.detach(), d)
    if line.spec.dtype.kind == "b":
        line = movement.cast(line, dtype=np.dtype(np.uint8))
    values = _scan(line, extreme, at)
    # The place of an extreme is the last one up to here where the element is what the extreme is, or a NaN.
    n = line.spec.shape[at]
    new = elementwise.logical_or(elementwise.eq(line, values), elementwise.ne(line, line))
    places = creation.arange(0, 1, length=n, dtype=np.dtype(np.int32 if n < 1 << 31 else np.int64), device=x.storage.device)
    places = elementwise.where(new, sh.reshape(places, (n, *(1,) * (x.spec.ndim - at - 1))), 0)
    places = movement.cast(_scan(places, elementwise.maximum, at), dtype=np.dtype(np.int64))
    if at != d:
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
    line, at = _to_front(x, d)
    found = _scan(line, pointwise.logaddexp, at)
    return sh.reshape(found if at == d else sh.contiguous(sh.transpose(found, 0, d)), input.spec.shape)


METHODS = "cummax cummin logcumsumexp".split()

__all__ = [*METHODS]  # noqa: PLE0604 - strings all
