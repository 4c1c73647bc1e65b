"""Transforms that apply others to parts of a tensor: ``StackTransform`` and ``CatTransform``."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from gradcore import functional
from gradcore.distributions import constraints
from gradcore.distributions.distribution import summed
from gradcore.distributions.transform import Transform


class _Joined(Transform):
    """A transform for each part along ``dim``. Subclasses cut a tensor into parts, and say what joins them."""

    #: Of parts, along a dimension.
    _transform_join: Callable[[list[Any], int], Any]

    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int) -> None:
        if not all(isinstance(t, Transform) for t in tseq):
            raise AssertionError("All elements of tseq must be Transform instances")
        super().__init__(cache_size)
        self.transforms, self.dim = [t.with_cache(cache_size) if cache_size else t for t in tseq], dim

    bijective = property(lambda self: all(t.bijective for t in self.transforms))

    def _transform_parts(self, x: Any) -> list[Any]:
        raise NotImplementedError

    def _transform_in_range(self, x: Any) -> None:
        if not -x.dim() <= self.dim < x.dim():
            raise AssertionError(f"dim {self.dim} out of range for tensor with {x.dim()} dimensions")

    def _call(self, x: Any) -> Any:
        parts = zip(self.transforms, self._transform_parts(x), strict=True)
        return self._transform_join([t(part) for t, part in parts], self.dim)

    def _inverse(self, y: Any) -> Any:
        parts = zip(self.transforms, self._transform_parts(y), strict=True)
        return self._transform_join([t.inv(part) for t, part in parts], self.dim)

    def _transform_determinants(self, x: Any, y: Any) -> list[tuple[Transform, Any]]:
        parts = zip(self.transforms, self._transform_parts(x), self._transform_parts(y), strict=True)
        return [(t, t.log_abs_det_jacobian(before, after)) for t, before, after in parts]


class StackTransform(_Joined):
    """A transform for each part along ``dim``: y = stack([f_i(x_i)])."""

    _transform_join = staticmethod(functional.stack)

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)

    def _transform_with_cache(self, cache_size: int) -> Any:
        return StackTransform(self.transforms, self.dim, cache_size)

    domain = constraints.dependent_property(
        lambda self: constraints.stack([t.domain for t in self.transforms], self.dim))
    codomain = constraints.dependent_property(
        lambda self: constraints.stack([t.codomain for t in self.transforms], self.dim))

    def _transform_parts(self, x: Any) -> list[Any]:
        self._transform_in_range(x)
        if x.shape[self.dim] != len(self.transforms):
            raise AssertionError(f"x.size({self.dim}) = {x.shape[self.dim]} must equal len(transforms) {len(self.transforms)}")
        return [x.select(self.dim, i) for i in range(len(self.transforms))]

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return functional.stack([made for _, made in self._transform_determinants(x, y)], self.dim)


class CatTransform(_Joined):
    """A transform for each piece along ``dim``, of so many ``lengths`` (1 each, unless given): y = cat([f_i(x_i)])."""

    _transform_join = staticmethod(functional.cat)

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None,
                 cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise AssertionError(f"lengths ({len(self.lengths)}) must match transforms ({len(self.transforms)})")

    def _transform_with_cache(self, cache_size: int) -> Any:
        return CatTransform(self.transforms, self.dim, self.lengths, cache_size)

    event_dim = property(lambda self: max(t.event_dim for t in self.transforms))
    length = property(lambda self: sum(self.lengths), doc="The size of the dimension that is cut into pieces.")
    domain = constraints.dependent_property(
        lambda self: constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths))
    codomain = constraints.dependent_property(
        lambda self: constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths))

    def _transform_parts(self, x: Any) -> list[Any]:
        self._transform_in_range(x)
        if x.shape[self.dim] != self.length:
            raise AssertionError(f"x.size({self.dim}) = {x.shape[self.dim]} must equal length {self.length}")
        ends = itertools.accumulate(self.lengths)
        return [x.narrow(self.dim, end - n, n) for n, end in zip(self.lengths, ends, strict=True)]

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        made = [summed(found, self.event_dim - t.event_dim) for t, found in self._transform_determinants(x, y)]
        # Pieces of one event add up.
        dim = (self.dim - x.dim() if self.dim >= 0 else self.dim) + self.event_dim
        return functional.cat(made, dim) if dim < 0 else functools.reduce(operator.add, made)
