"""Strided views as ONNX nodes: the steps from a contiguous tensor to the elements that a spec shows.

ONNX has no strides. They are read as digits of a position in mixed radix: if each dimension stays within a digit, the view is a
reshape, a slice and a transposition. Other views, such as overlapping windows, become a gather by position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gradcore.spec import TensorSpec, contiguous_strides

Shape = tuple[int, ...]

#: The end of a slice that goes backwards to the first element.
_BEFORE = -(1 << 62)


class Reshape(NamedTuple):
    shape: Shape


class Slice(NamedTuple):
    """A slice: start, end and step along every dimension, as ONNX counts them."""

    parts: tuple[tuple[int, int, int], ...]


class Transpose(NamedTuple):
    perm: Shape


class Expand(NamedTuple):
    shape: Shape


class Gather(NamedTuple):
    """A gather of elements by their positions in the flattened tensor."""

    positions: Any


Step = Reshape | Slice | Transpose | Expand | Gather


def steps_of(shape: Shape, spec: TensorSpec) -> list[Step]:
    """The steps, in order, from a contiguous tensor of ``shape`` to the view of its memory by ``spec``."""
    total = math.prod(shape)
    if spec.numel == total and spec.contiguous and not spec.offset:
        return [] if shape == spec.shape else [Reshape(spec.shape)]
    kept = [d for d, (n, s) in enumerate(zip(spec.shape, spec.strides, strict=True)) if n != 1 and s != 0]
    # In memory order.
    order = sorted(kept, key=lambda d: -abs(spec.strides[d]))
    steps = None
    if spec.numel:
        for units in ([abs(spec.strides[d]) for d in order], list(contiguous_strides(shape))):
            steps = steps or _digits(shape, spec, order, units)
    if steps is None:
        return [Reshape((total,)), Gather(positions(spec))]
    perm = tuple(order.index(d) for d in kept)
    if perm != tuple(range(len(perm))):
        steps.append(Transpose(perm))
    narrow = tuple(n if d in kept else 1 for d, n in enumerate(spec.shape))
    if narrow != tuple(spec.shape[d] for d in kept):
        steps.append(Reshape(narrow))
    return steps if narrow == spec.shape else [*steps, Expand(spec.shape)]


def _digits(shape: Shape, spec: TensorSpec, order: Sequence[int], units: Sequence[int]) -> list[Step] | None:
    """Reshape and slice to the dimensions ``order``, if each is a range of one digit; else None."""
    total = math.prod(shape)
    scale = sorted({u for u in units if u} | {1}, reverse=True)
    radix = [total // scale[0], *[a // b for a, b in pairwise(scale)]]
    if math.prod(radix) != total or any(a % b for a, b in pairwise([total, *scale])):
        return None
    first = spec.offset + sum((spec.shape[d] - 1) * spec.strides[d] for d in order if spec.strides[d] < 0)
    digits = []
    for unit in scale:
        digits.append(first // unit)
        first %= unit
    parts = [(c, c + 1, 1) for c in digits]
    used: list[int] = []
    for d in order:
        n, stride = spec.shape[d], abs(spec.strides[d])
        k = next(k for k, unit in enumerate(scale) if stride % unit == 0)
        step, start = stride // scale[k], digits[k]
        last = start + (n - 1) * step
        if last >= radix[k] or (used and k <= used[-1]):
            return None
        used.append(k)
        parts[k] = (start, last + 1, step) if spec.strides[d] > 0 else (last, start - 1 if start else _BEFORE, -step)
    steps: list[Step] = []
    now = tuple(radix)
    if now != shape:
        steps.append(Reshape(now))
    if any(part != (0, n, 1) for part, n in zip(parts, radix, strict=True)):
        steps.append(Slice(tuple(parts)))
        now = tuple(len(range(n)[slice(a, None if b == _BEFORE else b, s)]) for n, (a, b, s) in zip(radix, parts, strict=True))
    sizes = tuple(spec.shape[d] for d in order)
    return steps if now == sizes else [*steps, Reshape(sizes)]


def positions(spec: TensorSpec) -> np.ndarray[Any, Any]:
    """The position of each element from the start of the storage, in the spec's shape."""
    found = np.full(spec.shape, spec.offset, np.int64)
    for d, (n, s) in enumerate(zip(spec.shape, spec.strides, strict=True)):
        found += (np.arange(n) * s).reshape(-1, *[1] * (spec.ndim - d - 1))
    return found
