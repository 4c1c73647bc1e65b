"""The base class of distributions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from gradcore import functional
from gradcore._classes import Size
from gradcore._tensor import Tensor
from gradcore.engine.modes import no_grad


class Distribution:
    """Base class. A sample has the shape ``sample_shape + batch_shape + event_shape``.

    ``batch_shape`` is that of independent distributions, ``event_shape`` that of one draw. Values of parameters are not
    checked, since that would read them from the device, so ``validate_args`` has no effect.
    """

    has_rsample: ClassVar[bool] = False
    #: The names of the parameters that ``repr`` shows.
    _shown: ClassVar[tuple[str, ...]] = ()

    def __init__(self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = ()) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)

    @property
    def batch_shape(self) -> Size:
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        return self._event_shape

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> tuple[int, ...]:
        return (*sample_shape, *self._batch_shape, *self._event_shape)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """The distribution with its parameters expanded, as views, to ``batch_shape``."""
        made = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(made, name, functional.expand(value, *batch_shape, *value.shape[len(self._batch_shape):]))
        made._batch_shape = Size(batch_shape)
        return made

    def sample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Samples of shape ``sample_shape + batch_shape + event_shape``, without a graph."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Any:
        """Samples that are differentiable with respect to the parameters. Raises NotImplementedError if that is impossible."""
        raise NotImplementedError(f"{type(self).__name__} has no rsample(): its samples are not differentiable in its "
                                  "parameters; use sample()")

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density or probability of values [..., *batch_shape, *event_shape]."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def cdf(self, value: Any) -> Any:
        """The cumulative distribution function, the probability of values up to ``value``; shapes broadcast."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def icdf(self, value: Any) -> Any:
        """The quantile function, the inverse of :meth:`cdf`."""
        raise NotImplementedError(f"{type(self).__name__} has no icdf")

    def enumerate_support(self, expand: bool = True) -> Any:
        """All possible values, [values, *batch_shape]; with ``expand=False``, the other sizes are 1."""
        raise NotImplementedError(f"{type(self).__name__} has no enumerable support")

    def entropy(self) -> Any:
        """The entropy in nats, of shape ``batch_shape``."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def perplexity(self) -> Any:
        """exp(entropy), of shape ``batch_shape``."""
        return functional.exp(self.entropy())

    @property
    def mean(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def variance(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def stddev(self) -> Any:
        return functional.sqrt(self.variance)

    def __repr__(self) -> str:
        shown = []
        for name in self._shown:
            value = getattr(self, name)
            shown.append(f"{name}: {value.item() if value.numel() == 1 else value.shape}")
        return f"{type(self).__name__}({', '.join(shown)})"


def broadcast(*values: Any) -> list[Any]:
    """Tensors and numbers broadcast to tensors of one shape. Numbers get the dtype and device of the tensors."""
    like = next((v for v in values if isinstance(v, Tensor)), None)
    options: dict[str, Any] = {} if like is None else {"dtype": like.dtype, "device": like.device}
    # Created on the device, since copies from the host could not be replayed.
    tensors = [v if isinstance(v, Tensor) else functional.full((), float(v), **options) for v in values]
    return list(functional.broadcast_tensors(*tensors))


def one_of(probs: Any, logits: Any) -> bool:
    """Whether probabilities are given rather than logits. Raises ValueError for both or neither."""
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    return probs is not None


def summed(x: Any, dims: int) -> Any:
    """The sum over the last ``dims`` dimensions."""
    return x.sum(dim=tuple(range(-dims, 0))) if dims else x
