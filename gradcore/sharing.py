"""Whether two views of one storage share bytes."""

from __future__ import annotations

import functools
from itertools import accumulate

from gradcore.spec import TensorSpec

#: Combinations of indices that are tried before two views count as sharing elements.
_TRIES = 1000


def same_places(a: TensorSpec, b: TensorSpec) -> bool:
    """Are the elements of ``b``, broadcast to the shape of ``a``, in the same places as those of ``a``?"""
    one, two = ([(n, s) for n, s in zip(x.shape, x.strides, strict=True) if n != 1] for x in (a, b))
    return a.offset == b.offset and one == two


@functools.lru_cache(4096)
def share_elements(a: TensorSpec, b: TensorSpec) -> bool:
    """Do two views of one storage share an element? True also if it would take long to find out."""
    (first, end), (other_first, other_end) = a.span, b.span
    if end <= other_first or other_end <= first:
        return False
    if a.dtype != b.dtype:
        return share_elements(_in_bytes(a), _in_bytes(b))
    if min((*a.strides, *b.strides), default=0) < 0:
        return True
    # a.offset + sum(stride * i) = b.offset + sum(stride * j): for each stride, what i - j can be.
    ranges: dict[int, tuple[int, int]] = {}
    for x, sign in ((a, 1), (b, -1)):
        for n, stride in zip(x.shape, x.strides, strict=True):
            low, high = ranges.get(stride, (0, 0))
            ranges[stride] = (low, high + n - 1) if sign > 0 else (low - n + 1, high)
    strides = sorted(s for s in ranges if s)
    # How far the smaller strides reach together.
    lows, highs = ([0, *accumulate(s * ranges[s][side] for s in strides)] for side in (0, 1))
    left = [_TRIES]

    def found(k: int, rest: int) -> bool:
        if k < 0:
            return rest == 0
        stride, (low, high) = strides[k], ranges[strides[k]]
        for i in range(max(low, -((highs[k] - rest) // stride)), min(high, (rest - lows[k]) // stride) + 1):
            left[0] -= 1
            if left[0] < 0 or found(k - 1, rest - i * stride):
                return True
        return False

    return found(len(strides) - 1, b.offset - a.offset)


def _in_bytes(x: TensorSpec) -> TensorSpec:
    size = x.dtype.itemsize
    return TensorSpec.strided((*x.shape, size), "uint8", (*(s * size for s in x.strides), 1), x.offset * size)
