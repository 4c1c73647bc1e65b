"""Strided views as ONNX nodes: from a contiguous tensor to the elements that a spec shows.

ONNX has no strides. They are read as digits of a position in mixed radix: if each dimension stays within a digit, the view is a
reshape, a slice and a transposition. Other views, such as overlapping windows, become a gather by position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gradcore.onnx.graph import Graph, Value
from gradcore.spec import TensorSpec, contiguous_strides

#: The end of a slice that goes backwards to the first element.
_BEFORE = -(1 << 62)


def view(g: Graph, x: Value, spec: TensorSpec) -> Value:
    """The view by ``spec`` of the memory of ``x``, which is contiguous."""
    total = math.prod(x.shape)
    if spec.numel == total and spec.contiguous and not spec.offset:
        return g.reshape(x, spec.shape)
    kept = [d for d, (n, s) in enumerate(zip(spec.shape, spec.strides, strict=True)) if n != 1 and s != 0]
    # In memory order.
    order = sorted(kept, key=lambda d: -abs(spec.strides[d]))
    found = None
    if spec.numel:
        # First by the dimensions of x: then no number depends on one that the view shows whole, such as a batch.
        for units in (contiguous_strides(x.shape), [abs(spec.strides[d]) for d in order]):
            found = _digits(g, x, spec, order, units) if found is None else found
    if found is None:
        places = positions(spec)
        return g.node("Gather", g.reshape(x, (total,)), g.constant(places), shape=places.shape, axis=0)
    found = g.transpose(found, [order.index(d) for d in kept])
    return g.expand(g.reshape(found, tuple(n if d in kept else 1 for d, n in enumerate(spec.shape))), spec.shape)


def _digits(g: Graph, x: Value, spec: TensorSpec, order: Sequence[int], units: Sequence[int]) -> Value | None:
    """The dimensions ``order`` of the view, by a reshape and a slice, if each is a range of one digit; else None."""
    total = math.prod(x.shape)
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
    return g.reshape(g.slice(g.reshape(x, tuple(radix)), parts), tuple(spec.shape[d] for d in order))


def positions(spec: TensorSpec) -> np.ndarray[Any, Any]:
    """The position of each element from the start of the storage, in the spec's shape."""
    found = np.full(spec.shape, spec.offset, np.int64)
    for d, (n, s) in enumerate(zip(spec.shape, spec.strides, strict=True)):
        found += (np.arange(n) * s).reshape(-1, *[1] * (spec.ndim - d - 1))
    return found
