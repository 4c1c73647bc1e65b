"""Kullback-Leibler divergences between distributions of the same type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gradcore import functional
from gradcore.distributions.continuous import Exponential, Laplace, Normal, Uniform
from gradcore.distributions.discrete import Bernoulli, Categorical
from gradcore.distributions.distribution import Distribution, summed
from gradcore.distributions.joint import Independent


def _normal(p: Normal, q: Normal) -> Any:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log())


def _laplace(p: Laplace, q: Laplace) -> Any:
    ratio, distance = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + distance / q.scale + ratio * functional.exp(-distance / p.scale) - 1


def _exponential(p: Exponential, q: Exponential) -> Any:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1


def _bernoulli(p: Bernoulli, q: Bernoulli) -> Any:
    softplus = functional.softplus
    one = _weighted(p.probs, q.probs, softplus(-q.logits) - softplus(-p.logits))
    return one + _weighted(1 - p.probs, 1 - q.probs, softplus(q.logits) - softplus(p.logits))


def _categorical(p: Categorical, q: Categorical) -> Any:
    return _weighted(p.probs, q.probs, p.logits - q.logits).sum(-1)


def _uniform(p: Uniform, q: Uniform) -> Any:
    inside = (q.low <= p.low) & (q.high >= p.high)
    return functional.where(inside, ((q.high - q.low) / (p.high - p.low)).log(), math.inf)


def _weighted(p: Any, q: Any, difference: Any) -> Any:
    """p * (log p - log q), given the difference: 0 where p is 0, and else infinite where q is 0."""
    return functional.where(p == 0, 0.0, functional.where(q == 0, math.inf, p * difference))


def _independent(p: Independent, q: Independent) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("kl_divergence of Independent with different reinterpreted_batch_ndims")
    return summed(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


_OF: dict[type, Callable[[Any, Any], Any]] = {
    Normal: _normal, Laplace: _laplace, Exponential: _exponential, Bernoulli: _bernoulli, Categorical: _categorical,
    Uniform: _uniform, Independent: _independent}


def kl_divergence(p: Distribution, q: Distribution) -> Any:
    """The Kullback-Leibler divergence E_p[log p(x) - log q(x)] in nats, of shape ``batch_shape``.

    Raises NotImplementedError for distributions of different types, or of a type without a formula here.
    """
    if type(p) is not type(q) or type(p) not in _OF:
        raise NotImplementedError(f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}")
    return _OF[type(p)](p, q)
