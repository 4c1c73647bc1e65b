"""Discrete distributions: Bernoulli and categorical."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcore import functional
from gradcore._distributions import bernoulli, multinomial
from gradcore.distributions import constraints
from gradcore.distributions.distribution import Distribution, broadcast, filled, one_of, same_as
from gradcore.functional.types import finfo
from gradcore.nn.functional import binary_cross_entropy_with_logits


def away_from_ends(probs: Any) -> Any:
    """Probabilities clamped away from 0 and 1, so that their logarithms are finite."""
    room = float(finfo(probs.dtype).eps)
    return probs.clamp(room, 1 - room)


def chances(probs: Any, logits: Any, *others: Any) -> tuple[Any, ...]:
    """A probability, its logit, the name of the one that is given, and ``others``, which are broadcast with it.

    Raises ValueError unless exactly one of ``probs`` and ``logits`` is given.
    """
    of_probs = one_of(probs, logits)
    *rest, value = broadcast(*others, probs if of_probs else logits)
    if not of_probs:
        return value.sigmoid(), value, "logits", *rest
    inside = away_from_ends(value)
    return value, inside.log() - functional.log1p(-inside), "probs", *rest


def counted(count: int, batch: Sequence[int], expand: bool, dtype: Any, device: Any) -> Any:
    """0, 1, ..., count - 1 along the first dimension of [count, batch], or with sizes of 1 for the batch unless ``expand``."""
    values = functional.arange(count, dtype=dtype, device=device).reshape(count, *(1,) * len(batch))
    return values.expand(count, *batch) if expand else values


class _OfChance(Distribution):
    """Base of distributions of a probability ``probs``, or its logit ``logits``, of which one is given."""

    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self.probs, self.logits, given = chances(probs, logits)
        self._dist_shown = (given,)
        super().__init__(self.probs.shape, validate_args=validate_args)


class Bernoulli(_OfChance):
    """1 with probability ``probs``, or sigmoid(``logits``), else 0."""

    has_enumerate_support = True
    support = constraints.boolean

    mean = same_as("probs")
    mode = property(lambda self: functional.where(self.probs == 0.5, math.nan, (self.probs >= 0.5).to(self.probs.dtype)))
    variance = property(lambda self: self.probs * (1 - self.probs))
    param_shape = same_as("probs.shape")

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        return bernoulli(self.probs.detach().expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        logits, value = functional.broadcast_tensors(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Any:
        return counted(2, self.batch_shape, expand, self.probs.dtype, self.probs.device)

    def entropy(self) -> Any:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")


class Categorical(Distribution):
    """Indices into the last dimension, with probabilities ``probs``, normalized to a sum of 1, or softmax(``logits``).

    Raises ValueError for parameters without a dimension.
    """

    has_enumerate_support = True
    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.dependent_property(lambda self: constraints.integer_interval(0, self.probs.shape[-1] - 1),
                                             is_discrete=True, event_dim=0)

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if one_of(probs, logits):
            self._dist_check("probs", probs)
            self.probs = probs / probs.sum(-1, keepdim=True)
            self.logits = away_from_ends(self.probs).log()
            self._dist_shown = ("probs",)
        else:
            self._dist_check("logits", logits)
            self.logits = logits - functional.logsumexp(logits, dim=-1, keepdim=True)
            self.probs = self.logits.exp()
            self._dist_shown = ("logits",)
        super().__init__(self.probs.shape[:-1], validate_args=validate_args)

    @staticmethod
    def _dist_check(name: str, parameter: Any) -> None:
        if parameter.dim() < 1:
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")

    mean = variance = property(lambda self: filled(self.probs[..., 0], math.nan))
    mode = property(lambda self: self.probs.argmax(dim=-1))
    param_shape = same_as("probs.shape")

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        rows = self.probs.detach().reshape(-1, self.probs.shape[-1])
        return multinomial(rows, math.prod(sample_shape), True).t().reshape(self._extended_shape(sample_shape))

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        index, logits = functional.broadcast_tensors(value.long().unsqueeze(-1), self.logits)
        return logits.gather(-1, index[..., :1]).squeeze(-1)

    def enumerate_support(self, expand: bool = True) -> Any:
        return counted(self.probs.shape[-1], self.batch_shape, expand, np.int64, self.probs.device)

    def entropy(self) -> Any:
        # Finite, so that a category of probability 0 adds 0 and not NaN.
        least = float(finfo(self.logits.dtype).min)
        return -(self.logits.clamp(min=least) * self.probs).sum(-1)
