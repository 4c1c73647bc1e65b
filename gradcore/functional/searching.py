"""Searching, and what is distinct: ``searchsorted``, ``bucketize``, ``isin``, ``unique`` and ``unique_consecutive``; and
``unravel_index``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore.dtypes import promote
from gradcore.engine.owners import upload
from gradcore.engine.value import Value
from gradcore.errors import DimError, SpecError
from gradcore.functional import shape as sh
from gradcore.functional.folding import sort
from gradcore.ops import creation, elementwise, movement

Tensor = Any

_INT64 = np.dtype(np.int64)


def _like(value: Any, other: Tensor) -> Tensor:
    """A number as a 0-d tensor on the device of ``other``; tensors as they are."""
    return value if isinstance(value, Value) else creation.full(
        value, shape=(), dtype=promote([other.spec, type(value)]), device=other.storage.device)


def searchsorted(sorted_sequence: Tensor, input: Any, *, out_int32: bool = False, right: bool = False,
                 side: str | None = None, sorter: Tensor | None = None) -> Tensor:
    """The number of elements of an ascending sequence that are less than each element of ``input``; with ``right``, at most it.

    The sequence is [n], or [..., n] for an input [..., m]. The result has the input's shape, and dtype int64, or int32 with
    ``out_int32``. ``sorter`` holds the indices that sort a sequence that is not ascending. Bisects in about log2(n) steps of
    six ops, with at most five times the result's memory. Raises :class:`SpecError` for shapes that do not fit.
    """
    if side not in (None, "left", "right"):
        raise SpecError(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise SpecError("torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True")
    sequence, x = sorted_sequence.detach(), _like(input, sorted_sequence).detach()
    shape = sequence.spec.shape
    if len(shape) != 1 and (not shape or shape[:-1] != x.spec.shape[:-1] or len(shape) != x.spec.ndim):
        raise SpecError("torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of "
                        "boundaries tensor and input value tensor must match, but we got boundaries tensor "
                        f"{list(shape)} and input value tensor {list(x.spec.shape)}")
    if sorter is not None:
        if sorter.spec.shape != shape:
            raise SpecError(f"torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor "
                            f"{list(shape)} and got sorter tensor {list(sorter.spec.shape)}")
        sequence = movement.take_along(sequence, sorter, dim=len(shape) - 1, wrap=False)
    dtype = promote([sequence.spec, x.spec])
    found = bisected(movement.cast(sequence, dtype=dtype), movement.cast(x, dtype=dtype), right or side == "right")
    return movement.cast(found, dtype=np.dtype(np.int32)) if out_int32 else found


def bisected(sequence: Tensor, x: Tensor, right: bool) -> Tensor:
    """The number of elements before the first that is not below ``x`` (with ``right``, not above it), by halving.

    NaN counts as larger than every number, so it sorts last.
    """
    n, dim = sequence.spec.shape[-1], sequence.spec.ndim - 1
    passed = creation.full(0, shape=x.spec.shape, dtype=_INT64, device=x.storage.device)
    below = elementwise.le if right else elementwise.lt
    nan = elementwise.isnan(x) if x.spec.floating else None
    # Of the elements after those passed, ``n`` at most may be below. No position is outside, so none need be checked.
    while n:
        half = (n + 1) // 2
        at = passed + (half - 1)
        element = movement.take(sequence, at, dim=0) if dim == 0 else movement.take_along(sequence, at, dim=dim)
        ahead = below(element, x) if nan is None else elementwise.logical_or(below(element, x), nan)
        passed = elementwise.where(ahead, at + 1, passed)
        n -= half
    return passed


def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The index, 0 to n, of the interval between ascending ``boundaries`` [n] that each element lies in.

    A boundary belongs to the interval before it, or with ``right`` to that after it. See :func:`searchsorted` for the cost.
    """
    if boundaries.spec.ndim != 1:
        raise SpecError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.spec.ndim})")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each of ``elements`` is among ``test_elements``, or with ``invert`` is not; one of the two may be a number.

    ``test_elements`` are sorted and searched by :func:`searchsorted`, which needs memory proportional to the sum of the two
    sizes, not to their product. ``assume_unique`` has no effect.
    """
    elements, others = (v.detach() if isinstance(v, Value) else v  # type: ignore[attr-defined]
                        for v in (elements, test_elements))
    tensors: list[Any] = [v for v in (elements, others) if isinstance(v, Value)]
    if not tensors:
        raise TypeError(f"isin takes a tensor and a number, or two tensors, but got {elements!r} and {test_elements!r}")
    if any(v.spec.dtype.kind == "b" for v in tensors):
        raise SpecError("Unsupported input type encountered for isin(): Bool")
    if len(tensors) == 1:
        # As it is: small integers may not hold the number.
        found = elementwise.eq(tensors[0], others if tensors[0] is elements else elements)
        found = found if tensors[0] is elements else found.any()
    elif others.spec.numel == 1:
        found = elementwise.eq(sh.unsqueeze(elements, -1), sh.reshape(others, -1)).any(-1)
    elif not others.spec.numel:
        found = creation.full(False, shape=elements.spec.shape, dtype=np.dtype(np.bool_), device=elements.storage.device)
    else:
        dtype = promote([elements.spec, others.spec])
        elements, rising = movement.cast(elements, dtype=dtype), sort(movement.cast(sh.reshape(others, -1), dtype=dtype)).values
        at = elementwise.clamp(bisected(rising, elements, False), None, rising.spec.numel - 1)
        found = elementwise.eq(movement.take(rising, at, dim=0), elements)
    return elementwise.logical_not(found) if invert else found


# -- distinct ------------------------------------------------------------------------------------------------------------


def unique(input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
           dim: int | None = None) -> Any:
    """The distinct elements, in ascending order, or the distinct slices of ``dim``; the values are read on the host.

    ``return_inverse`` adds the index of each element's value in the result, ``return_counts`` how often each value occurs;
    both are int64.
    """
    values = sh.decisive("unique", input)
    axis = None if dim is None else sh.dim_of(dim, input)
    if dim is not None and not input.spec.ndim:
        raise DimError(f"unique: dim={dim} is given for a 0-d tensor, which has no dimensions: leave it out")
    # NumPy sorts NaNs of bfloat16, which it does not know as a float, anywhere.
    plain = values.astype(np.float32) if input.spec.dtype.kind == "V" else values
    found, inverse, counts = np.unique(plain, return_inverse=True, return_counts=True, axis=axis, equal_nan=False)
    inverse = inverse.reshape(input.spec.shape if axis is None else -1)
    return _wanted("unique", input, found.astype(values.dtype), (inverse, return_inverse), (counts, return_counts))


def _wanted(name: str, input: Tensor, found: Any, *others: tuple[Any, bool]) -> Any:
    """A result on the device of ``input``, with those of the others that are wanted."""
    made = [upload(np.asarray(a, order="C"), input.storage.device, op=name, role="output")
            for a in (found, *(a for a, wanted in others if wanted))]
    return made[0] if len(made) == 1 else tuple(made)


def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False,
                       dim: int | None = None) -> Any:
    """The elements, or the slices of ``dim``, without those equal to the one before; the values are read on the host.

    ``return_inverse`` adds the index in the result of each element, ``return_counts`` the length of each run; both are int64.
    """
    values = sh.decisive("unique_consecutive", input)
    rows = values.reshape(-1) if dim is None else np.moveaxis(values, sh.dim_of(dim, input), 0)
    flat = rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))
    first = np.ones(len(flat), np.bool_)
    first[1:] = (flat[1:] != flat[:-1]).any(1)
    starts = np.flatnonzero(first)
    inverse = (np.cumsum(first) - 1).reshape(values.shape if dim is None else -1)
    kept = rows[starts] if dim is None else np.moveaxis(rows[starts], 0, sh.dim_of(dim, input))
    counts = np.diff(starts, append=len(flat))
    return _wanted("unique_consecutive", input, kept, (inverse, return_inverse), (counts, return_counts))


def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """The coordinates, in a tensor of this shape, of indices into its elements in order: an int64 tensor for each dimension.

    Indices beyond the elements start from the first again. Raises TypeError for indices or sizes that are not integers, and
    ValueError for a negative size.
    """
    if indices.spec.dtype.kind not in "iu":
        raise TypeError(f"expected 'indices' to be integer dtype, but got torch.{indices.spec.dtype.name}")
    shape = sh.plain(shape)
    if not isinstance(shape, (int, Sequence)):
        raise TypeError(f"expected 'shape' to be int or sequence of ints, but got {type(shape)}")
    sizes = (shape,) if isinstance(shape, int) else tuple(map(sh.plain, shape))
    for size in sizes:
        if not isinstance(size, int):
            raise TypeError(f"expected 'shape' sequence to only contain ints, but got {type(size)}")
    if any(size < 0 for size in sizes):
        raise ValueError(f"'shape' cannot have negative values, but got {sizes}")
    rest, found = movement.cast_to(indices, indices.spec.like(_INT64)), []
    for size in reversed(sizes):
        found.append(elementwise.remainder(rest, size))
        rest = elementwise.floor_divide(rest, size) if len(found) < len(sizes) else rest
    return tuple(reversed(found))


METHODS = "isin unique unique_consecutive".split()

__all__ = [*METHODS, "bucketize", "searchsorted", "unravel_index"]  # noqa: PLE0604 - strings all
