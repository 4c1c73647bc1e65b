"""Transforms that apply others to parts of a tensor: ``StackTransform`` and ``CatTransform``."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any

from gradcore import functional
from gradcore.distributions import constraints
from gradcore.distributions.distribution import summed
from gradcore.distributions.transform import Transform


class StackTransform(Transform):
    """A transform for each part along ``dim``: y = stack([f_i(x_i)])."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        if not all(isinstance(t, Transform) for t in tseq):
            raise AssertionError("All elements of tseq must be Transform instances")
        super().__init__(cache_size)
        self.transforms, self.dim = [t.with_cache(cache_size) if cache_size else t for t in tseq], dim

    def _transform_with_cache(self, cache_size: int) -> Any:
        return StackTransform(self.transforms, self.dim, cache_size)

    bijective = property(lambda self: all(t.bijective for t in self.transforms))
    domain = constraints.dependent_property(
        lambda self: constraints.stack([t.domain for t in self.transforms], self.dim))
    codomain = constraints.dependent_property(
        lambda self: constraints.stack([t.codomain for t in self.transforms], self.dim))

    def _transform_parts(self, x: Any) -> list[Any]:
        if not -x.dim() <= self.dim < x.dim():
            raise AssertionError(f"dim {self.dim} out of range for tensor with {x.dim()} dimensions")
        if x.shape[self.dim] != len(self.transforms):
            raise AssertionError(f"x.size({self.dim}) = {x.shape[self.dim]} must equal len(transforms) {len(self.transforms)}")
        return [x.select(self.dim, i) for i in range(len(self.transforms))]

    def _call(self, x: Any) -> Any:
        return functional.stack([t(part) for t, part in zip(self.transforms, self._transform_parts(x), strict=True)], self.dim)

    def _inverse(self, y: Any) -> Any:
        parts = zip(self.transforms, self._transform_parts(y), strict=True)
        return functional.stack([t.inv(part) for t, part in parts], self.dim)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        parts = zip(self.transforms, self._transform_parts(x), self._transform_parts(y), strict=True)
        return functional.stack([t.log_abs_det_jacobian(before, after) for t, before, after in parts], self.dim)


class CatTransform(Transform):
    """A transform for each piece along ``dim``, of so many ``lengths`` (1 each, unless given): y = cat([f_i(x_i)])."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None,
                 cache_size: int = 0) -> None:
        if not all(isinstance(t, Transform) for t in tseq):
            raise AssertionError("All elements of tseq must be Transform instances")
        super().__init__(cache_size)
        self.transforms, self.dim = [t.with_cache(cache_size) if cache_size else t for t in tseq], dim
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise AssertionError(f"lengths ({len(self.lengths)}) must match transforms ({len(self.transforms)})")

    def _transform_with_cache(self, cache_size: int) -> Any:
        return CatTransform(self.transforms, self.dim, self.lengths, cache_size)

    event_dim = property(lambda self: max(t.event_dim for t in self.transforms))
    length = property(lambda self: sum(self.lengths), doc="The size of the dimension that is cut into pieces.")
    bijective = property(lambda self: all(t.bijective for t in self.transforms))
    domain = constraints.dependent_property(
        lambda self: constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths))
    codomain = constraints.dependent_property(
        lambda self: constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths))

    def _transform_parts(self, x: Any) -> list[Any]:
        if not -x.dim() <= self.dim < x.dim():
            raise AssertionError(f"dim {self.dim} out of range for tensor with {x.dim()} dimensions")
        if x.shape[self.dim] != self.length:
            raise AssertionError(f"x.size({self.dim}) = {x.shape[self.dim]} must equal length {self.length}")
        ends = itertools.accumulate(self.lengths)
        return [x.narrow(self.dim, end - n, n) for n, end in zip(self.lengths, ends, strict=True)]

    def _call(self, x: Any) -> Any:
        return functional.cat([t(part) for t, part in zip(self.transforms, self._transform_parts(x), strict=True)], self.dim)

    def _inverse(self, y: Any) -> Any:
        parts = zip(self.transforms, self._transform_parts(y), strict=True)
        return functional.cat([t.inv(part) for t, part in parts], self.dim)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        parts = zip(self.transforms, self._transform_parts(x), self._transform_parts(y), strict=True)
        made = [summed(t.log_abs_det_jacobian(before, after), self.event_dim - t.event_dim) for t, before, after in parts]
        # Pieces of one event add up.
        dim = (self.dim - x.dim() if self.dim >= 0 else self.dim) + self.event_dim
        return functional.cat(made, dim) if dim < 0 else functools.reduce(operator.add, made)
