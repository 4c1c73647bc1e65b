"""Pairwise distances: ``cdist`` between two sets of vectors, ``pdist`` within one."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.engine.autocast import raising
from gradcore.engine.owners import constant
from gradcore.errors import SpecError
from gradcore.functional import mathematics as m
from gradcore.functional import shape as sh
from gradcore.functional.folding import norm
from gradcore.ops import elementwise, linalg, movement

Tensor = Any

#: The number of vectors in a set above which a matrix product gives the Euclidean distances; None for never.
_MODES = {"use_mm_for_euclid_dist_if_necessary": 25, "use_mm_for_euclid_dist": 0, "donot_use_mm_for_euclid_dist": None}


@raising
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0,
          compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """p-norms [..., P, R] of the differences between vectors [..., P, M] and [..., R, M]; leading dimensions broadcast.

    Backward keeps the P * R * M differences. With p = 2 and more than 25 vectors in a set, or if ``compute_mode`` asks for it,
    the distances come from a matrix product instead, which keeps P * R numbers and rounds small distances more. The gradient
    of a distance of 0 is 0; with an infinite ``p``, equal components share the gradient.
    Raises :class:`SpecError` for sizes that do not fit and a negative ``p``.
    """
    for k, x in enumerate((x1, x2), 1):
        if x.spec.ndim < 2:
            raise SpecError(f"cdist only supports at least 2D tensors, X{k} got: {x.spec.ndim}D")
        if not x.spec.floating:
            raise SpecError(f"cdist only supports floating-point dtypes, X{k} got: {x.spec.dtype.name}")
    if x1.spec.shape[-1] != x2.spec.shape[-1]:
        raise SpecError(f"X1 and X2 must have the same number of columns. X1: {x1.spec.shape[-1]} X2: {x2.spec.shape[-1]}")
    if x1.spec.dtype != x2.spec.dtype:
        raise SpecError(f"cdist: expected one dtype, but found {x1.spec.dtype.name} and {x2.spec.dtype.name}")
    if p < 0:
        raise SpecError("cdist only supports non-negative p values")
    if compute_mode not in _MODES:
        raise ValueError(f"{compute_mode} is not a valid value for compute_mode")
    most = _MODES[compute_mode]
    if p == 2 and most is not None and max(x1.spec.shape[-2], x2.spec.shape[-2]) > most:
        return _by_product(x1, x2)
    if not x1.spec.shape[-1]:
        return m.sum(sh.unsqueeze(x1, -2) - sh.unsqueeze(x2, -3), -1)
    return norm(sh.unsqueeze(x1, -2) - sh.unsqueeze(x2, -3), p, -1)


def _by_product(x1: Tensor, x2: Tensor) -> Tensor:
    """Euclidean distances as sqrt(|x|^2 + |y|^2 - 2 x y)."""
    squares = [m.sum(elementwise.square(x), -1, True) for x in (x1, x2)]
    both = linalg.matmul(x1, sh.transpose(x2, -2, -1)) * -2.0 + squares[0] + sh.transpose(squares[1], -2, -1)
    # Rounding may make a distance of about 0 negative.
    apart = elementwise.gt(both, 0)
    return elementwise.where(apart, elementwise.sqrt(elementwise.where(apart, both, 1.0)), 0.0)


@raising
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """p-norms [N (N - 1) / 2] of the differences between each two of the N vectors [N, M]: (0, 1), (0, 2), ..., (1, 2), ..."""
    if input.spec.ndim != 2:
        raise SpecError(f"pdist only supports 2D tensors, got: {input.spec.ndim}D")
    if p < 0:
        raise SpecError("pdist only supports non-negative p values")
    pairs = [constant("pdist", places, input) for places in np.triu_indices(input.spec.shape[0], 1)]
    # No name refers to the two, so they are released before the norm.
    return norm(elementwise.sub(*(movement.take(input, places, dim=0) for places in pairs)), p, -1)


__all__ = ["cdist", "pdist"]
