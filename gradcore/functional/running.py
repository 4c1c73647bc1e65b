"""``cummax`` and ``cummin``, and ``logcumsumexp`` by a scan with doubling strides: log2(n) steps over n elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.errors import SpecError
from gradcore.functional import shape as sh
from gradcore.functional.mathematics import Ranked
from gradcore.ops import creation, elementwise, movement, pointwise, scan

Tensor = Any

#: The least size of a tensor whose lines are laid out along its first dimension: that takes two ops more.
_MANY = 1 << 12


def _steps(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())] if n else []


def _running(input: Tensor, dim: int, largest: bool) -> Ranked:
    d = sh.dim_of(dim, input)
    x = sh.atleast_1d(input)
    line = x.detach()
    if line.spec.dtype.kind == "b":
        line = movement.cast(line, dtype=np.dtype(np.uint8))
    values = scan.cumextreme(line, dim=d, largest=largest)
    # The place of an extreme is the last one up to here where the element is what the extreme is, or a NaN.
    n = line.spec.shape[d]
    new = elementwise.logical_or(elementwise.eq(line, values), elementwise.ne(line, line))
    places = creation.arange(0, 1, length=n, dtype=np.dtype(np.int32 if n < 1 << 31 else np.int64), device=x.storage.device)
    places = elementwise.where(new, sh.along(places, d, x), 0)
    places = movement.cast(scan.cumextreme(places, dim=d, largest=True), dtype=np.dtype(np.int64))
    return Ranked(*(sh.reshape(t, input.spec.shape) for t in (movement.take_along(x, places, dim=d, wrap=False), places)))


def cummax(input: Tensor, dim: int) -> Ranked:
    """Cumulative maxima along ``dim``, and their indices (the last of equal ones), int64; a NaN stays."""
    return _running(input, dim, True)


def cummin(input: Tensor, dim: int) -> Ranked:
    """Cumulative minima along ``dim``, and their indices (the last of equal ones), int64; a NaN stays."""
    return _running(input, dim, False)


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
    # With the dimension first, shifted parts are contiguous.
    line, at = (sh.contiguous(sh.transpose(x, 0, d)), 0) if d and x.spec.numel >= _MANY else (x, d)
    for step in _steps(line.spec.shape[at]):
        rest = line.spec.shape[at] - step
        head, before, here = (movement.narrow(line, at, *part) for part in ((0, step), (0, rest), (step, rest)))
        line = sh.cat([head, pointwise.logaddexp(before, here)], at)
    return sh.reshape(line if at == d else sh.contiguous(sh.transpose(line, 0, d)), input.spec.shape)


METHODS = "cummax cummin logcumsumexp".split()

__all__ = [*METHODS]  # noqa: PLE0604 - strings all
