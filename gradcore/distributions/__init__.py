"""Probability distributions, with the names of ``torch.distributions``; all computations are composed of ops."""

from gradcore.distributions.continuous import Exponential, Laplace, Normal, Uniform
from gradcore.distributions.discrete import Bernoulli, Categorical
from gradcore.distributions.distribution import Distribution
from gradcore.distributions.joint import Independent, MultivariateNormal
from gradcore.distributions.kl import kl_divergence

__all__ = ["Bernoulli", "Categorical", "Distribution", "Exponential", "Independent", "Laplace", "MultivariateNormal", "Normal",
           "Uniform", "kl_divergence"]
