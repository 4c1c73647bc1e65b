"""Probability distributions, with the names of ``torch.distributions``; all computations are composed of ops."""

from gradcore.distributions import constraints, transforms
from gradcore.distributions.continuous import Exponential, Laplace, Normal, Uniform
from gradcore.distributions.discrete import Bernoulli, Categorical
from gradcore.distributions.distribution import Distribution
from gradcore.distributions.joint import Independent, MultivariateNormal
from gradcore.distributions.kl import kl_divergence
from gradcore.distributions.transformed import TransformedDistribution
from gradcore.distributions.transforms import *  # noqa: F403 - what its __all__ names

__all__ = ["Bernoulli", "Categorical", "Distribution", "Exponential", "Independent", "Laplace", "MultivariateNormal", "Normal",
           "TransformedDistribution", "Uniform", "constraints", "kl_divergence", "transforms"]
__all__ += transforms.__all__
