"""``diff``, ``bincount`` and ``quantile``."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.engine.value import Value
from gradcore.errors import DataDependentShape, SpecError
from gradcore.functional import arranging, picking, shape
from gradcore.functional.folding import sort
from gradcore.functional.pointwise import lerp
from gradcore.ops import creation, elementwise, movement

Tensor = Any


def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Differences between neighbours along ``dim``, taken ``n`` times; for bools, whether neighbours differ.

    Raises :class:`SpecError` for a 0-d tensor, and for a negative ``n``.
    """
    if not input.spec.ndim:
        raise SpecError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise SpecError(f"order must be non-negative but got {n}")
    d = shape.dim_of(dim, input)
    if not n:
        return shape.clone(input)
    parts = [x for x in (prepend, input, append) if x is not None]
    x = shape.cat(parts, d) if len(parts) > 1 else input
    less = elementwise.logical_xor if x.spec.dtype.kind == "b" else elementwise.sub
    for _ in range(min(n, x.spec.shape[d])):
        length = max(x.spec.shape[d] - 1, 0)
        x = less(movement.narrow(x, d, x.spec.shape[d] - length, length), movement.narrow(x, d, 0, length))
    return x


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
    device = input.storage.device
    if device.name == "meta":
        raise DataDependentShape("bincount: the size of the result depends on values, which meta tensors do not have")
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


_BETWEEN = ("linear", "lower", "higher", "nearest", "midpoint")


def quantile(input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """The ``q``-quantile along ``dim``, or of all elements; NaN if one of them is NaN.

    ``q`` is a number in [0, 1], or a vector [Q] of such numbers on the input's device, which adds a leading dimension of
    size Q. Hyndman and Fan, The American Statistician 1996, definition 7. Raises :class:`SpecError` for an empty input,
    another dtype, a number ``q`` out of range, or an unknown ``interpolation``.
    """
    if not input.spec.floating or input.spec.dtype.itemsize < 4:
        raise SpecError(f"quantile() input tensor must be either float or double dtype, but got {input.spec.dtype.name}")
    if interpolation not in _BETWEEN:
        raise SpecError(f"quantile() interpolation must be one of {', '.join(_BETWEEN)}, but got {interpolation}")
    if not input.spec.numel:
        raise SpecError("quantile() input tensor must be non-empty")
    if not isinstance(q, Value) and not 0 <= q <= 1:
        raise SpecError(f"quantile() q must be in the range [0, 1] but got {q}")
    if isinstance(q, Value) and q.spec.ndim > 1:
        raise SpecError(f"quantile() q must be a scalar or 1D tensor, but got {list(q.spec.shape)}")
    axis = None if dim is None else shape.dim_of(dim, input)
    axis = axis if input.spec.ndim else None
    x = shape.reshape(input, -1) if axis is None else arranging.movedim(input, axis, -1)
    x = sort(x, -1).values
    last = x.spec.shape[-1] - 1
    ranks = (shape.reshape(q, -1).to(x.spec.dtype) if isinstance(q, Value)
             else creation.full(q, shape=(1,), dtype=x.spec.dtype, device=x.storage.device)) * last
    made = _between(x, ranks, interpolation)
    highest = movement.narrow(x, x.spec.ndim - 1, last, 1)
    made = arranging.movedim(elementwise.where(elementwise.isnan(highest), highest, made), -1, 0)
    if keepdim:
        made = shape.reshape(made, (-1, *[1] * input.spec.ndim)) if axis is None else shape.unsqueeze(made, axis + 1)
    return made if isinstance(q, Value) and q.spec.ndim else shape.squeeze(made, 0)


def _between(x: Tensor, ranks: Tensor, interpolation: str) -> Tensor:
    """The values [..., Q] at fractional positions ``ranks`` [Q] in the last dimension of sorted numbers [..., n]."""
    def at(rank: Tensor) -> Tensor:
        return movement.take(x, movement.cast(rank, dtype=np.dtype(np.int64)), dim=x.spec.ndim - 1)

    if interpolation == "nearest":
        return at(elementwise.round(ranks))
    low, high = elementwise.floor(ranks), elementwise.ceil(ranks)
    if interpolation in ("lower", "higher"):
        return at(low if interpolation == "lower" else high)
    return lerp(at(low), at(high), 0.5 if interpolation == "midpoint" else ranks - low)


METHODS = ("diff", "bincount", "quantile")

__all__ = [*METHODS]  # noqa: PLE0604 - strings all
