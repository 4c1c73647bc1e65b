"""Distributions of counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore import functional
from gradcore._random import rand
from gradcore.distributions import constraints
from gradcore.distributions.discrete import away_from_ends
from gradcore.distributions.distribution import Distribution, broadcast, one_of
from gradcore.engine.modes import no_grad
from gradcore.functional.types import finfo
from gradcore.nn.functional import binary_cross_entropy_with_logits


class Geometric(Distribution):
    """The number of failures before a success of probability ``probs``, or sigmoid(``logits``): P(k) = probs (1 - probs)^k.

    Raises ValueError unless exactly one of ``probs`` and ``logits`` is given.
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.nonnegative_integer

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if one_of(probs, logits):
            self.probs, = broadcast(probs)
            inside = away_from_ends(self.probs)
            self.logits = inside.log() - functional.log1p(-inside)
            self._shown = ("probs",)  # type: ignore[misc]
        else:
            self.logits, = broadcast(logits)
            self.probs = self.logits.sigmoid()
            self._shown = ("logits",)  # type: ignore[misc]
        super().__init__(self.probs.shape, validate_args=validate_args)
        if self._validate_args and probs is not None and not (self.probs > 0).all().item():
            raise ValueError(f"Expected parameter probs ({type(self.probs).__name__} of shape {tuple(self.probs.shape)}) of "
                             f"distribution {self!r} to be positive but found invalid values:\n{self.probs[self.probs <= 0]}")

    @property
    def mean(self) -> Any:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Any:
        return functional.zeros_like(self.probs)

    @property
    def variance(self) -> Any:
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        with no_grad():
            u = rand(*self._extended_shape(sample_shape), dtype=self.probs.dtype, device=self.probs.device)
            least = float(finfo(self.probs.dtype).tiny)
            return functional.floor(u.clamp(min=least).log() / functional.log1p(-self.probs))

    def log_prob(self, value: Any) -> Any:
        self._check_value(value)
        # 0 failures are certain where a success is: 0 * log(0) is 0.
        certain = (self.probs == 1) & (value == 0)
        return value * functional.log1p(-functional.where(certain, 0.0, self.probs)) + self.probs.log()

    def entropy(self) -> Any:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs
