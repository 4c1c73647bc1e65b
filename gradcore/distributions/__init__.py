"""Probability distributions, with the names of ``torch.distributions``; all computations are composed of ops."""

from gradcore.distributions import constraints, transforms
from gradcore.distributions.constraint_registry import biject_to, transform_to
from gradcore.distributions.continuous import Exponential, Laplace, Normal, Uniform
from gradcore.distributions.counts import Binomial, Geometric, NegativeBinomial, Poisson
from gradcore.distributions.discrete import Bernoulli, Categorical
from gradcore.distributions.distribution import Distribution
from gradcore.distributions.gammas import Beta, Chi2, Dirichlet, FisherSnedecor, Gamma, InverseGamma, StudentT
from gradcore.distributions.joint import Independent, MultivariateNormal
from gradcore.distributions.kl import kl_divergence, register_kl
from gradcore.distributions.mixture import MixtureSameFamily
from gradcore.distributions.one_hot import (
    Multinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
)
from gradcore.distributions.skewed import Cauchy, Gumbel, HalfCauchy, HalfNormal, LogisticNormal, LogNormal, Pareto, Weibull
from gradcore.distributions.transformed import TransformedDistribution
from gradcore.distributions.transforms import *  # noqa: F403 - what its __all__ names

__all__ = [
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "Dirichlet", "Distribution", "Exponential",
    "FisherSnedecor", "Gamma", "Geometric", "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "InverseGamma", "Laplace",
    "LogNormal", "LogisticNormal", "MixtureSameFamily", "Multinomial", "MultivariateNormal", "NegativeBinomial", "Normal",
    "OneHotCategorical", "OneHotCategoricalStraightThrough", "Pareto", "Poisson", "RelaxedBernoulli",
    "RelaxedOneHotCategorical", "StudentT", "TransformedDistribution", "Uniform", "Weibull",
    "biject_to", "constraints", "kl_divergence", "register_kl", "transform_to", "transforms"]
__all__ += transforms.__all__
