"""The distribution of a function of a random variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore.distributions import constraints
from gradcore.distributions.distribution import Distribution, same_as, summed
from gradcore.distributions.joint import Independent
from gradcore.distributions.transform import ComposeTransform, Transform
from gradcore.engine.modes import no_grad
from gradcore.spec import Size


class TransformedDistribution(Distribution):
    """y = f(x), where x follows ``base_distribution`` and f is ``transforms``, one transform or a list of them in order.

    log p(y) = log p(x) - log \\|det dy/dx\\|. Raises ValueError for what is no transform, and for a base of too few dimensions.
    """

    arg_constraints: Any = {}

    def __init__(self, base_distribution: Distribution, transforms: Any, validate_args: bool | None = None) -> None:
        if not isinstance(transforms, (Transform, list)):
            raise ValueError(f"transforms must be a Transform or list, but was {transforms}")
        self.transforms = transforms if isinstance(transforms, list) else [transforms]
        if not all(isinstance(t, Transform) for t in self.transforms):
            raise ValueError("transforms must be a Transform or a list of Transforms")
        shape, dims = base_distribution.batch_shape + base_distribution.event_shape, len(base_distribution.event_shape)
        whole = self._dist_whole
        taken, given = whole.domain.event_dim, whole.codomain.event_dim
        if len(shape) < taken:
            raise ValueError(f"base_distribution needs to have shape with size at least {taken}, but got {shape}.")
        forward = whole.forward_shape(shape)
        wide = whole.inverse_shape(forward)
        if tuple(wide) != tuple(shape):
            base_distribution = base_distribution.expand(wide[:len(wide) - dims])
        self.base_dist = Independent(base_distribution, taken - dims) if taken > dims else base_distribution
        cut = len(forward) - max(given, dims + given - taken)
        super().__init__(forward[:cut], forward[cut:], validate_args)

    _dist_whole = property(lambda self: ComposeTransform(self.transforms))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        made = super().expand(batch_shape, _instance)
        shape = self._dist_whole.inverse_shape(Size((*batch_shape, *self._event_shape)))
        made.base_dist = self.base_dist.expand(shape[:len(shape) - len(self.base_dist.event_shape)])
        return made

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        if not self.transforms:
            return self.base_dist.support
        support = self.transforms[-1].codomain
        return constraints.widened(support, max(len(self._event_shape) - support.event_dim, 0))

    has_rsample: Any = same_as("base_dist.has_rsample")

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with no_grad():
            return self._dist_whole(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self._dist_whole(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        dim, total, y = len(self._event_shape), 0.0, value
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            dim += transform.domain.event_dim - transform.codomain.event_dim
            total = total - summed(transform.log_abs_det_jacobian(x, y), dim - transform.domain.event_dim)
            y = x
        return total + summed(self.base_dist.log_prob(y), dim - len(self.base_dist.event_shape))

    def _dist_monotone(self, share: Any) -> Any:
        """The share below a value, given that of its inverse, and the other way round: decreasing transforms turn it over."""
        sign = self._dist_whole.sign
        return share if isinstance(sign, int) and sign == 1 else sign * (share - 0.5) + 0.5

    def cdf(self, value: Any) -> Any:
        value = self._dist_whole.inv(value)
        if self._validate_args:
            self.base_dist._validate_sample(value)
        return self._dist_monotone(self.base_dist.cdf(value))

    def icdf(self, value: Any) -> Any:
        return self._dist_whole(self.base_dist.icdf(self._dist_monotone(value)))
