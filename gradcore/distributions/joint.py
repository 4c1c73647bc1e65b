"""Multivariate distributions: ``Independent`` and ``MultivariateNormal``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gradcore._random import randn
from gradcore.distributions import constraints
from gradcore.distributions.distribution import Distribution, same_as, summed
from gradcore.functional import linalg
from gradcore.spec import broadcast_shapes


class Independent(Distribution):
    """A distribution with its last ``reinterpreted_batch_ndims`` batch dimensions as dimensions of the event.

    Raises ValueError if it has fewer.
    """

    arg_constraints = {}

    def __init__(self, base_distribution: Distribution, reinterpreted_batch_ndims: int,
                 validate_args: bool | None = None) -> None:
        batch, n = base_distribution.batch_shape, reinterpreted_batch_ndims
        if n > len(batch):
            raise ValueError("Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), actual "
                             f"{n} vs {len(batch)}")
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, n
        super().__init__(batch[:len(batch) - n], (*batch[len(batch) - n:], *base_distribution.event_shape), validate_args)

    has_rsample = same_as("base_dist.has_rsample")
    has_enumerate_support = property(lambda self: not self.reinterpreted_batch_ndims and self.base_dist.has_enumerate_support)

    @constraints.dependent_property
    def support(self) -> Any:
        return constraints.widened(self.base_dist.support, self.reinterpreted_batch_ndims)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        made = super().expand(batch_shape, _instance)
        made.base_dist = self.base_dist.expand((*batch_shape, *self._event_shape[:self.reinterpreted_batch_ndims]))
        return made

    def enumerate_support(self, expand: bool = True) -> Any:
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError("Enumeration over cartesian product is not implemented")
        return self.base_dist.enumerate_support(expand)

    mean = same_as("base_dist.mean")
    mode = same_as("base_dist.mode")
    variance = same_as("base_dist.variance")

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Any) -> Any:
        return summed(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Any:
        return summed(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"


def _factor_of_inverse(matrix: Any) -> Any:
    """The Cholesky factor of the inverse: that of the matrix read backwards, inverted, without the inverse of the whole."""
    return linalg.inv(linalg.cholesky(matrix.flip(-2, -1)).flip(-2, -1).mT)


def solve_lower(factor: Any, vectors: Any) -> Any:
    """The x of L x = ``vectors`` [..., n] for the lower triangle L of ``factor``, beyond which it has no gradient."""
    return linalg.solve_triangular(factor, vectors.unsqueeze(-1), upper=False).squeeze(-1)


class _Assignable:
    """An attribute that is computed when it is read, unless it was assigned."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        return self if instance is None else self.function(instance)


class MultivariateNormal(Distribution):
    """The normal distribution of vectors with mean ``loc`` [..., n] and covariance [..., n, n], its inverse or Cholesky factor.

    Raises ValueError unless exactly one of ``covariance_matrix``, ``precision_matrix`` and ``scale_tril`` is given, and for
    too few dimensions.
    """

    has_rsample = True
    arg_constraints = {
        "loc": constraints.real_vector, "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite, "scale_tril": constraints.lower_cholesky}
    support = constraints.real_vector
    #: The factor before it is expanded, with which no matrix is copied for each vector.
    _dist_fixed = ("_unbroadcasted_scale_tril",)

    def __init__(self, loc: Any, covariance_matrix: Any = None, precision_matrix: Any = None, scale_tril: Any = None,
                 validate_args: bool | None = None) -> None:
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        matrices = {"covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril}
        given = [name for name, matrix in matrices.items() if matrix is not None]
        if len(given) != 1:
            raise ValueError("Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified.")
        matrix = matrices[given[0]]
        if matrix.dim() < 2:
            raise ValueError(f"{given[0]} must be at least two-dimensional, with optional leading batch dimensions")
        n = loc.shape[-1]
        batch = broadcast_shapes(loc.shape[:-1], matrix.shape[:-2])
        self.loc = loc.expand(*batch, n)
        self._dist_shown = ("loc", given[0])
        # What is given is checked before it is decomposed, and not kept.
        setattr(self, given[0], matrix.expand(*batch, n, n))
        super().__init__(batch, (n,), validate_args)
        delattr(self, given[0])
        self._unbroadcasted_scale_tril = matrix if matrix is scale_tril else (
            _factor_of_inverse(matrix) if matrix is precision_matrix else linalg.cholesky(matrix))

    def _dist_of_all(self, each: Any) -> Any:
        return each.expand(*self._batch_shape, *self._event_shape, *self._event_shape)

    @_Assignable
    def scale_tril(self) -> Any:
        """The Cholesky factor of the covariance matrix, [..., n, n]."""
        return self._dist_of_all(self._unbroadcasted_scale_tril)

    @_Assignable
    def covariance_matrix(self) -> Any:
        """L L^T [..., n, n], for L = ``scale_tril``."""
        return self._dist_of_all(self._unbroadcasted_scale_tril @ self._unbroadcasted_scale_tril.mT)

    @_Assignable
    def precision_matrix(self) -> Any:
        """The inverse of the covariance matrix, [..., n, n]."""
        inverse = linalg.inv(self._unbroadcasted_scale_tril)
        return self._dist_of_all(inverse.mT @ inverse)

    mean = mode = same_as("loc")

    @property
    def variance(self) -> Any:
        return self._unbroadcasted_scale_tril.square().sum(-1).expand(*self._batch_shape, *self._event_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        drawn = self._dist_drawn(randn, self.loc, sample_shape)
        return self.loc + (self._unbroadcasted_scale_tril @ drawn.unsqueeze(-1)).squeeze(-1)

    def _dist_half_log_det(self) -> Any:
        return self._unbroadcasted_scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        distance = solve_lower(self._unbroadcasted_scale_tril, value - self.loc).square().sum(-1)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + distance) - self._dist_half_log_det()

    def entropy(self) -> Any:
        entropy = 0.5 * self._event_shape[0] * (1 + math.log(2 * math.pi)) + self._dist_half_log_det()
        return entropy.expand(self._batch_shape)
