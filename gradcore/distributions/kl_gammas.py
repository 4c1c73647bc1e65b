"""Divergences between gamma and beta distributions and others: what q's density expects of p, less p's entropy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore import functional
from gradcore.distributions.continuous import Exponential, Laplace, Normal, Uniform
from gradcore.distributions.distribution import filled
from gradcore.distributions.gammas import Beta, Dirichlet, Gamma
from gradcore.distributions.kl import register_kl
from gradcore.distributions.skewed import Gumbel, Pareto


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
    return _mean_of_log(p.low, p.high)


def _mean_of_log(low: Any, high: Any) -> Any:
    """The mean of log x of a uniform x."""
    return (high.xlogy(high) - low.xlogy(low)) / (high - low) - 1


def _under_gamma(q: Gamma, mean: Any, log_mean: Any) -> Any:
    """Minus the mean of q's log density, of what has these means."""
    c = q.concentration
    return c.lgamma() - c * q.rate.log() - (c - 1) * log_mean + q.rate * mean


def _under_normal(q: Normal, mean: Any, variance: Any) -> Any:
    return q.scale.log() + 0.5 * math.log(2 * math.pi) + 0.5 * (variance + (mean - q.loc).square()) / q.scale.square()


def _under_beta(q: Beta, log_mean: Any, log_rest: Any) -> Any:
    """The latter is the mean of log(1 - x)."""
    a, b = q.concentration1, q.concentration0
    return a.lgamma() + b.lgamma() - (a + b).lgamma() - (a - 1) * log_mean - (b - 1) * log_rest


@register_kl(Gamma, Gamma)
@register_kl(Exponential, Gamma)
@register_kl(Beta, Gamma)
def _gamma(p: Any, q: Gamma) -> Any:
    return _under_gamma(q, p.mean, _log_mean(p)) - p.entropy()


@register_kl(Pareto, Gamma)
def _pareto_gamma(p: Pareto, q: Gamma) -> Any:
    return functional.where(p.alpha <= 1, math.inf, _gamma(p, q))


@register_kl(Uniform, Gamma)
def _uniform_gamma(p: Uniform, q: Gamma) -> Any:
    return functional.where(p.low < 0, math.inf, _gamma(p, q))


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Any:
    a, b = p.concentration1, p.concentration0
    return _under_beta(q, _log_mean(p), b.digamma() - (a + b).digamma()) - p.entropy()


@register_kl(Uniform, Beta)
def _uniform_beta(p: Uniform, q: Beta) -> Any:
    found = _under_beta(q, _log_mean(p), _mean_of_log(1 - p.high, 1 - p.low)) - p.entropy()
    return functional.where((p.high > 1) | (p.low < 0), math.inf, found)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Any:
    a, b = p.concentration, q.concentration
    logs = a.digamma() - a.sum(-1, True).digamma()
    norms = a.sum(-1).lgamma() - b.sum(-1).lgamma() - (a.lgamma() - b.lgamma()).sum(-1)
    return norms + ((a - b) * logs).sum(-1)


@register_kl(Gamma, Exponential)
@register_kl(Beta, Exponential)
def _exponential(p: Any, q: Exponential) -> Any:
    return q.rate * p.mean - q.rate.log() - p.entropy()


@register_kl(Gamma, Normal)
@register_kl(Beta, Normal)
def _normal(p: Any, q: Normal) -> Any:
    return _under_normal(q, p.mean, p.variance) - p.entropy()


@register_kl(Gamma, Gumbel)
def _gumbel(p: Gamma, q: Gumbel) -> Any:
    decay = (q.loc / q.scale).exp() * (1 + (p.rate * q.scale).reciprocal()).pow(-p.concentration)
    return q.scale.log() + (p.mean - q.loc) / q.scale + decay - p.entropy()


@register_kl(Beta, Uniform)
def _beta_uniform(p: Beta, q: Uniform) -> Any:
    return functional.where((q.low > 0) | (q.high < 1), math.inf, (q.high - q.low).log() - p.entropy())


@register_kl(Beta, Pareto)
@register_kl(Exponential, Beta)
@register_kl(Gamma, Beta)
@register_kl(Gamma, Pareto)
@register_kl(Gamma, Uniform)
@register_kl(Gumbel, Beta)
@register_kl(Gumbel, Gamma)
@register_kl(Laplace, Beta)
@register_kl(Laplace, Gamma)
@register_kl(Normal, Beta)
@register_kl(Normal, Gamma)
@register_kl(Pareto, Beta)
def _outside(p: Any, q: Any) -> Any:
    """p has values that q cannot have. The result has p's shape, as PyTorch's."""
    return filled(p.mean, math.inf)
