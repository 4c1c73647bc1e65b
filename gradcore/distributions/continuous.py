"""Continuous distributions, with samples that are differentiable with respect to the parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradcore import functional
from gradcore._random import rand, randn
from gradcore.distributions import constraints
from gradcore.distributions.distribution import Distribution, broadcast, filled, same_as
from gradcore.functional.types import finfo

_LOG_TWO_PI = math.log(2 * math.pi)


class LocationScale(Distribution):
    """Base of distributions that are symmetric about ``loc``, with width ``scale``."""

    has_rsample = True
    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    _dist_shown: tuple[str, ...] = ("loc", "scale")

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    mean = mode = same_as("loc")


class Normal(LocationScale):
    """The normal distribution with mean ``loc`` and standard deviation ``scale``."""

    stddev = same_as("scale")
    variance = property(lambda self: self.scale.square())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.loc + self._dist_drawn(randn, self.loc, sample_shape) * self.scale

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        return -(value - self.loc).square() / (2 * self.scale.square()) - self.scale.log() - _LOG_TWO_PI / 2

    def cdf(self, value: Any) -> Any:
        self._dist_check_value(value)
        return 0.5 * (1 + functional.erf((value - self.loc) / (self.scale * math.sqrt(2))))

    def icdf(self, value: Any) -> Any:
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self) -> Any:
        return 0.5 + 0.5 * _LOG_TWO_PI + self.scale.log()


class Laplace(LocationScale):
    """The Laplace distribution, with density exp(-\\|x - loc\\| / scale) / (2 * scale)."""

    variance = property(lambda self: 2 * self.scale.square())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        u = 0.5 - self._dist_drawn(rand, self.loc, sample_shape)
        # Below 1 in any dtype, since 1 would give log(0).
        away = (2 * u.abs()).clamp(max=1 - float(finfo(u.dtype).eps) / 2)
        return self.loc - self.scale * u.sign() * functional.log1p(-away)

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        return -functional.log(2 * self.scale) - (value - self.loc).abs() / self.scale

    def cdf(self, value: Any) -> Any:
        self._dist_check_value(value)
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * functional.expm1(-away.abs() / self.scale)

    def icdf(self, value: Any) -> Any:
        term = value - 0.5
        return self.loc - self.scale * term.sign() * functional.log1p(-2 * term.abs())

    def entropy(self) -> Any:
        return 1 + functional.log(2 * self.scale)


class Exponential(Distribution):
    """The exponential distribution, with density rate * exp(-rate * x) for x >= 0."""

    has_rsample = True
    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative
    _dist_shown = ("rate",)

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        self.rate, = broadcast(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    mean = property(lambda self: self.rate.reciprocal())
    mode = property(lambda self: functional.zeros_like(self.rate))
    variance = property(lambda self: self.rate.pow(-2))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return -functional.log1p(-self._dist_drawn(rand, self.rate, sample_shape)) / self.rate

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value: Any) -> Any:
        self._dist_check_value(value)
        return 1 - functional.exp(-self.rate * value)

    def icdf(self, value: Any) -> Any:
        return -functional.log1p(-value) / self.rate

    def entropy(self) -> Any:
        return 1 - self.rate.log()


class Uniform(Distribution):
    """The uniform distribution on [low, high)."""

    has_rsample = True
    _dist_shown = ("low", "high")

    @property
    def arg_constraints(self) -> Any:
        return {"low": constraints.less_than(self.high), "high": constraints.greater_than(self.low)}

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.interval(self.low, self.high)

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)

    mean = property(lambda self: (self.high + self.low) / 2)
    mode = property(lambda self: filled(self.high, math.nan))
    variance = property(lambda self: (self.high - self.low).square() / 12)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.low + self._dist_drawn(rand, self.low, sample_shape) * (self.high - self.low)

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        inside = (value >= self.low) & (value < self.high)
        return functional.where(inside, -functional.log(self.high - self.low), -math.inf)

    def cdf(self, value: Any) -> Any:
        self._dist_check_value(value)
        return ((value - self.low) / (self.high - self.low)).clamp(min=0, max=1)

    def icdf(self, value: Any) -> Any:
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Any:
        return functional.log(self.high - self.low)
