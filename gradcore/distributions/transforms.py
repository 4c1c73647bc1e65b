"""Invertible functions of random variables, with the names of ``torch.distributions.transforms``."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

from gradcore import functional
from gradcore.distributions import constraints
from gradcore.distributions.distribution import above_zero, broadcast, same_as
from gradcore.distributions.joined import CatTransform, StackTransform
from gradcore.distributions.transform import (
    ComposeTransform,
    IndependentTransform,
    ReshapeTransform,
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


class CorrCholeskyTransform(_Pointwise):
    """A vector of D (D - 1) / 2 numbers to the factor L of a matrix of correlations L L^T [D, D]: by rows, each number's tanh
    takes its share of the row's length, which is 1, of what is left.

    See https://mc-stan.org/docs/reference-manual/transforms.html, Cholesky factors of correlation matrices.
    """

    domain, codomain, bijective = constraints.real_vector, constraints.corr_cholesky, True

    def _call(self, x: Any) -> Any:
        room = float(finfo(x.dtype).eps)
        share = x.tanh().clamp(-1 + room, 1 - room)
        size = self.forward_shape(x.shape)[-1]
        row, column = functional.tril_indices(size, size, -1, device=x.device)
        places = functional.zeros(size, size, dtype=row.dtype, device=x.device)
        places[row, column] = functional.arange(x.shape[-1], device=x.device)
        below = share[..., places].tril(-1) if x.shape[-1] else functional.zeros(self.forward_shape(x.shape), dtype=x.dtype,
                                                                                device=x.device)
        left = (1 - below * below).sqrt().cumprod(-1)
        return (below + functional.eye(size, dtype=x.dtype, device=x.device)) * pad(left[..., :-1], (1, 0), value=1)

    def _transform_below(self, y: Any, offset: int) -> Any:
        """The elements from the diagonal ``offset`` on downwards, by rows."""
        row, column = functional.tril_indices(y.shape[-2], y.shape[-1], offset, device=y.device)
        return y[..., row, column]

    def _inverse(self, y: Any) -> Any:
        left = pad(1 - (y * y).cumsum(-1)[..., :-1], (1, 0), value=1)
        return (self._transform_below(y, -1) / self._transform_below(left, -1).sqrt()).atanh()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        left = self._transform_below(1 - (y * y).cumsum(-1), -2)
        return 0.5 * left.log().sum(-1) - 2 * (x + softplus(-2 * x) - math.log(2)).sum(-1)

    def forward_shape(self, shape: Any) -> Any:
        need_dims(shape, 1)
        size = round((0.25 + 2 * shape[-1]) ** 0.5 + 0.5)
        if size * (size - 1) // 2 != shape[-1]:
            raise ValueError("Input is not a flattened lower-diagonal number")
        return Size((*shape[:-1], size, size))

    def inverse_shape(self, shape: Any) -> Any:
        need_dims(shape, 2)
        if shape[-2] != shape[-1]:
            raise ValueError("Input is not square")
        return Size((*shape[:-2], shape[-1] * (shape[-1] - 1) // 2))


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
    "AbsTransform", "AffineTransform", "CatTransform", "ComposeTransform", "CorrCholeskyTransform", "ExpTransform",
    "IndependentTransform", "LowerCholeskyTransform", "PositiveDefiniteTransform", "PowerTransform", "ReshapeTransform",
    "SigmoidTransform", "SoftmaxTransform", "SoftplusTransform", "StackTransform", "StickBreakingTransform",
    "TanhTransform", "Transform", "identity_transform"]
