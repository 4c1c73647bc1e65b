"""The gamma distribution and those made of it; their samples are differentiable with respect to the parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradcore import functional
from gradcore._distributions import standard_gamma
from gradcore._random import randn
from gradcore.distributions import constraints
from gradcore.distributions.continuous import LocationScale
from gradcore.distributions.distribution import Distribution, above_zero, broadcast, same_as
from gradcore.distributions.transformed import TransformedDistribution
from gradcore.distributions.transforms import PowerTransform
from gradcore.functional.types import finfo
from gradcore.nn.functional import one_hot


def _drawn(concentration: Any, shape: Sequence[int]) -> Any:
    return standard_gamma(concentration.expand(shape))


def _above(x: Any, least: float) -> Any:
    """``x``, with another number where it is not above ``least``: what is not chosen there has a slope of 0, and not of NaN."""
    return functional.where(x > least, x, least + 1.0)


class Gamma(Distribution):
    """The gamma distribution: density rate^c x^(c - 1) exp(-rate x) / Gamma(c), with c the ``concentration``."""

    has_rsample = True
    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    _dist_shown: tuple[str, ...] = ("concentration", "rate")

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    mean = property(lambda self: self.concentration / self.rate)
    mode = property(lambda self: ((self.concentration - 1) / self.rate).clamp(min=0))
    variance = property(lambda self: self.concentration / self.rate.square())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return above_zero(_drawn(self.concentration, self._extended_shape(sample_shape)) / self.rate)

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        c = self.concentration
        return c.xlogy(self.rate) + (c - 1).xlogy(value) - self.rate * value - c.lgamma()

    def entropy(self) -> Any:
        c = self.concentration
        return c - self.rate.log() + c.lgamma() + (1 - c) * c.digamma()

    def cdf(self, value: Any) -> Any:
        self._dist_check_value(value)
        return functional.special.gammainc(self.concentration, self.rate * value)


class Chi2(Gamma):
    """The sum of the squares of ``df`` normally distributed variables: Gamma(df / 2, 1 / 2)."""

    arg_constraints = {"df": constraints.positive}
    _dist_shown = ()

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        super().__init__(0.5 * df, 0.5, validate_args=validate_args)

    @property
    def df(self) -> Any:
        """The degrees of freedom."""
        return self.concentration * 2


class InverseGamma(TransformedDistribution):
    """1 / x of x of :class:`Gamma`: density rate^c y^(-c - 1) exp(-rate / y) / Gamma(c), with c the ``concentration``."""

    has_rsample = True
    arg_constraints = Gamma.arg_constraints
    support = constraints.positive

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        base = Gamma(concentration, rate, validate_args=validate_args)
        super().__init__(base, PowerTransform(functional.full_like(base.rate.detach(), -1.0)), validate_args)

    concentration = same_as("base_dist.concentration")
    rate = same_as("base_dist.rate")

    @property
    def mean(self) -> Any:
        c = self.concentration
        return functional.where(c > 1, self.rate / (c - 1), math.inf)

    mode = property(lambda self: self.rate / (self.concentration + 1))

    @property
    def variance(self) -> Any:
        c = self.concentration
        return functional.where(c > 2, self.rate.square() / ((c - 1).square() * (c - 2)), math.inf)

    def entropy(self) -> Any:
        c = self.concentration
        return c + self.rate.log() + c.lgamma() - (1 + c) * c.digamma()


class Dirichlet(Distribution):
    """Probabilities of n categories, of density prod x_i^(c_i - 1) Gamma(sum c) / prod Gamma(c_i), c the ``concentration``.

    A sample is one of gamma distributions over its sum. Raises ValueError for a 0-d ``concentration``.
    """

    has_rsample = True
    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    _dist_shown = ("concentration",)

    def __init__(self, concentration: Any, validate_args: bool | None = None) -> None:
        if concentration.dim() < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        drawn = _drawn(self.concentration, self._extended_shape(sample_shape))
        # Not rounded to 0 or 1, where the density may be infinite.
        return above_zero(drawn / drawn.sum(-1, keepdim=True)).clamp(max=1 - float(finfo(drawn.dtype).eps) / 2)

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        c = self.concentration
        return (c - 1).xlogy(value).sum(-1) + c.sum(-1).lgamma() - c.lgamma().sum(-1)

    mean = property(lambda self: self.concentration / self.concentration.sum(-1, True))

    @property
    def mode(self) -> Any:
        c = self.concentration
        above = (c - 1).clamp(min=0)
        total = above.sum(-1, True)
        # Without any concentration above 1 it is at a corner.
        corner = one_hot((above / total).argmax(-1), c.shape[-1]).to(c.dtype)
        return functional.where((c < 1).all(-1, keepdim=True), corner, above / total)

    @property
    def variance(self) -> Any:
        c, total = self.concentration, self.concentration.sum(-1, True)
        return c * (total - c) / (total.square() * (total + 1))

    def entropy(self) -> Any:
        c = self.concentration
        total, n = c.sum(-1), c.shape[-1]
        return (c.lgamma().sum(-1) - total.lgamma() - (n - total) * total.digamma() - ((c - 1) * c.digamma()).sum(-1))


class Beta(Distribution):
    """The beta distribution on [0, 1]: density x^(a - 1) (1 - x)^(b - 1) / B(a, b).

    a is ``concentration1``, b ``concentration0``.
    """

    has_rsample = True
    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval
    _dist_parts = ("_dirichlet",)

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        pair = functional.stack(broadcast(concentration1, concentration0), -1)
        self._dirichlet = Dirichlet(pair, validate_args=validate_args)
        super().__init__(self._dirichlet.batch_shape, validate_args=validate_args)

    concentration1 = property(lambda self: self._dirichlet.concentration[..., 0], doc="alpha, of shape ``batch_shape``.")
    concentration0 = property(lambda self: self._dirichlet.concentration[..., 1], doc="beta, of shape ``batch_shape``.")
    mean = property(lambda self: self._dirichlet.mean[..., 0])
    mode = property(lambda self: self._dirichlet.mode[..., 0])
    variance = property(lambda self: self._dirichlet.variance[..., 0])

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self._dirichlet.rsample(sample_shape)[..., 0]

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        return self._dirichlet.log_prob(functional.stack([value, 1.0 - value], -1))

    def entropy(self) -> Any:
        return self._dirichlet.entropy()


class StudentT(LocationScale):
    """Student's t distribution with ``df`` degrees of freedom, moved by ``loc`` and stretched by ``scale``."""

    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    _dist_shown = ("df", "loc", "scale")

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, loc, scale = broadcast(df, loc, scale)
        super().__init__(loc, scale, validate_args=validate_args)

    mean = property(lambda self: functional.where(self.df <= 1, math.nan, self.loc))

    @property
    def variance(self) -> Any:
        df, some = self.df, _above(self.df, 2)
        finite = functional.where(df > 2, self.scale.square() * some / (some - 2), math.inf)
        return functional.where(df <= 1, math.nan, finite)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        normal = self._dist_drawn(randn, self.df, sample_shape)
        squares = 2 * _drawn(0.5 * self.df, self._extended_shape(sample_shape))
        return self.loc + self.scale * normal * (squares / self.df).rsqrt()

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        df, y = self.df, (value - self.loc) / self.scale
        norm = self.scale.log() + 0.5 * (df.log() + math.log(math.pi)) + (0.5 * df).lgamma() - (0.5 * (df + 1)).lgamma()
        return -0.5 * (df + 1) * functional.log1p(y.square() / df) - norm

    def entropy(self) -> Any:
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        beta = half.lgamma() + math.lgamma(0.5) - more.lgamma()
        return self.scale.log() + more * (more.digamma() - half.digamma()) + 0.5 * self.df.log() + beta


class FisherSnedecor(Distribution):
    """The ratio of two :class:`Chi2` variables over their degrees of freedom ``df1`` and ``df2``."""

    has_rsample = True
    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    _dist_shown = ("df1", "df2")

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast(df1, df2)
        super().__init__(self.df1.shape, validate_args=validate_args)

    @property
    def mean(self) -> Any:
        some = _above(self.df2, 2)
        return functional.where(self.df2 <= 2, math.nan, some / (some - 2))

    @property
    def mode(self) -> Any:
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return functional.where(self.df1 <= 2, math.nan, found)

    @property
    def variance(self) -> Any:
        a, b = self.df1, _above(self.df2, 4)
        found = 2 * b.square() * (a + b - 2) / (a * (b - 2).square() * (b - 4))
        return functional.where(self.df2 <= 4, math.nan, found)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        one, two = (_drawn(0.5 * df, shape) / df for df in (self.df1, self.df2))
        return above_zero(one / two)

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        a, b, ratio = 0.5 * self.df1, 0.5 * self.df2, self.df1 / self.df2
        norm = (a + b).lgamma() - a.lgamma() - b.lgamma()
        return norm + a * ratio.log() + (a - 1) * value.log() - (a + b) * functional.log1p(ratio * value)
