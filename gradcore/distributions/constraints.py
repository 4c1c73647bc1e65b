"""The sets to which parameters and values of distributions belong, with the names of ``torch.distributions.constraints``.

:meth:`Constraint.check` is composed of ops and reads nothing from the device.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from gradcore import functional
from gradcore.distributions.constraint import (
    Constraint,
    _Cat,
    _Dependent,
    _DependentProperty,
    _IndependentConstraint,
    _Stack,
    _Wrapping,
    all_from,
    is_dependent,
)
from gradcore.distributions.constraint import (
    widened as widened,
)
from gradcore.functional import linalg
from gradcore.functional.types import finfo


class MixtureSameFamilyConstraint(_Wrapping):
    """The set of the components of a mixture, for values without the components' dimension."""

    event_dim = property(lambda self: self.base_constraint.event_dim)

    def check(self, value: Any) -> Any:
        if value.dim() < self.event_dim:
            raise ValueError(f"Expected value.dim() >= {self.event_dim} but got {value.dim()}")
        return all_from(self.base_constraint.check(value.unsqueeze(-1 - self.event_dim)), value.dim() - self.event_dim)

    def __repr__(self) -> str:
        return f"MixtureSameFamilyConstraint({self.base_constraint!r})"


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


class _PositiveSemidefinite(_Symmetric):
    """Symmetric matrices without a negative eigenvalue, as these are computed."""

    def check(self, value: Any) -> Any:
        fits = super().check(value)
        return fits & (linalg.eigvalsh(value.detach()) >= 0).all(-1) if value.shape[-2] == value.shape[-1] else fits


dependent, dependent_property, independent = _Dependent(), _DependentProperty, _IndependentConstraint
boolean, one_hot, real, real_vector = _Boolean(), _OneHot(), _Real(), _IndependentConstraint(_Real(), 1)
nonnegative_integer, positive_integer, integer_interval = _IntegerGreaterThan(0), _IntegerGreaterThan(1), _IntegerInterval
positive, nonnegative, greater_than, greater_than_eq = _GreaterThan(0.0), _GreaterThanEq(0.0), _GreaterThan, _GreaterThanEq
less_than, multinomial, unit_interval = _LessThan, _Multinomial, _Interval(0.0, 1.0)
interval, half_open_interval, simplex, stack = _Interval, _HalfOpenInterval, _Simplex(), _Stack
lower_triangular, lower_cholesky, corr_cholesky = _LowerTriangular(), _LowerCholesky(), _CorrCholesky()
square, symmetric, positive_definite = _Square(), _Symmetric(), _PositiveDefinite()
positive_semidefinite, cat = _PositiveSemidefinite(), _Cat

__all__ = [
    "Constraint", "MixtureSameFamilyConstraint", "boolean", "cat", "corr_cholesky", "dependent", "dependent_property",
    "greater_than", "greater_than_eq", "half_open_interval", "independent", "integer_interval", "interval", "is_dependent",
    "less_than", "lower_cholesky", "lower_triangular", "multinomial", "nonnegative", "nonnegative_integer", "one_hot",
    "positive", "positive_definite", "positive_integer", "positive_semidefinite", "real", "real_vector", "simplex",
    "square", "stack", "symmetric", "unit_interval"]
