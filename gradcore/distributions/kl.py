"""Kullback-Leibler divergences between distributions, by their types."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gradcore import functional
from gradcore.distributions.continuous import Exponential, Laplace, Normal, Uniform
from gradcore.distributions.counts import Binomial, Geometric, Poisson
from gradcore.distributions.discrete import Bernoulli, Categorical
from gradcore.distributions.distribution import Distribution, filled, summed
from gradcore.distributions.gammas import Beta, Dirichlet, Gamma
from gradcore.distributions.joint import Independent, MultivariateNormal, solve_lower
from gradcore.distributions.one_hot import OneHotCategorical
from gradcore.distributions.skewed import Cauchy, Gumbel, Pareto
from gradcore.distributions.transformed import TransformedDistribution
from gradcore.functional import linalg

#: By types of p and q.
_REGISTRY: dict[tuple[type, type], Callable[[Any, Any], Any]] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Any], Any]:
    """A decorator of functions of p and q that makes them the divergence of distributions of these types and their subclasses.

    Raises TypeError for a type that is no distribution.
    """
    for name, kind in (("type_p", type_p), ("type_q", type_q)):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise TypeError(f"Expected {name} to be a Distribution subclass but got {kind}")

    def registered(function: Any) -> Any:
        _REGISTRY[type_p, type_q] = function
        _find.cache_clear()
        return function

    return registered


def kl_divergence(p: Distribution, q: Distribution) -> Any:
    """The Kullback-Leibler divergence E_p[log p(x) - log q(x)] in nats, of shape ``batch_shape``.

    Raises NotImplementedError for distributions of types without a formula here.
    """
    kinds: Any = type(p), type(q)
    function = _find(*kinds)
    if function is None:
        raise NotImplementedError(f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}")
    return function(p, q)


# Not of all: classes may be made anew in each step, and would stay.
@lru_cache(maxsize=1024)
def _find(p: type, q: type) -> Callable[[Any, Any], Any] | None:
    """The function of the nearest base classes, those of p first; warns if those of q first are others."""
    def distance(kinds: tuple[type, type]) -> tuple[int, int]:
        return p.__mro__.index(kinds[0]), q.__mro__.index(kinds[1])

    fitting = [kinds for kinds in _REGISTRY if issubclass(p, kinds[0]) and issubclass(q, kinds[1])]
    if not fitting:
        return None
    first, second = min(fitting, key=distance), min(fitting, key=lambda kinds: distance(kinds)[::-1])
    if _REGISTRY[first] is not _REGISTRY[second]:
        warnings.warn(f"Ambiguous kl_divergence({p.__name__}, {q.__name__}). Please register_kl({first[0].__name__}, "
                      f"{second[1].__name__})", RuntimeWarning, stacklevel=3)
    return _REGISTRY[first]


# -- of two of a kind ----------------------------------------------------------------------------------------------------


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Any:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log())


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Any:
    ratio, distance = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + distance / q.scale + ratio * functional.exp(-distance / p.scale) - 1


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Any:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Any:
    softplus = functional.softplus
    one = _weighted(p.probs, q.probs, softplus(-q.logits) - softplus(-p.logits))
    return one + _weighted(1 - p.probs, 1 - q.probs, softplus(q.logits) - softplus(p.logits))


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Any:
    return _weighted(p.probs, q.probs, p.logits - q.logits).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Any:
    return _categorical(p._categorical, q._categorical)


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Any:
    inside = (q.low <= p.low) & (q.high >= p.high)
    return functional.where(inside, ((q.high - q.low) / (p.high - p.low)).log(), math.inf)


def _weighted(p: Any, q: Any, difference: Any) -> Any:
    """p * (log p - log q), given the difference: 0 where p is 0, and else infinite where q is 0."""
    return functional.where(p == 0, 0.0, functional.where(q == 0, math.inf, p * difference))


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Any:
    if p.event_shape != q.event_shape:
        raise ValueError("KL-divergence between two Multivariate Normals with different event shapes cannot be computed")
    distance = solve_lower(q._unbroadcasted_scale_tril, q.loc - p.loc).square().sum(-1)
    factors = q._unbroadcasted_scale_tril, p._unbroadcasted_scale_tril
    spread = linalg.solve_triangular(*factors, upper=False).square().sum((-2, -1))
    return q._dist_half_log_det() - p._dist_half_log_det() + 0.5 * (spread + distance - p.event_shape[0])


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("kl_divergence of Independent with different reinterpreted_batch_ndims")
    return summed(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Any:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("kl_divergence of TransformedDistribution with different transforms or event shapes")
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Any:
    """Chyzak and Nielsen, arXiv:1905.10965."""
    return ((p.scale + q.scale).square() + (p.loc - q.loc).square()).log() - (4 * p.scale * q.scale).log()


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Any:
    return -p.entropy() - functional.log1p(-q.probs) / p.probs - q.logits


@register_kl(Pareto, Pareto)
def _pareto(p: Pareto, q: Pareto) -> Any:
    ratio = q.alpha / p.alpha
    inside = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return functional.where(p.scale < q.scale, math.inf, inside)


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Any:
    ratio, away = p.scale / q.scale, (p.loc - q.loc) / q.scale
    return -ratio.log() + away + ratio * np.euler_gamma + ((1 + ratio).lgamma() - away).exp() - (1 + np.euler_gamma)


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Any:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Any:
    """Infinite for fewer trials of q. PyTorch raises an error for more, which would read the counts: this gives NaN."""
    same = p.total_count * (p.probs * (p.logits - q.logits) + functional.log1p(-p.probs) - functional.log1p(-q.probs))
    more = functional.where(p.total_count > q.total_count, math.inf, same)
    return functional.where(p.total_count < q.total_count, math.nan, more)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Any:
    a, b = p.concentration, q.concentration
    logs = a.digamma() - a.sum(-1, True).digamma()
    norms = a.sum(-1).lgamma() - b.sum(-1).lgamma() - (a.lgamma() - b.lgamma()).sum(-1)
    return norms + ((a - b) * logs).sum(-1)


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Any:
    return _dirichlet(p._dirichlet, q._dirichlet)


# -- of two kinds: what q's density expects of p, less p's entropy --------------------------------------------------------


def _log_mean(p: Any) -> Any:
    """The mean of log x."""
    if isinstance(p, Gamma):
        return p.concentration.digamma() - p.rate.log()
    if isinstance(p, Beta):
        return p.concentration1.digamma() - (p.concentration1 + p.concentration0).digamma()
    if isinstance(p, Exponential):
        return -np.euler_gamma - p.rate.log()
    if isinstance(p, Pareto):
        return p.scale.log() + p.alpha.reciprocal()
    return _log_mean_between(p.low, p.high)


def _log_mean_between(low: Any, high: Any) -> Any:
    """The mean of log x of a uniform x."""
    return (high.xlogy(high) - low.xlogy(low)) / (high - low) - 1


@register_kl(Beta, Exponential)
@register_kl(Gamma, Exponential)
def _to_exponential(p: Any, q: Exponential) -> Any:
    return q.rate * p.mean - q.rate.log() - p.entropy()


@register_kl(Uniform, Exponential)
def _uniform_exponential(p: Uniform, q: Exponential) -> Any:
    return functional.where(p.low < 0, math.inf, _to_exponential(p, q))


@register_kl(Pareto, Exponential)
def _pareto_exponential(p: Pareto, q: Exponential) -> Any:
    product = p.scale * q.rate
    inside = (p.alpha / product).log() - p.alpha.reciprocal() + p.alpha * product / (p.alpha - 1) - 1
    return functional.where(p.alpha <= 1, math.inf, inside)


@register_kl(Beta, Normal)
@register_kl(Exponential, Normal)
@register_kl(Gamma, Normal)
@register_kl(Gumbel, Normal)
@register_kl(Laplace, Normal)
@register_kl(Uniform, Normal)
def _to_normal(p: Any, q: Normal) -> Any:
    spread = (p.variance + (p.mean - q.loc).square()) / q.scale.square()
    return q.scale.log() + 0.5 * (math.log(2 * math.pi) + spread) - p.entropy()


@register_kl(Pareto, Normal)
def _pareto_normal(p: Pareto, q: Normal) -> Any:
    common = p.scale / (p.alpha - 1)
    spread = p.alpha * common.square() / (p.alpha - 2) + (p.alpha * common - q.loc).square()
    inside = (math.sqrt(2 * math.pi) * q.scale * p.alpha / p.scale).log() - p.alpha.reciprocal()
    return functional.where(p.alpha <= 2, math.inf, inside + spread / (2 * q.scale.square()) - 1)


@register_kl(Normal, Laplace)
def _normal_laplace(p: Normal, q: Laplace) -> Any:
    away, ratio = p.loc - q.loc, (p.loc - q.loc) / p.scale
    mean = math.sqrt(2 / math.pi) * p.scale * (-0.5 * ratio.square()).exp() + away * functional.erf(math.sqrt(0.5) * ratio)
    return mean / q.scale - (p.scale / q.scale).log() - 0.5 * (1 + math.log(0.5 * math.pi))


@register_kl(Beta, Gamma)
@register_kl(Exponential, Gamma)
@register_kl(Gamma, Gamma)
def _to_gamma(p: Any, q: Gamma) -> Any:
    c = q.concentration
    return c.lgamma() - c * q.rate.log() - (c - 1) * _log_mean(p) + q.rate * p.mean - p.entropy()


@register_kl(Pareto, Gamma)
def _pareto_gamma(p: Pareto, q: Gamma) -> Any:
    return functional.where(p.alpha <= 1, math.inf, _to_gamma(p, q))


@register_kl(Uniform, Gamma)
def _uniform_gamma(p: Uniform, q: Gamma) -> Any:
    return functional.where(p.low < 0, math.inf, _to_gamma(p, q))


@register_kl(Uniform, Beta)
def _uniform_beta(p: Uniform, q: Beta) -> Any:
    a, b, log_rest = q.concentration1, q.concentration0, _log_mean_between(1 - p.high, 1 - p.low)
    found = a.lgamma() + b.lgamma() - (a + b).lgamma() - (a - 1) * _log_mean(p) - (b - 1) * log_rest - p.entropy()
    return functional.where((p.high > 1) | (p.low < 0), math.inf, found)


@register_kl(Exponential, Gumbel)
def _exponential_gumbel(p: Exponential, q: Gumbel) -> Any:
    product, ratio = p.rate * q.scale, q.loc / q.scale
    return product.log() - 1 - ratio + ratio.exp() * product / (product + 1) + product.reciprocal()


@register_kl(Gamma, Gumbel)
def _gamma_gumbel(p: Gamma, q: Gumbel) -> Any:
    decay = (q.loc / q.scale).exp() * (1 + (p.rate * q.scale).reciprocal()).pow(-p.concentration)
    return q.scale.log() + (p.mean - q.loc) / q.scale + decay - p.entropy()


@register_kl(Normal, Gumbel)
def _normal_gumbel(p: Normal, q: Gumbel) -> Any:
    square, away = (p.scale / q.scale).square(), (p.loc - q.loc) / q.scale
    return -0.5 * square.log() + away + (0.5 * square - away).exp() - 0.5 * (1 + math.log(2 * math.pi))


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p: Uniform, q: Gumbel) -> Any:
    ratio, high, low = q.scale / (p.high - p.low), (p.high - q.loc) / q.scale, (p.low - q.loc) / q.scale
    return ratio.log() + 0.5 * (high + low) - ratio * ((-high).exp() - (-low).exp())


@register_kl(Uniform, Pareto)
def _uniform_pareto(p: Uniform, q: Pareto) -> Any:
    found = _log_mean(p) * (q.alpha + 1) - (q.alpha * q.scale.pow(q.alpha) * (p.high - p.low)).log()
    return functional.where(p.low < q.scale, math.inf, found)


@register_kl(Beta, Uniform)
def _beta_uniform(p: Beta, q: Uniform) -> Any:
    return functional.where((q.low > 0) | (q.high < 1), math.inf, (q.high - q.low).log() - p.entropy())


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p: Bernoulli, q: Poisson) -> Any:
    return -p.entropy() - (p.probs * q.rate.log() - q.rate)


def _infinite(p: Any, q: Any) -> Any:
    """p has values that q cannot have. The result has p's shape, as PyTorch's."""
    return filled(p.mean, math.inf)


_BOUNDED = Beta, Exponential, Gamma, Pareto, Uniform
for _p, _qs in {Beta: (Pareto,), Exponential: (Beta, Pareto, Uniform), Gamma: (Beta, Pareto, Uniform),
                Gumbel: _BOUNDED, Laplace: _BOUNDED, Normal: _BOUNDED,
                Pareto: (Beta, Uniform), Poisson: (Bernoulli, Binomial)}.items():
    for _q in _qs:
        register_kl(_p, _q)(_infinite)
