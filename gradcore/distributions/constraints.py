"""The sets to which parameters and values of distributions belong, with the names of ``torch.distributions.constraints``.

:meth:`Constraint.check` is composed of ops and reads nothing from the device.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from gradcore import functional
from gradcore.functional import linalg
from gradcore.functional.types import finfo


class Constraint:
    """A set of values. ``event_dim`` is the number of last dimensions that are one value; ``is_discrete`` says what it says."""

    is_discrete: Any = False
    event_dim: Any = 0
    #: Its methods read its attributes, all of which a compiled function that uses one is guarded by.
    _compile_reads_whole = True

    def check(self, value: Any) -> Any:
        """A bool for each event: is it in the set?"""
        raise NotImplementedError

    def __repr__(self) -> str:
        bounds = ", ".join(f"{k}={v}" for k, v in vars(self).items() if k in ("lower_bound", "upper_bound"))
        return f"{type(self).__name__.removeprefix('_')}({bounds})"


class _Dependent(Constraint):
    """A set that depends on other parameters, so that there is nothing to check."""

    def __init__(self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented) -> None:
        self._is_discrete, self._event_dim = is_discrete, event_dim

    @property
    def is_discrete(self) -> Any:
        if self._is_discrete is NotImplemented:
            raise NotImplementedError(".is_discrete cannot be determined statically")
        return self._is_discrete

    @property
    def event_dim(self) -> Any:
        if self._event_dim is NotImplemented:
            raise NotImplementedError(".event_dim cannot be determined statically")
        return self._event_dim

    def __call__(self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented) -> Any:
        return _Dependent(is_discrete=self._is_discrete if is_discrete is NotImplemented else is_discrete,
                          event_dim=self._event_dim if event_dim is NotImplemented else event_dim)

    def check(self, value: Any) -> Any:
        raise ValueError("Cannot determine validity of dependent constraint")


class _DependentProperty(property, _Dependent):
    """A property of a distribution or transform that is a constraint; of its class, one that cannot be checked."""

    def __init__(self, fn: Callable[..., Any] | None = None, *, is_discrete: Any = NotImplemented,
                 event_dim: Any = NotImplemented) -> None:
        property.__init__(self, fn)
        self._is_discrete, self._event_dim = is_discrete, event_dim

    def __call__(self, fn: Callable[..., Any]) -> Any:  # type: ignore[override]
        return _DependentProperty(fn, is_discrete=self._is_discrete, event_dim=self._event_dim)


def is_dependent(constraint: Any) -> bool:
    """Does the set depend on other parameters?"""
    return isinstance(constraint, _Dependent)


class _Wrapping(Constraint):
    """A set made of another one."""

    def __init__(self, base_constraint: Constraint) -> None:
        if not isinstance(base_constraint, Constraint):
            raise AssertionError(f"base_constraint must be a Constraint, got {type(base_constraint).__name__}")
        self.base_constraint = base_constraint

    is_discrete = property(lambda self: self.base_constraint.is_discrete)


class _IndependentConstraint(_Wrapping):
    """A set whose events have ``reinterpreted_batch_ndims`` more dimensions: all entries must be in the base set."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        super().__init__(base_constraint)
        if reinterpreted_batch_ndims < 0:
            raise AssertionError(f"reinterpreted_batch_ndims must be >= 0, got {reinterpreted_batch_ndims}")
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    event_dim = property(lambda self: self.base_constraint.event_dim + self.reinterpreted_batch_ndims)

    def check(self, value: Any) -> Any:
        result = self.base_constraint.check(value)
        if result.dim() < self.reinterpreted_batch_ndims:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        return _all_from(result, result.dim() - self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


def widened(constraint: Any, dims: int) -> Any:
    """The set whose events have so many more dimensions; the set itself for none."""
    return _IndependentConstraint(constraint, dims) if dims else constraint


class MixtureSameFamilyConstraint(_Wrapping):
    """The set of the components of a mixture, for values without the components' dimension."""

    event_dim = property(lambda self: self.base_constraint.event_dim)

    def check(self, value: Any) -> Any:
        if value.dim() < self.event_dim:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        return _all_from(self.base_constraint.check(value.unsqueeze(-1 - self.event_dim)), value.dim() - self.event_dim)

    def __repr__(self) -> str:
        return f"MixtureSameFamilyConstraint({self.base_constraint!r})"


def _all_from(checked: Any, dim: int) -> Any:
    """Are all elements true, for each index into the first ``dim`` dimensions?"""
    return checked.unsqueeze(-1).flatten(dim).all(-1)


class _Boolean(Constraint):
    """0 or 1."""

    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value == 0) | (value == 1)


class _OneHot(Constraint):
    """Vectors of zeros with a single 1."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Any) -> Any:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class _Real(Constraint):
    """All numbers, infinities among them, but not NaN."""

    def check(self, value: Any) -> Any:
        return value == value


class _Lower(Constraint):
    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound


class _Upper(Constraint):
    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound


class _Between(Constraint):
    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound


class _IntegerGreaterThan(_Lower):
    """Integers from the bound on."""

    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value % 1 == 0) & (value >= self.lower_bound)


class _IntegerInterval(_Between):
    """Integers between two bounds, or one of them."""

    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value % 1 == 0) & (value >= self.lower_bound) & (value <= self.upper_bound)


class _GreaterThan(_Lower):
    """Numbers above the bound."""

    def check(self, value: Any) -> Any:
        return value > self.lower_bound


class _GreaterThanEq(_Lower):
    """Numbers from the bound on."""

    def check(self, value: Any) -> Any:
        return value >= self.lower_bound


class _LessThan(_Upper):
    """Numbers below the bound."""

    def check(self, value: Any) -> Any:
        return value < self.upper_bound


class _Interval(_Between):
    """Numbers between two bounds, or one of them."""

    def check(self, value: Any) -> Any:
        return (value >= self.lower_bound) & (value <= self.upper_bound)


class _HalfOpenInterval(_Between):
    """Numbers between two bounds, or the lower one."""

    def check(self, value: Any) -> Any:
        return (value >= self.lower_bound) & (value < self.upper_bound)


class _Simplex(Constraint):
    """Vectors of numbers from 0 on whose sum is 1 within 1e-6."""

    event_dim = 1

    def check(self, value: Any) -> Any:
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)


class _Multinomial(_Upper):
    """Vectors of counts whose sum is at most the bound."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Any) -> Any:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)

    def __repr__(self) -> str:
        return "Multinomial()"


class _Matrix(Constraint):
    event_dim = 2


class _LowerTriangular(_Matrix):
    """Lower triangular matrices."""

    def check(self, value: Any) -> Any:
        return (value.tril() == value).flatten(-2).all(-1)


class _LowerCholesky(_LowerTriangular):
    """Lower triangular matrices with a positive diagonal."""

    def check(self, value: Any) -> Any:
        return super().check(value) & (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


class _CorrCholesky(_LowerCholesky):
    """Lower triangular matrices with a positive diagonal and rows of length 1."""

    def check(self, value: Any) -> Any:
        room = float(finfo(value.dtype).eps) * value.shape[-1] * 10
        return super().check(value) & ((value.detach().square().sum(-1).sqrt() - 1).abs() <= room).all(-1)


class _Square(_Matrix):
    """Square matrices."""

    def check(self, value: Any) -> Any:
        return functional.full(value.shape[:-2], value.shape[-2] == value.shape[-1], dtype=bool, device=value.device)


class _Symmetric(_Square):
    """Square matrices that equal their transpose within 1e-6."""

    def check(self, value: Any) -> Any:
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return value.isclose(value.mT, atol=1e-6).flatten(-2).all(-1)


class _PositiveDefinite(_Symmetric):
    """Symmetric matrices whose leading minors are positive."""

    def check(self, value: Any) -> Any:
        parts = (value.detach()[..., :n, :n] for n in range(1, min(value.shape[-2:]) + 1))
        # A factorization would raise for the whole batch.
        return functools.reduce(operator.and_, (linalg.slogdet(part).sign > 0 for part in parts), super().check(value))


class _Stack(Constraint):
    """Values whose parts along ``dim`` are each in a set of their own."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        if not all(isinstance(c, Constraint) for c in cseq):
            raise AssertionError("All elements of cseq must be Constraint instances")
        self.cseq, self.dim = list(cseq), dim

    is_discrete = property(lambda self: any(c.is_discrete for c in self.cseq))

    @property
    def event_dim(self) -> Any:
        dim = max(c.event_dim for c in self.cseq)
        return dim + 1 if self.dim + dim < 0 else dim

    def check(self, value: Any) -> Any:
        return functional.stack([c.check(value.select(self.dim, i)) for i, c in enumerate(self.cseq)], self.dim)


dependent, dependent_property, independent = _Dependent(), _DependentProperty, _IndependentConstraint
boolean, one_hot, real, real_vector = _Boolean(), _OneHot(), _Real(), _IndependentConstraint(_Real(), 1)
nonnegative_integer, positive_integer, integer_interval = _IntegerGreaterThan(0), _IntegerGreaterThan(1), _IntegerInterval
positive, nonnegative, greater_than, greater_than_eq = _GreaterThan(0.0), _GreaterThanEq(0.0), _GreaterThan, _GreaterThanEq
less_than, multinomial, unit_interval = _LessThan, _Multinomial, _Interval(0.0, 1.0)
interval, half_open_interval, simplex, stack = _Interval, _HalfOpenInterval, _Simplex(), _Stack
lower_triangular, lower_cholesky, corr_cholesky = _LowerTriangular(), _LowerCholesky(), _CorrCholesky()
square, symmetric, positive_definite = _Square(), _Symmetric(), _PositiveDefinite()

__all__ = [
    "Constraint", "MixtureSameFamilyConstraint", "boolean", "corr_cholesky", "dependent", "dependent_property", "greater_than",
    "greater_than_eq", "half_open_interval", "independent", "integer_interval", "interval", "is_dependent", "less_than",
    "lower_cholesky", "lower_triangular", "multinomial", "nonnegative", "nonnegative_integer", "one_hot", "positive",
    "positive_definite", "positive_integer", "real", "real_vector", "simplex", "square", "stack", "symmetric", "unit_interval"]
