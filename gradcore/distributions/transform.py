"""The base of transforms, and transforms that are made of others or only move elements."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Sequence
from typing import Any

from gradcore import functional
from gradcore.distributions import constraints
from gradcore.distributions.distribution import same_as, summed
from gradcore.spec import Size


class Transform:
    """Base class: ``t(x)`` is y = f(x), ``t.inv(y)`` is x, and ``t.log_abs_det_jacobian(x, y)`` is log \\|det dy/dx\\|.

    A transform defines ``_call``, ``_inverse`` and ``log_abs_det_jacobian``. With ``cache_size=1`` it keeps its last x and y,
    so that the inverse of the y that it computed is that x, without an op and without rounding.
    Raises ValueError for another size.
    """

    bijective: Any = False
    domain: Any = constraints.real
    codomain: Any = constraints.real
    #: Its methods read its attributes, all of which a compiled function that uses one is guarded by.
    _compile_reads_whole = True
    #: But for what is made of the others when it is asked for.
    _compile_derived = ("_inv",)

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError("cache_size must be 0 or 1")
        self._cache_size, self._cached_x_y = cache_size, (None, None)
        # Weak, since the inverse holds this: a cycle would keep the tensors of both.
        self._inv: Any = None

    @property
    def event_dim(self) -> int:
        """How many dimensions at the end one value has. Raises ValueError where inputs and outputs differ in that."""
        if self.domain.event_dim != self.codomain.event_dim:
            raise ValueError("Please use either .domain.event_dim or .codomain.event_dim")
        return int(self.domain.event_dim)

    @property
    def inv(self) -> Any:
        """The inverse transform, whose inverse is this one."""
        inv = self._inv and self._inv()
        if inv is None:
            inv = self._transform_inverted()
            self._inv = weakref.ref(inv)
        return inv

    def _transform_inverted(self) -> Transform:
        return _InverseTransform(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_inv": None}

    @property
    def sign(self) -> Any:
        """1 for an increasing function, -1 for a decreasing one."""
        raise NotImplementedError

    def with_cache(self, cache_size: int = 1) -> Any:
        """The same transform with a cache of this size: itself if it has it."""
        return self if self._cache_size == cache_size else self._transform_with_cache(cache_size)

    def _transform_with_cache(self, cache_size: int) -> Any:
        if type(self).__init__ is not Transform.__init__:
            raise NotImplementedError(f"{type(self)}.with_cache is not implemented")
        return type(self)(cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: Any) -> Any:
        if self._cache_size and x is self._cached_x_y[0]:
            return self._cached_x_y[1]
        return self._transform_kept(x, self._call(x))[1]

    def _inv_call(self, y: Any) -> Any:
        if self._cache_size and y is self._cached_x_y[1]:
            return self._cached_x_y[0]
        return self._transform_kept(self._inverse(y), y)[0]

    def _transform_kept(self, x: Any, y: Any) -> tuple[Any, Any]:
        if self._cache_size:
            self._cached_x_y = x, y
        return x, y

    def _call(self, x: Any) -> Any:
        raise NotImplementedError

    def _inverse(self, y: Any) -> Any:
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log \\|det dy/dx\\| for y = f(x), of the shape of x without the dimensions of an event."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def forward_shape(self, shape: Any) -> Any:
        """The shape of f(x) for x of this shape."""
        return shape

    def inverse_shape(self, shape: Any) -> Any:
        """The shape of x for f(x) of this shape."""
        return shape


class _InverseTransform(Transform):
    """The inverse of a transform; the transform keeps the cache."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(transform._cache_size)
        self._of = transform

    domain = same_as("_of.codomain")
    codomain = same_as("_of.domain")
    bijective = same_as("_of.bijective")
    sign = same_as("_of.sign")
    inv = same_as("_of")

    def with_cache(self, cache_size: int = 1) -> Any:
        return self._of.with_cache(cache_size).inv

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InverseTransform) and self._of == other._of

    def __call__(self, x: Any) -> Any:
        return self._of._inv_call(x)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -self._of.log_abs_det_jacobian(y, x)

    def __repr__(self) -> str:
        return f"_InverseTransform({self._of!r})"

    def forward_shape(self, shape: Any) -> Any:
        return self._of.inverse_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
        return self._of.forward_shape(shape)


class ComposeTransform(Transform):
    """Transforms one after the other: y = f_n(... f_2(f_1(x))). The parts keep the caches."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = [part.with_cache(cache_size) for part in parts] if cache_size else list(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        return _reached([(part.codomain, part.domain) for part in reversed(self.parts)])

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:
        return _reached([(part.domain, part.codomain) for part in self.parts])

    bijective = property(lambda self: all(p.bijective for p in self.parts))
    sign = property(lambda self: functools.reduce(operator.mul, (p.sign for p in self.parts), 1))

    def _transform_inverted(self) -> Transform:
        inv = ComposeTransform([p.inv for p in reversed(self.parts)])
        inv._inv = weakref.ref(self)
        return inv

    def _transform_with_cache(self, cache_size: int) -> Any:
        return ComposeTransform(self.parts, cache_size)

    def __call__(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        if not self.parts:
            return functional.zeros_like(x)
        between = [x]
        for part in self.parts[:-1]:
            between.append(part(between[-1]))
        dim, terms = self.domain.event_dim, []
        for part, before, after in zip(self.parts, between, [*between[1:], y], strict=True):
            terms.append(summed(part.log_abs_det_jacobian(before, after), dim - part.domain.event_dim))
            dim += part.codomain.event_dim - part.domain.event_dim
        return functools.reduce(operator.add, terms)

    def forward_shape(self, shape: Any) -> Any:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Any) -> Any:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def __repr__(self) -> str:
        return "ComposeTransform(\n    " + ",\n    ".join(map(repr, self.parts)) + "\n)"


def _reached(steps: list[tuple[Any, Any]]) -> Any:
    """Where steps from one set to another lead: the last set, with the dimensions that all of them together need."""
    if not steps:
        return constraints.real
    dim = steps[0][0].event_dim
    for before, after in steps:
        dim = max(dim + after.event_dim - before.event_dim, after.event_dim)
    return constraints.widened(after, dim - after.event_dim)


def need_dims(shape: Any, least: int) -> None:
    if len(shape) < least:
        raise ValueError("Too few dimensions on input")


class IndependentTransform(Transform):
    """A transform whose last ``reinterpreted_batch_ndims`` batch dimensions belong to the event, whose Jacobians it adds up."""

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.base_transform, self.reinterpreted_batch_ndims = base_transform.with_cache(cache_size), reinterpreted_batch_ndims

    def _transform_with_cache(self, cache_size: int) -> Any:
        return IndependentTransform(self.base_transform, self.reinterpreted_batch_ndims, cache_size)

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    bijective = same_as("base_transform.bijective")
    sign = same_as("base_transform.sign")

    def _call(self, x: Any) -> Any:
        need_dims(x.shape, self.domain.event_dim)
        return self.base_transform(x)

    def _inverse(self, y: Any) -> Any:
        need_dims(y.shape, self.codomain.event_dim)
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return summed(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"IndependentTransform({self.base_transform!r}, {self.reinterpreted_batch_ndims})"

    def forward_shape(self, shape: Any) -> Any:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
        return self.base_transform.inverse_shape(shape)


class ReshapeTransform(Transform):
    """Events of ``in_shape`` as events of ``out_shape``. Raises ValueError if these have different numbers of elements."""

    bijective = True

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0) -> None:
        self.in_shape, self.out_shape = Size(in_shape), Size(out_shape)
        if self.in_shape.numel() != self.out_shape.numel():
            raise ValueError("in_shape, out_shape have different numbers of elements")
        super().__init__(cache_size)

    domain = constraints.dependent_property(lambda self: constraints.independent(constraints.real, len(self.in_shape)))
    codomain = constraints.dependent_property(lambda self: constraints.independent(constraints.real, len(self.out_shape)))

    def _transform_with_cache(self, cache_size: int) -> Any:
        return ReshapeTransform(self.in_shape, self.out_shape, cache_size)

    def _call(self, x: Any) -> Any:
        return x.reshape((*x.shape[:x.dim() - len(self.in_shape)], *self.out_shape))

    def _inverse(self, y: Any) -> Any:
        return y.reshape((*y.shape[:y.dim() - len(self.out_shape)], *self.in_shape))

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return functional.zeros(x.shape[:x.dim() - len(self.in_shape)], dtype=x.dtype, device=x.device)

    def forward_shape(self, shape: Any) -> Any:
        return _changed(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Any) -> Any:
        return _changed(shape, self.out_shape, self.in_shape)


def _changed(shape: Any, event: Size, into: Size) -> Size:
    need_dims(shape, len(event))
    cut = len(shape) - len(event)
    if tuple(shape[cut:]) != tuple(event):
        raise ValueError(f"Shape mismatch: expected {Size(shape[cut:])} but got {event}")
    return Size((*shape[:cut], *into))


identity_transform = ComposeTransform([])
