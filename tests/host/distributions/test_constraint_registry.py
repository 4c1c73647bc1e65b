"""``biject_to`` and ``transform_to`` give PyTorch's transforms, with their values, gradients and determinants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises

#: By name: a constraint of a library's, and the shape of what is transformed into its set.
CONSTRAINTS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "real": (lambda t, c: c.real, (3,)), "real_vector": (lambda t, c: c.real_vector, (2, 3)),
    "positive": (lambda t, c: c.positive, (3,)), "nonnegative": (lambda t, c: c.nonnegative, (3,)),
    "greater_than": (lambda t, c: c.greater_than(t.tensor([1.0, -2.0, 0.0], dtype=t.float64)), (3,)),
    "greater_than_eq": (lambda t, c: c.greater_than_eq(2), (3,)), "less_than": (lambda t, c: c.less_than(-1.5), (3,)),
    "unit_interval": (lambda t, c: c.unit_interval, (3,)), "interval": (lambda t, c: c.interval(-1, 3.5), (3,)),
    "half_open_interval": (lambda t, c: c.half_open_interval(0, 2), (3,)), "simplex": (lambda t, c: c.simplex, (2, 3)),
    "independent": (lambda t, c: c.independent(c.positive, 1), (2, 3)),
    "stack": (lambda t, c: c.stack([c.positive, c.real, c.unit_interval], -1), (2, 3)),
    "cat": (lambda t, c: c.cat([c.positive, c.unit_interval, c.real], -1, [2, 1, 1]), (2, 4)),
    "cat of vectors": (lambda t, c: c.cat([c.independent(k, 1) for k in (c.positive, c.interval(0, 2))], 0, [1, 2]), (3, 4)),
    "cat of one each": (lambda t, c: c.cat([c.positive, c.unit_interval], 1), (3, 2)),
    "corr_cholesky": (lambda t, c: c.corr_cholesky, (2, 6)), "corr_cholesky of two": (lambda t, c: c.corr_cholesky, (1,)),
    "positive_semidefinite": (lambda t, c: c.positive_semidefinite, (2, 3, 3)),
    "lower_cholesky": (lambda t, c: c.lower_cholesky, (2, 3, 3)),
    "positive_definite": (lambda t, c: c.positive_definite, (2, 3, 3))}


@pytest.mark.oracle
@pytest.mark.parametrize("registry", ["biject_to", "transform_to"])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_the_transforms_are_pytorchs(name: str, registry: str, torch: Any) -> None:
    make, shape = CONSTRAINTS[name]
    values, found = np.random.default_rng(0).normal(size=shape), []
    for t in (gradcore, torch):
        constraint, into = make(t, t.distributions.constraints), getattr(t.distributions, registry)
        if registry == "biject_to" and name in (
                "lower_cholesky", "positive_definite", "positive_semidefinite"):
            with raises(NotImplementedError, f"Cannot transform {type(constraint).__name__} constraints"):
                into(constraint)
            continue
        made, x = into(constraint), t.tensor(values, requires_grad=True)
        y = made(x)
        assert constraint.check(y).all()
        results = [y, made.inv(y.detach())]
        if registry == "biject_to":
            results.append(made.log_abs_det_jacobian(x, y))
        slope, = t.autograd.grad((y * t.linspace(-1, 2, y.numel(), dtype=t.float64).reshape(y.shape)).sum(), x)
        found.append((repr(made), [r.detach().numpy() for r in (*results, slope)]))
    if found:
        (ours, mine), (theirs, yours) = found
        assert ours == theirs
        for a, b in zip(mine, yours, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, 1e-9, 1e-12)


def test_one_registers_transforms_of_constraints_of_ones_own() -> None:
    d = gradcore.distributions

    class Even(d.constraints.Constraint):
        pass

    registry = d.constraint_registry.ConstraintRegistry()

    @registry.register(Even)  # type: ignore[untyped-decorator]
    def made(constraint: Any) -> Any:
        return d.AffineTransform(0.0, 2.0)

    assert registry(Even())(gradcore.ones(1)).tolist() == [2]
    registry.register(Even(), lambda constraint: d.ExpTransform())
    assert isinstance(registry(Even()), d.ExpTransform)
    with raises(TypeError, "Expected constraint to be either a Constraint subclass or instance, but got 3"):
        registry.register(3, made)
    with raises(NotImplementedError, "Cannot transform Even constraints"):
        d.biject_to(Even())
