"""``biject_to`` and ``transform_to``: transforms of all numbers into the set of a constraint, so that they can be optimized."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any

from gradcore.distributions import constraints, transforms
from gradcore.distributions.constraints import Constraint
from gradcore.distributions.transforms import AffineTransform, ComposeTransform, Transform

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """Functions that make a transform into the set of a constraint, by the class of the constraint."""

    def __init__(self) -> None:
        self._registry: dict[type, Factory] = {}

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Use ``factory`` for a class of constraints, or for that of a constraint; without one, return a decorator.

        Raises TypeError for anything that is no constraint.
        """
        if factory is None:
            return lambda factory: self.register(constraint, factory)
        kind = type(constraint) if isinstance(constraint, Constraint) else constraint
        if not (isinstance(kind, type) and issubclass(kind, Constraint)):
            raise TypeError(f"Expected constraint to be either a Constraint subclass or instance, but got {constraint}")
        self._registry[kind] = factory
        return factory

    def __call__(self, constraint: Any) -> Transform:
        """A transform into the set. Raises NotImplementedError for a class of constraints that none is registered for."""
        factory = self._registry.get(type(constraint))
        if factory is None:
            raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
        return factory(constraint)


#: Bijections, with a determinant; and transforms that need not be any, with as many numbers as the constraint suggests.
biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()


def _above(constraint: Any) -> Transform:
    return ComposeTransform([transforms.ExpTransform(), AffineTransform(constraint.lower_bound, 1)])


def _below(constraint: Any) -> Transform:
    return ComposeTransform([transforms.ExpTransform(), AffineTransform(constraint.upper_bound, -1)])


def _between(constraint: Any) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if isinstance(low, Number) and isinstance(high, Number) and (low, high) == (0, 1):
        return transforms.SigmoidTransform()
    return ComposeTransform([transforms.SigmoidTransform(), AffineTransform(low, high - low)])


def _of_any(kind: type[Transform]) -> Factory:
    return lambda constraint: kind()


def _register(to: ConstraintRegistry, others: dict[Any, type[Transform]]) -> None:
    def independent(constraint: Any) -> Transform:
        return transforms.IndependentTransform(to(constraint.base_constraint), constraint.reinterpreted_batch_ndims)

    def stack(constraint: Any) -> Transform:
        return transforms.StackTransform([to(each) for each in constraint.cseq], constraint.dim)

    def cat(constraint: Any) -> Transform:
        return transforms.CatTransform([to(each) for each in constraint.cseq], constraint.dim, constraint.lengths)

    factories: dict[Any, Factory] = {
        constraints.real: lambda constraint: transforms.identity_transform,
        constraints.greater_than: _above, constraints.greater_than_eq: _above, constraints.less_than: _below,
        constraints.interval: _between, constraints.half_open_interval: _between,
        constraints.independent: independent, constraints.stack: stack, constraints.cat: cat}
    for constraint, factory in factories.items():
        to.register(constraint, factory)
    for constraint, kind in others.items():
        to.register(constraint, _of_any(kind))


_register(biject_to, {constraints.simplex: transforms.StickBreakingTransform,
                      constraints.corr_cholesky: transforms.CorrCholeskyTransform})
_register(transform_to, {constraints.simplex: transforms.SoftmaxTransform,
                         constraints.lower_cholesky: transforms.LowerCholeskyTransform,
                         constraints.corr_cholesky: transforms.CorrCholeskyTransform,
                         constraints.positive_definite: transforms.PositiveDefiniteTransform,
                         constraints.positive_semidefinite: transforms.PositiveDefiniteTransform})
