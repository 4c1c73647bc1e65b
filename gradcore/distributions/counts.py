"""Distributions of counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore import functional
from gradcore._distributions import binomial, poisson
from gradcore._random import rand
from gradcore.distributions import constraints
from gradcore.distributions.discrete import _OfChance, chances, counted
from gradcore.distributions.distribution import Distribution, above_zero, broadcast, same_as
from gradcore.distributions.gammas import Gamma
from gradcore.engine.modes import no_grad
from gradcore.nn.functional import binary_cross_entropy_with_logits, logsigmoid


class Geometric(_OfChance):
    """The number of failures before a success of probability ``probs``, or sigmoid(``logits``): P(k) = probs (1 - probs)^k.

    Raises ValueError unless exactly one of ``probs`` and ``logits`` is given.
    """

    support = constraints.nonnegative_integer

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(probs, logits, validate_args)
        if self._validate_args and probs is not None and not (self.probs > 0).all().item():
            raise ValueError(f"Expected parameter probs ({type(self.probs).__name__} of shape {tuple(self.probs.shape)}) of "
                             f"distribution {self!r} to be positive but found invalid values:\n{self.probs[self.probs <= 0]}")

    mean = property(lambda self: 1 / self.probs - 1)
    mode = property(lambda self: functional.zeros_like(self.probs))
    variance = property(lambda self: (1 / self.probs - 1) / self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with no_grad():
            u = above_zero(self._dist_drawn(rand, self.probs, sample_shape))
            return functional.floor(u.log() / functional.log1p(-self.probs))

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        # 0 failures are certain where a success is: 0 * log(0) is 0.
        certain = (self.probs == 1) & (value == 0)
        return value * functional.log1p(-functional.where(certain, 0.0, self.probs)) + self.probs.log()

    def entropy(self) -> Any:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs


class Poisson(Distribution):
    """Counts of events that come independently at a mean ``rate``: P(k) = rate^k exp(-rate) / k!."""

    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer
    _dist_shown = ("rate",)

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        self.rate, = broadcast(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    mean = variance = same_as("rate")
    mode = property(lambda self: functional.floor(self.rate))

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        return poisson(self.rate.detach().expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        return value.xlogy(self.rate) - self.rate - (value + 1).lgamma()


class _OfTrials(Distribution):
    """Base of distributions of ``total_count`` trials of a probability ``probs``, or its logit ``logits``."""

    def __init__(self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self.probs, self.logits, given, count = chances(probs, logits, total_count)
        self._dist_shown = ("total_count", given)
        self.total_count = count.to(self.probs.dtype)
        super().__init__(self.probs.shape, validate_args=validate_args)

    param_shape = same_as("probs.shape")


class NegativeBinomial(_OfTrials):
    """Successes of probability ``probs``, or sigmoid(``logits``), before ``total_count`` failures, maybe a fraction of one.

    P(k) = Gamma(k + r) / (k! Gamma(r)) (1 - probs)^r probs^k, with r the ``total_count``. Raises ValueError unless exactly one
    of ``probs`` and ``logits`` is given.
    """

    arg_constraints = {"total_count": constraints.greater_than_eq(0), "probs": constraints.half_open_interval(0.0, 1.0),
                       "logits": constraints.real}
    support = constraints.nonnegative_integer

    mean = property(lambda self: self.total_count * self.logits.exp())
    mode = property(lambda self: functional.floor((self.total_count - 1) * self.logits.exp()).clamp(min=0))
    variance = property(lambda self: self.mean / (-self.logits).sigmoid())

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with no_grad():
            return poisson(Gamma(self.total_count, (-self.logits).exp(), validate_args=False).sample(sample_shape))

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        r = self.total_count
        # Without failures to wait for, none is certain.
        ways = functional.where(r + value == 0, 0.0, (r + value).lgamma() - (1.0 + value).lgamma() - r.lgamma())
        return r * logsigmoid(-self.logits) + value * logsigmoid(self.logits) + ways


class Binomial(_OfTrials):
    """The number of successes of ``total_count`` trials of probability ``probs``, or sigmoid(``logits``).

    P(k) = n! / (k! (n - k)!) probs^k (1 - probs)^(n - k). ``entropy`` and ``enumerate_support`` read ``total_count`` from the
    device; they raise NotImplementedError unless all are equal. Raises ValueError unless exactly one of ``probs`` and
    ``logits`` is given.
    """

    arg_constraints = {"total_count": constraints.nonnegative_integer, "probs": constraints.unit_interval,
                       "logits": constraints.real}
    has_enumerate_support = True

    def __init__(self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(total_count, probs, logits, validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        return constraints.integer_interval(0, self.total_count)

    mean = property(lambda self: self.total_count * self.probs)
    mode = property(lambda self: functional.minimum(functional.floor((self.total_count + 1) * self.probs), self.total_count))
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs))

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        shape = self._extended_shape(sample_shape)
        return binomial(self.total_count.detach().expand(shape), self.probs.detach().expand(shape))

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        n = self.total_count
        ways = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return value * self.logits + n * logsigmoid(-self.logits) + ways

    def _dist_only_count(self, what: str) -> int:
        most = int(self.total_count.max().item())
        if self.total_count.min().item() != most:
            raise NotImplementedError(f"Inhomogeneous total count not supported by `{what}`.")
        return most

    def entropy(self) -> Any:
        self._dist_only_count("entropy")
        logs = self.log_prob(self.enumerate_support(False))
        return -(logs.exp() * logs).sum(0)

    def enumerate_support(self, expand: bool = True) -> Any:
        most = self._dist_only_count("enumerate_support")
        return counted(most + 1, self.batch_shape, expand, self.probs.dtype, self.probs.device)
