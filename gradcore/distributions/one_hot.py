"""One-hot vectors, counts of categories, and continuous relaxations of Bernoulli and categorical variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradcore import functional
from gradcore._random import rand
from gradcore.distributions import constraints
from gradcore.distributions.counts import Binomial
from gradcore.distributions.discrete import Categorical, _OfChance, away_from_ends
from gradcore.distributions.distribution import Distribution, same_as
from gradcore.distributions.transformed import TransformedDistribution
from gradcore.distributions.transforms import ExpTransform, SigmoidTransform
from gradcore.nn.functional import one_hot


class _OfCategories(Distribution):
    """Base of distributions of vectors of categories, with the parameters of :class:`Categorical`."""

    arg_constraints = Categorical.arg_constraints
    _dist_parts = ("_categorical",)

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._categorical = Categorical(probs, logits)
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args)

    probs = same_as("_categorical.probs")
    logits = same_as("_categorical.logits")
    param_shape = same_as("_categorical.param_shape")


class OneHotCategorical(_OfCategories):
    """One-hot vectors whose 1 is at index i with the i-th of ``probs``, normalized to a sum of 1, or of softmax(``logits``).

    Raises ValueError for parameters without a dimension.
    """

    support, has_enumerate_support = constraints.one_hot, True

    def _dist_vectors(self, index: Any) -> Any:
        return one_hot(index, self._event_shape[0]).to(self.probs.dtype)

    mean = same_as("probs")
    mode = property(lambda self: self._dist_vectors(self.probs.argmax(dim=-1)))
    variance = property(lambda self: self.probs * (1 - self.probs))

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self._dist_vectors(self._categorical.sample(sample_shape))

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        return self._categorical.log_prob(value.argmax(dim=-1))

    def entropy(self) -> Any:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Any:
        n, batch = self._event_shape[0], self._batch_shape
        values = functional.eye(n, dtype=self.probs.dtype, device=self.probs.device).reshape(n, *(1,) * len(batch), n)
        return values.expand(n, *batch, n) if expand else values


class Multinomial(_OfCategories):
    """How many of ``total_count`` draws are of each category, by ``probs``, normalized to a sum of 1, or softmax(``logits``).

    Raises NotImplementedError for a ``total_count`` that is no int, ValueError for a negative one, and for
    parameters without a dimension.
    """

    def __init__(self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        if total_count < 0:
            raise ValueError(f"Multinomial: expected total_count to be at least 0, but got {total_count}")
        self.total_count = total_count
        super().__init__(probs, logits, validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        return constraints.multinomial(self.total_count)

    mean = property(lambda self: self.probs * self.total_count)
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs))

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        drawn = self._categorical.sample((self.total_count, *sample_shape)).movedim(0, -1)
        counts = drawn.new_zeros((*drawn.shape[:-1], *self._event_shape))
        return counts.scatter_add(-1, drawn, functional.ones_like(drawn)).to(self.probs.dtype)

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        # 0 draws of a category that is impossible are certain: 0 * -inf is 0.
        certain = (value == 0) & (self.logits == -math.inf)
        chance = functional.where(certain, 0.0, self.logits) * value
        return (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1) + chance.sum(-1)

    def entropy(self) -> Any:
        # The count of each category is binomial.
        counts = Binomial(self.total_count, self.probs)
        more = counts.enumerate_support(expand=False)[1:]
        ways = (counts.log_prob(more).exp() * (more + 1).lgamma()).sum((0, -1))
        return self.total_count * self._categorical.entropy() - math.lgamma(self.total_count + 1) + ways


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """One-hot vectors whose ``rsample`` passes its gradient to the probabilities: sample + probs - probs.detach().

    Bengio et al., arXiv:1308.3432.
    """

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class LogitRelaxedBernoulli(_OfChance):
    """The logits of :class:`RelaxedBernoulli`: (logits + log u - log(1 - u)) / temperature of a uniform u."""

    support = constraints.real
    _dist_fixed = ("temperature",)

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self.temperature = temperature
        super().__init__(probs, logits, validate_args)

    param_shape = same_as("probs.shape")

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        probs = away_from_ends(self.probs)
        u = away_from_ends(self._dist_drawn(rand, probs, sample_shape))
        return (u.log() - functional.log1p(-u) + probs.log() - functional.log1p(-probs)) / self.temperature

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        difference = self.logits - value * self.temperature
        return self.temperature.log() + difference - 2 * functional.log1p(difference.exp())


class RelaxedBernoulli(TransformedDistribution):
    """Numbers in (0, 1) that approach 1 with probability ``probs``, or sigmoid(``logits``), as ``temperature`` approaches 0.

    sigmoid((logits + log u - log(1 - u)) / temperature) of a uniform u. Maddison et al., arXiv:1611.00712; Jang et al.,
    arXiv:1611.01144. Raises ValueError unless exactly one of ``probs`` and ``logits`` is given.
    """

    arg_constraints, support, has_rsample = _OfChance.arg_constraints, constraints.unit_interval, True

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(LogitRelaxedBernoulli(temperature, probs, logits), SigmoidTransform(), validate_args)

    temperature = same_as("base_dist.temperature")
    probs = same_as("base_dist.probs")
    logits = same_as("base_dist.logits")


class ExpRelaxedCategorical(_OfCategories):
    """The logarithms of :class:`RelaxedOneHotCategorical`: log_softmax((logits + g) / temperature) of Gumbel noise g."""

    # The values are some of these vectors.
    support, has_rsample = constraints.real_vector, True
    _dist_fixed = ("temperature",)

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self.temperature = temperature
        super().__init__(probs, logits, validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        u = away_from_ends(self._dist_drawn(rand, self.logits, sample_shape))
        scores = (self.logits - (-u.log()).log()) / self.temperature
        return scores - functional.logsumexp(scores, dim=-1, keepdim=True)

    def log_prob(self, value: Any) -> Any:
        self._dist_check_value(value)
        n = self._event_shape[0]
        score = self.logits - value * self.temperature
        score = (score - functional.logsumexp(score, dim=-1, keepdim=True)).sum(-1)
        return score + (math.lgamma(n) + self.temperature.log() * (n - 1))


class RelaxedOneHotCategorical(TransformedDistribution):
    """Probabilities of categories that approach one-hot vectors as ``temperature`` approaches 0.

    softmax((logits + g) / temperature) of Gumbel noise g. Maddison et al., arXiv:1611.00712; Jang et al., arXiv:1611.01144.
    Raises ValueError unless exactly one of ``probs`` and ``logits`` is given, with a dimension.
    """

    arg_constraints, support, has_rsample = Categorical.arg_constraints, constraints.simplex, True

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(ExpRelaxedCategorical(temperature, probs, logits, validate_args), ExpTransform(), validate_args)

    temperature = same_as("base_dist.temperature")
    probs = same_as("base_dist.probs")
    logits = same_as("base_dist.logits")
