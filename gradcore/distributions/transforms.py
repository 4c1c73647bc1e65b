"""Invertible functions of random variables, with the names of ``torch.distributions.transforms``."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

from gradcore import functional
from gradcore.distributions import constraints
from gradcore.distributions.distribution import above_zero, broadcast, same_as
from gradcore.distributions.transform import (
    ComposeTransform,
    IndependentTransform,
    ReshapeTransform,
    StackTransform,
    Transform,
    identity_transform,
    need_dims,
)
from gradcore.functional import linalg
from gradcore.functional.types import finfo
from gradcore.nn.functional import logsigmoid, pad, softplus
from gradcore.spec import Size, broadcast_shapes


class _Pointwise(Transform):
    """A function of each element without parameters; all of its objects are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self))


class ExpTransform(_Pointwise):
    """y = exp(x)."""

    codomain, bijective, sign = constraints.positive, True, 1

    def _call(self, x: Any) -> Any:
        return x.exp()

    def _inverse(self, y: Any) -> Any:
        return y.log()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return x


class SigmoidTransform(_Pointwise):
    """y = 1 / (1 + exp(-x)), kept away from 0 and 1 by the smallest steps of the dtype there."""

    codomain, bijective, sign = constraints.unit_interval, True, 1

    def _call(self, x: Any) -> Any:
        return _inside(x.sigmoid())

    def _inverse(self, y: Any) -> Any:
        y = _inside(y)
        return y.log() - functional.log1p(-y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -softplus(-x) - softplus(x)


def _inside(y: Any) -> Any:
    room = finfo(y.dtype)
    return y.clamp(float(room.tiny), 1 - float(room.eps))


class TanhTransform(_Pointwise):
    """y = tanh(x). With ``cache_size=1`` the inverse of a sample is exact, even where y has been rounded to 1."""

    codomain, bijective, sign = constraints.interval(-1.0, 1.0), True, 1

    def _call(self, x: Any) -> Any:
        return x.tanh()

    def _inverse(self, y: Any) -> Any:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        # log(1 - tanh(x)^2) without the difference, which would be rounded to 0.
        return 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))


class SoftplusTransform(_Pointwise):
    """y = log(1 + exp(x)), which is x for x > 20."""

    codomain, bijective, sign = constraints.positive, True, 1

    def _call(self, x: Any) -> Any:
        return softplus(x)

    def _inverse(self, y: Any) -> Any:
        return (-functional.expm1(-y)).log() + y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -softplus(-x)


class AbsTransform(_Pointwise):
    """y = \\|x\\|, which is no bijection: its inverse is y itself."""

    codomain = constraints.positive

    def _call(self, x: Any) -> Any:
        return x.abs()

    def _inverse(self, y: Any) -> Any:
        return y


class SoftmaxTransform(_Pointwise):
    """y = exp(x), normalized to a sum of 1 along the last dimension. No bijection: its inverse is log(y)."""

    domain, codomain = constraints.real_vector, constraints.simplex

    def _call(self, x: Any) -> Any:
        return functional.softmax(x, -1)

    def _inverse(self, y: Any) -> Any:
        return y.log()


class StickBreakingTransform(_Pointwise):
    """A vector of n numbers to probabilities of n + 1: each breaks the share sigmoid(x_i - log(n - i)) off what is left."""

    domain, codomain, bijective = constraints.real_vector, constraints.simplex, True

    def _transform_log_offset(self, x: Any) -> Any:
        return functional.arange(x.shape[-1], 0, -1, dtype=x.dtype, device=x.device).log()

    def _call(self, x: Any) -> Any:
        share = _inside((x - self._transform_log_offset(x)).sigmoid())
        return pad(share, (0, 1), value=1) * pad((1 - share).cumprod(-1), (1, 0), value=1)

    def _inverse(self, y: Any) -> Any:
        some = y[..., :-1]
        left = above_zero(1 - some.cumsum(-1))
        return some.log() - left.log() + self._transform_log_offset(some)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        x = x - self._transform_log_offset(x)
        return (-x + logsigmoid(x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Any) -> Any:
        need_dims(shape, 1)
        return Size((*shape[:-1], shape[-1] + 1))

    def inverse_shape(self, shape: Any) -> Any:
        need_dims(shape, 1)
        return Size((*shape[:-1], shape[-1] - 1))


class LowerCholeskyTransform(_Pointwise):
    """Square matrices to lower triangles: the diagonal becomes its exp, and what is above it is not read. No bijection."""

    domain, codomain = constraints.independent(constraints.real, 2), constraints.lower_cholesky

    def _call(self, x: Any) -> Any:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Any) -> Any:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class PositiveDefiniteTransform(_Pointwise):
    """Square matrices to L L^T, for the L of a :class:`LowerCholeskyTransform`. No bijection."""

    domain, codomain = constraints.independent(constraints.real, 2), constraints.positive_definite

    def _call(self, x: Any) -> Any:
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: Any) -> Any:
        return LowerCholeskyTransform().inv(linalg.cholesky(y))


class AffineTransform(Transform):
    """y = loc + scale * x, of numbers or tensors; the last ``event_dim`` dimensions are one event."""

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    event_dim = same_as("_event_dim")

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        return constraints.widened(constraints.real, self._event_dim)

    codomain = domain

    def _transform_with_cache(self, cache_size: int) -> Any:
        return AffineTransform(self.loc, self.scale, self._event_dim, cache_size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AffineTransform) and _same(self.loc, other.loc) and _same(self.scale, other.scale)

    @property
    def sign(self) -> Any:
        if isinstance(self.scale, Number):
            return int(self.scale > 0) - int(self.scale < 0)  # type: ignore[operator]
        return self.scale.sign()

    def _call(self, x: Any) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: Any) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        shape, scale = x.shape, self.scale
        result = functional.full_like(x, math.log(abs(scale))) if isinstance(scale, Number) else scale.abs().log()  # type: ignore[arg-type]
        if self._event_dim:
            result = result.reshape(*result.shape[:-self._event_dim], -1).sum(-1)
            shape = shape[:-self._event_dim]
        return result.expand(*shape) if shape else result

    def forward_shape(self, shape: Any) -> Any:
        return Size(broadcast_shapes(tuple(shape), *(tuple(getattr(v, "shape", ())) for v in (self.loc, self.scale))))

    inverse_shape = forward_shape


class PowerTransform(Transform):
    """y = x ** exponent, for positive x."""

    domain, codomain, bijective = constraints.positive, constraints.positive, True

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent, = broadcast(exponent)

    def _transform_with_cache(self, cache_size: int) -> Any:
        return PowerTransform(self.exponent, cache_size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and _same(self.exponent, other.exponent)

    sign = property(lambda self: self.exponent.sign())

    def _call(self, x: Any) -> Any:
        return x.pow(self.exponent)

    def _inverse(self, y: Any) -> Any:
        return y.pow(1 / self.exponent)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return (self.exponent * y / x).abs().log()

    def forward_shape(self, shape: Any) -> Any:
        return Size(broadcast_shapes(tuple(shape), tuple(self.exponent.shape)))

    inverse_shape = forward_shape


def _same(a: Any, b: Any) -> bool:
    """Are two parameters equal? Tensors are read from the device unless they are the same one."""
    if a is b:
        return True
    return bool(a == b if isinstance(a, Number) and isinstance(b, Number) else (a == b).all().item())


__all__ = [
    "AbsTransform", "AffineTransform", "ComposeTransform", "ExpTransform", "IndependentTransform", "LowerCholeskyTransform",
    "PositiveDefiniteTransform", "PowerTransform", "ReshapeTransform", "SigmoidTransform", "SoftmaxTransform",
    "SoftplusTransform", "StackTransform", "StickBreakingTransform", "TanhTransform", "Transform", "identity_transform"]
