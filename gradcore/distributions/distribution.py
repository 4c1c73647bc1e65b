"""The base class of distributions."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, ClassVar

from gradcore import functional
from gradcore._tensor import Tensor
from gradcore.distributions import constraints
from gradcore.engine.modes import no_grad
from gradcore.functional.types import finfo
from gradcore.spec import Size


def _unknown(name: str) -> Callable[[Any], Any]:
    def missing(self: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no {name}")

    return missing


class Distribution:
    """Base class. A sample has the shape ``sample_shape + batch_shape + event_shape``.

    ``batch_shape`` is that of independent distributions, ``event_shape`` that of one draw. Parameters, and the values given to
    ``log_prob`` and ``cdf``, are checked only with ``validate_args=True``, since that reads them from the device: it raises
    ValueError for what is outside ``arg_constraints`` or ``support``.
    """

    has_rsample: Any = False
    has_enumerate_support: Any = False
    arg_constraints: Any = property(_unknown("arg_constraints"), doc="The constraint of each parameter, by name.")
    support: Any = property(_unknown("support"), doc="The constraint that all draws meet.")
    _validate_args: bool = False
    #: Its methods read its attributes, all of which a compiled function that uses one is guarded by.
    _compile_reads_whole = True
    #: The names of the parameters that ``repr`` shows.
    _dist_shown: tuple[str, ...] = ()
    #: The names of tensors that ``expand`` leaves as they are, and of distributions that it expands to the same shape.
    _dist_fixed: ClassVar[tuple[str, ...]] = ()
    _dist_parts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (),
                 validate_args: bool | None = None) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._dist_validate_parameters()

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Check parameters and values of the distributions that are not told whether to, which is off at first."""
        if value not in (True, False):
            raise ValueError(f"set_default_validate_args expects a bool, but got {value!r}")
        Distribution._validate_args = value

    def _dist_validate_parameters(self) -> None:
        try:
            wanted = self.arg_constraints
        except NotImplementedError:
            warnings.warn(f"{type(self)} does not define `arg_constraints`. Please set `arg_constraints = {{}}` or initialize "
                          "the distribution with `validate_args=False` to turn off validation.", stacklevel=4)
            return
        for name, constraint in wanted.items():
            # What is shown is what was given; the others were computed from it.
            if constraints.is_dependent(constraint) or (self._dist_shown and name not in self._dist_shown):
                continue
            value = getattr(self, name)
            if not constraint.check(value).all().item():
                raise ValueError(f"Expected parameter {name} ({type(value).__name__} of shape {tuple(value.shape)}) of "
                                 f"distribution {self!r} to satisfy the constraint {constraint!r}, but found invalid "
                                 f"values:\n{value}")

    def _dist_check_value(self, value: Any) -> None:
        if self._validate_args:
            self._validate_sample(value)

    def _validate_sample(self, value: Any) -> None:
        """Raise ValueError for a value whose shape does not fit or that is outside the support."""
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        shape, expected = value.shape, self._batch_shape + self._event_shape
        if tuple(shape[len(shape) - len(self._event_shape):]) != tuple(self._event_shape):
            raise ValueError(f"The right-most size of value must match event_shape: {shape} vs {self._event_shape}.")
        if not broadcastable(shape, expected):
            raise ValueError(f"Value is not broadcastable with batch_shape+event_shape: {shape} vs {expected}.")
        try:
            support = self.support
        except NotImplementedError:
            warnings.warn(f"{type(self)} does not define `support` to enable sample validation. Please initialize the "
                          "distribution with `validate_args=False` to turn off validation.", stacklevel=4)
            return
        if not support.check(value).all().item():
            raise ValueError(f"Expected value argument ({type(value).__name__} of shape {tuple(shape)}) to be within the "
                             f"support ({support!r}) of the distribution {self!r}, but found invalid values:\n{value}")

    def _get_checked_instance(self, cls: type, _instance: Any = None) -> Any:
        # Subclasses by users call this in their own expand().
        if _instance is None and type(self).__init__ is not cls.__init__:  # type: ignore[misc]
            raise NotImplementedError(f"Subclass {type(self).__name__} of {cls.__name__} that defines a custom __init__ method "
                                      "must also define a custom .expand() method.")
        return type(self).__new__(type(self)) if _instance is None else _instance

    @property
    def batch_shape(self) -> Size:
        """The shape of independent distributions."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one draw of one distribution."""
        return self._event_shape

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> tuple[int, ...]:
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _dist_drawn(self, draw: Callable[..., Any], like: Any, sample_shape: Sequence[int]) -> Any:
        """What ``rand`` or ``randn`` draws for samples, with the dtype and on the device of a parameter."""
        return draw(self._extended_shape(sample_shape), dtype=like.dtype, device=like.device)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """The distribution with its parameters expanded, as views, to ``batch_shape``."""
        made = copy.copy(self) if _instance is None else _instance
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and name not in self._dist_fixed:
                value = functional.expand(value, (*batch_shape, *value.shape[len(self._batch_shape):]))
            elif name in self._dist_parts:
                value = value.expand(batch_shape)
            setattr(made, name, value)
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

    mean: Any = property(_unknown("mean"), doc="The mean, of shape ``batch_shape + event_shape``.")
    variance: Any = property(_unknown("variance"), doc="The variance, of shape ``batch_shape + event_shape``.")
    mode: Any = property(_unknown("mode"), doc="The most likely value.")

    @property
    def stddev(self) -> Any:
        """The standard deviation, of shape ``batch_shape + event_shape``."""
        return functional.sqrt(self.variance)

    def __repr__(self) -> str:
        names, shown = self._dist_shown, []
        if not names:
            with suppress(NotImplementedError):
                # A class of a program's shows the parameters that it has as attributes.
                names = tuple(name for name in self.arg_constraints if name in vars(self))
        for name in names:
            value = getattr(self, name)
            shown.append(f"{name}: {value.shape if isinstance(value, Tensor) and value.numel() != 1 else value}")
        return f"{type(self).__name__}({', '.join(shown)})"


def same_as(path: str) -> Any:
    """A property that is another attribute, or one of an attribute, such as ``base_dist.loc``."""
    return property(attrgetter(path))


def above_zero(x: Any) -> Any:
    """Numbers of at least the least normal one of their dtype."""
    return x.clamp(min=float(finfo(x.dtype).tiny))


def broadcast(*values: Any) -> list[Any]:
    """Tensors and numbers broadcast to tensors of one shape. Numbers get the dtype and device of the tensors.

    Raises TypeError for anything else.
    """
    for v in values:
        if not isinstance(v, Tensor) and (not hasattr(v, "__float__") or bool(getattr(v, "shape", None))):
            raise TypeError(f"a distribution's parameters must be tensors or numbers, but got {v!r} of type {type(v).__name__}")
    like = next((v for v in values if isinstance(v, Tensor)), None)
    options: dict[str, Any] = {} if like is None else {"dtype": like.dtype, "device": like.device}
    # Created on the device, since copies from the host could not be replayed.
    tensors = [v if isinstance(v, Tensor) else functional.full((), float(v), **options) for v in values]
    return list(functional.broadcast_tensors(*tensors))


def broadcastable(one: Sequence[int], other: Sequence[int]) -> bool:
    """Do two shapes broadcast?"""
    return all(1 in (i, j) or i == j for i, j in zip(reversed(one), reversed(other), strict=False))


def filled(like: Any, value: float) -> Any:
    """A tensor of the shape, dtype and device of another one, full of a number."""
    return functional.full_like(like.detach(), value)


def one_of(probs: Any, logits: Any) -> bool:
    """Whether probabilities are given rather than logits. Raises ValueError for both or neither."""
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    return probs is not None


def summed(x: Any, dims: int) -> Any:
    """The sum over the last ``dims`` dimensions."""
    return x.sum(dim=tuple(range(-dims, 0))) if dims else x
