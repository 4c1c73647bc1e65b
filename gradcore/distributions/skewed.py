"""Continuous distributions that are functions of simpler ones, and Cauchy's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore import functional
from gradcore._random import rand
from gradcore.distributions import constraints
from gradcore.distributions.continuous import Exponential, LocationScale, Normal, Uniform
from gradcore.distributions.distribution import broadcast, filled, same_as
from gradcore.distributions.transformed import TransformedDistribution
from gradcore.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ExpTransform,
    PowerTransform,
    StickBreakingTransform,
)
from gradcore.functional.types import finfo


class LogNormal(TransformedDistribution):
    """exp(x) of x that is normally distributed with mean ``loc`` and standard deviation ``scale``.

    The density is exp(-(log y - loc)^2 / (2 scale^2)) / (y scale sqrt(2 pi)).
    """

    arg_constraints, support, has_rsample = LocationScale.arg_constraints, constraints.positive, True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(loc, scale, validate_args=validate_args), ExpTransform(), validate_args)

    loc = same_as("base_dist.loc")
    scale = same_as("base_dist.scale")
    mean = property(lambda self: (self.loc + self.scale.square() / 2).exp())
    mode = property(lambda self: (self.loc - self.scale.square()).exp())

    @property
    def variance(self) -> Any:
        square = self.scale.square()
        return functional.expm1(square) * (2 * self.loc + square).exp()

    def entropy(self) -> Any:
        return self.base_dist.entropy() + self.loc


class Gumbel(TransformedDistribution):
    """loc - scale * log(-log(u)) of a uniform u: the distribution of maxima, with density exp(-z - exp(-z)) / scale.

    z is (y - loc) / scale.
    """

    arg_constraints, support = LocationScale.arg_constraints, constraints.real
    _dist_shown = ("loc", "scale")

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast(loc, scale)
        ends = finfo(self.loc.dtype)
        base = Uniform(filled(self.loc, float(ends.tiny)), filled(self.loc, 1 - float(ends.eps)), validate_args=validate_args)
        super().__init__(base, [ExpTransform().inv, AffineTransform(0, -1.0), ExpTransform().inv,
                                AffineTransform(self.loc, -self.scale)], validate_args)

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        y = (self.loc - value) / self.scale
        return y - y.exp() - self.scale.log()

    mean = property(lambda self: self.loc + self.scale * np.euler_gamma)
    mode = same_as("loc")
    stddev = property(lambda self: (math.pi / math.sqrt(6)) * self.scale)
    variance = property(lambda self: self.stddev.square())

    def entropy(self) -> Any:
        return self.scale.log() + (1 + np.euler_gamma)


class Cauchy(LocationScale):
    """The Cauchy distribution, with density 1 / (pi scale (1 + ((x - loc) / scale)^2)), which has no mean."""

    mean = property(lambda self: filled(self.loc, math.nan))
    variance = property(lambda self: filled(self.loc, math.inf))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        u = self._dist_drawn(rand, self.loc, sample_shape)
        return self.loc + functional.tan(math.pi * (u - 0.5)) * self.scale

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        return -math.log(math.pi) - self.scale.log() - functional.log1p(((value - self.loc) / self.scale).square())

    def cdf(self, value: Any) -> Any:
        self._dist_check_value(value)
        return ((value - self.loc) / self.scale).arctan() / math.pi + 0.5

    def icdf(self, value: Any) -> Any:
        return functional.tan(math.pi * (value - 0.5)) * self.scale + self.loc

    def entropy(self) -> Any:
        return math.log(4 * math.pi) + self.scale.log()


class _Half(TransformedDistribution):
    """The absolute value of a variable that is symmetric about 0: twice its density, from 0 on."""

    arg_constraints, support, has_rsample = {"scale": constraints.positive}, constraints.nonnegative, True

    scale = same_as("base_dist.scale")
    mode = property(lambda self: functional.zeros_like(self.scale))

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        return functional.where(value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf)

    def cdf(self, value: Any) -> Any:
        self._dist_check_value(value)
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, value: Any) -> Any:
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Any:
        return self.base_dist.entropy() - math.log(2)


class HalfNormal(_Half):
    """\\|x\\| of x that is normally distributed about 0: density sqrt(2 / pi) exp(-y^2 / (2 scale^2)) / scale for y >= 0."""

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(0, scale, validate_args=False), AbsTransform(), validate_args)

    mean = property(lambda self: self.scale * math.sqrt(2 / math.pi))
    variance = property(lambda self: self.scale.square() * (1 - 2 / math.pi))


class HalfCauchy(_Half):
    """\\|x\\| of x of a Cauchy distribution about 0: density 2 / (pi scale (1 + (y / scale)^2)) for y >= 0."""

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Cauchy(0, scale, validate_args=False), AbsTransform(), validate_args)

    mean = property(lambda self: filled(self.scale, math.inf))
    variance = same_as("base_dist.variance")


class Weibull(TransformedDistribution):
    """scale * x^(1 / concentration) of x that is exponentially distributed with rate 1.

    The density is (c / scale) (y / scale)^(c - 1) exp(-(y / scale)^c) with c the ``concentration``.
    """

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive
    _dist_shown = ("scale", "concentration")

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast(scale, concentration)
        self.concentration_reciprocal = self.concentration.reciprocal()
        super().__init__(Exponential(functional.ones_like(self.scale), validate_args=validate_args),
                         [PowerTransform(self.concentration_reciprocal), AffineTransform(0, self.scale)], validate_args)

    def _dist_moment(self, n: int) -> Any:
        return (1 + n * self.concentration_reciprocal).lgamma()

    mean = property(lambda self: self.scale * self._dist_moment(1).exp())

    @property
    def mode(self) -> Any:
        return self.scale * ((self.concentration - 1) / self.concentration).pow(self.concentration_reciprocal)

    variance = property(lambda self: self.scale.square() * (self._dist_moment(2).exp() - (2 * self._dist_moment(1)).exp()))

    def entropy(self) -> Any:
        reciprocal = self.concentration_reciprocal
        return np.euler_gamma * (1 - reciprocal) + (self.scale * reciprocal).log() + 1


class Pareto(TransformedDistribution):
    """scale * exp(x) of x that is exponentially distributed with rate ``alpha``.

    The density is alpha scale^alpha / y^(alpha + 1) for y >= scale.
    """

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}
    _dist_shown = ("alpha", "scale")

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast(scale, alpha)
        super().__init__(Exponential(self.alpha, validate_args=validate_args), [ExpTransform(), AffineTransform(0, self.scale)],
                         validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Any:
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    mode = same_as("scale")

    @property
    def variance(self) -> Any:
        a = self.alpha.clamp(min=2)
        return self.scale.square() * a / ((a - 1).square() * (a - 2))

    def entropy(self) -> Any:
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())


class LogisticNormal(TransformedDistribution):
    """Probabilities of n + 1 categories, from n normally distributed ones of mean ``loc`` and deviation ``scale``.

    :class:`StickBreakingTransform` makes the one of the other.
    """

    arg_constraints, support, has_rsample = LocationScale.arg_constraints, constraints.simplex, True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base: Any = Normal(loc, scale, validate_args=validate_args)
        super().__init__(base if base.batch_shape else base.expand([1]), StickBreakingTransform(), validate_args)

    loc = same_as("base_dist.base_dist.loc")
    scale = same_as("base_dist.base_dist.scale")
