"""Mixtures of distributions of one family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore import functional
from gradcore.distributions import constraints
from gradcore.distributions.discrete import Categorical
from gradcore.distributions.distribution import Distribution, broadcastable, same_as
from gradcore.engine.modes import no_grad


class MixtureSameFamily(Distribution):
    """The mixture sum_k w_k p_k(x): w are the probabilities of ``mixture_distribution``, p_k is ``component_distribution`` at
    index k of its last batch dimension.

    Raises ValueError for a mixture that is not :class:`Categorical`, and for batch shapes that do not fit.
    """

    arg_constraints: Any = {}
    _dist_parts = ("_mixture_distribution",)

    def __init__(self, mixture_distribution: Categorical, component_distribution: Distribution,
                 validate_args: bool | None = None) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(" The Mixture distribution needs to be an  instance of torch.distributions.Categorical")
        if not isinstance(component_distribution, Distribution):
            raise ValueError("The Component distribution needs to be an instance of torch.distributions.Distribution")
        of, batch = mixture_distribution.batch_shape, component_distribution.batch_shape[:-1]
        if not broadcastable(of, batch):
            raise ValueError(f"`mixture_distribution.batch_shape` ({of}) is not compatible with "
                             f"`component_distribution.batch_shape`({batch})")
        n, given = mixture_distribution.logits.shape[-1], component_distribution.batch_shape[-1]
        if n != given:
            raise ValueError(f"`mixture_distribution component` ({n}) does not equal `component_distribution.batch_shape[-1]` "
                             f"({given})")
        self._mixture_distribution, self._component_distribution = mixture_distribution, component_distribution
        self._num_component, self._event_ndims = n, len(component_distribution.event_shape)
        super().__init__(batch, component_distribution.event_shape, validate_args)

    mixture_distribution = same_as("_mixture_distribution")
    component_distribution = same_as("_component_distribution")

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        made = super().expand(batch_shape, _instance)
        made._component_distribution = self._component_distribution.expand((*batch_shape, self._num_component))
        return made

    @constraints.dependent_property
    def support(self) -> Any:
        return constraints.MixtureSameFamilyConstraint(self._component_distribution.support)

    def _dist_weights(self) -> Any:
        """The weights with dimensions of size 1 for those of an event."""
        weights = self._mixture_distribution.probs
        return weights.reshape((*weights.shape, *(1,) * self._event_ndims))

    def _dist_beside(self, value: Any) -> Any:
        """Values with a dimension of size 1 where the components' is."""
        return value.unsqueeze(-1 - self._event_ndims)

    mean = property(lambda self: (self._dist_weights() * self._component_distribution.mean).sum(-1 - self._event_ndims))

    @property
    def variance(self) -> Any:
        components, dim = self._component_distribution, -1 - self._event_ndims
        within = (self._dist_weights() * components.variance).sum(dim)
        return within + (self._dist_weights() * (components.mean - self._dist_beside(self.mean)).square()).sum(dim)

    def cdf(self, value: Any) -> Any:
        return (self._component_distribution.cdf(self._dist_beside(value)) * self._mixture_distribution.probs).sum(-1)

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        terms = self._component_distribution.log_prob(self._dist_beside(value))
        return functional.logsumexp(terms + functional.log_softmax(self._mixture_distribution.logits, dim=-1), dim=-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with no_grad():
            chosen = self._mixture_distribution.expand(self._batch_shape).sample(sample_shape)
            drawn = self._component_distribution.sample(sample_shape)
            index = chosen.reshape(*chosen.shape, 1, *(1,) * self._event_ndims).expand(*chosen.shape, 1, *self._event_shape)
            return drawn.gather(chosen.dim(), index).squeeze(chosen.dim())

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self._mixture_distribution},\n  {self._component_distribution})"
