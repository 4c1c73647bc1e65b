"""``validate_args`` of distributions, their constraints and supports, compared with PyTorch's, and what is refused."""

from __future__ import annotations

import inspect
import math
import re
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import distributions
from tests.conftest import raises
from tests.host.distributions import test_distribution_kinds as kinds
from tests.host.distributions.test_distribution_classes import KINDS, made

#: Distributions with bad parameters, or values that they cannot have.
BAD: dict[str, Any] = {
    "scale": lambda t, d: d.Normal(t([0.0, 1.0]), t([1.0, -1.0]), validate_args=True),
    "NaN": lambda t, d: d.Normal(t(float("nan")), t(1.0), validate_args=True),
    "rate": lambda t, d: d.Exponential(t([0.0]), validate_args=True),
    "range": lambda t, d: d.Uniform(t(1.0), t(1.0), validate_args=True),
    "probability": lambda t, d: d.Bernoulli(t([1.5, 0.0]), validate_args=True),
    "logits": lambda t, d: d.Categorical(logits=t([float("nan"), 0.0]), validate_args=True),
    "probabilities": lambda t, d: d.Categorical(t([-1.0, 3.0]), validate_args=True),
    "factor": lambda t, d: d.MultivariateNormal(t([0.0, 0.0]), scale_tril=t([[1.0, 2.0], [2.0, 1.0]]), validate_args=True),
    "covariance": lambda t, d: d.MultivariateNormal(t([0.0, 0.0]), t([[-1.0, 0.0], [0.0, 1.0]]), validate_args=True),
    "half a covariance": lambda t, d: d.MultivariateNormal(t([0.0, 0.0]), t([[1.0, 0.5], [0.0, 1.0]]), validate_args=True),
    "precision": lambda t, d: d.MultivariateNormal(t([0.0, 0.0]), precision_matrix=t([[1.0, 2.0], [2.0, 1.0]]),
                                                   validate_args=True),
    "value": lambda t, d: d.Exponential(t([1.0, 2.0]), validate_args=True).log_prob(t([1.0, -2.0])),
    "NaN value": lambda t, d: d.Normal(t([1.0, 2.0]), 1.0, validate_args=True).cdf(t([1.0, float("nan")])),
    "no bool": lambda t, d: d.Bernoulli(t([0.5, 0.2]), validate_args=True).log_prob(t([0.5, 1.0])),
    "no index": lambda t, d: d.Categorical(t([0.5, 0.5]), validate_args=True).log_prob(t(2.0)),
    "shape": lambda t, d: d.Normal(t([1.0, 2.0]), 1.0, validate_args=True).log_prob(t([1.0, 2.0, 3.0])),
    "event": lambda t, d: d.MultivariateNormal(t([0.0, 0.0]), t([[1.0, 0.0], [0.0, 1.0]]),
                                               validate_args=True).log_prob(t([1.0, 2.0, 3.0])),
    "number": lambda t, d: d.Normal(t([1.0, 2.0]), 1.0, validate_args=True).log_prob(0.5),
    "transformed": lambda t, d: d.TransformedDistribution(d.Normal(t([1.0]), 1.0), d.ExpTransform(),
                                                          validate_args=True).log_prob(t([-1.0]))}


def message(library: Any, maker: Any) -> str:
    try:
        made(library, maker)
    except ValueError as error:
        # How a tensor is shown differs.
        return re.sub(r"values:\ntensor\(.*", "", str(error), flags=re.S).replace("gradcore.", "torch.")
    raise AssertionError("nothing was raised")


@pytest.mark.oracle
@pytest.mark.parametrize("name", BAD)
def test_bad_values_raise_as_pytorchs(name: str, torch: Any) -> None:
    assert message(gradcore, BAD[name]) == message(torch, BAD[name])


@pytest.mark.parametrize("method", ["log_prob", "cdf"])
@pytest.mark.parametrize("maker", [maker for maker, *_ in (*KINDS.values(), *kinds.KINDS.values())])
def test_all_that_are_validated_check_their_values(maker: Any, method: str) -> None:
    class Validating:
        def __getattr__(self, name: str) -> Any:
            return partial(getattr(distributions, name), validate_args=True)

    p = maker(lambda v: gradcore.tensor(v, dtype=gradcore.float64, requires_grad=True), Validating())
    value = p.sample((3,))
    assert not value.requires_grad
    with suppress(NotImplementedError):
        getattr(p, method)(value)
        with raises(ValueError, "to be within the support"):
            getattr(p, method)(value * (math.nan if value.is_floating_point() else 10) - 1)


@pytest.mark.oracle
@pytest.mark.parametrize("name", KINDS)
def test_constraints_and_supports_are_pytorchs(name: str, torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        p = made(library, KINDS[name][0])
        of = p.sample((2,))
        limits = {} if name == "Uniform" else {k: repr(v) for k, v in p.arg_constraints.items()}
        support = "" if name == "Uniform" else repr(p.support)
        mode = p.mode.tolist() if name != "Uniform" else None
        found.append((limits, support, p.support.is_discrete, p.support.event_dim, p.support.check(of).tolist(),
                      p.has_enumerate_support, mode))
    assert found[0] == found[1]


def said(kind: type) -> list[Any]:
    """What a class says without an object."""
    found: list[Any] = [(p.name, p.kind, p.default) for p in inspect.signature(kind).parameters.values()]
    for path in ("support.is_discrete", "support.event_dim", "domain.is_discrete", "domain.event_dim", "codomain.is_discrete",
                 "codomain.event_dim", "bijective", "sign", "has_rsample", "has_enumerate_support", "arg_constraints"):
        with suppress(AttributeError, NotImplementedError):
            value = attrgetter(path)(kind)
            found.append((path, {k: repr(v) for k, v in value.items()} if isinstance(value, dict) else
                          "a property" if isinstance(value, property) else value))
    return found


@pytest.mark.oracle
@pytest.mark.parametrize("module", ["distributions", "distributions.transforms"])
def test_classes_say_what_pytorchs_say(module: str, torch: Any) -> None:
    ours, theirs = attrgetter(module)(gradcore), attrgetter(module)(torch)
    for name, kind in vars(ours).items():
        # A transform has the real numbers unless it says otherwise.
        if inspect.isclass(kind) and name != "Transform" and hasattr(theirs, name):
            assert said(kind) == said(getattr(theirs, name)), name


def test_the_default_can_be_set() -> None:
    distributions.Normal(0.0, -1.0)
    assert distributions.Geometric(0.0).mean.item() == math.inf
    distributions.Distribution.set_default_validate_args(True)
    try:
        with raises(ValueError, "of distribution Normal(loc: 0.0, scale: -1.0) to satisfy"):
            distributions.Normal(0.0, -1.0)
        assert distributions.Normal(0.0, -1.0, validate_args=False).scale.item() == -1
    finally:
        distributions.Distribution.set_default_validate_args(False)
    assert distributions.Bernoulli(gradcore.tensor([0.5, 0.7])).mode.isnan().tolist() == [True, False]


@pytest.mark.oracle
def test_constraints_check_as_pytorchs(torch: Any) -> None:
    values = {"boolean": [0, 1, 0.5], "one_hot": [[0, 1, 0], [1, 1, 0], [0, 0, 0]],
              "simplex": [[0.5, 0.5], [0.5, 0.4], [-1, 2], [0, 1]],
              "positive": [0, 1e-9, -1], "nonnegative": [0, 1, -1], "unit_interval": [0, 1, 1.1], "real": [1, float("nan")],
              "nonnegative_integer": [0, 1.5, 3, -1], "positive_integer": [0, 1.5, 3],
              "real_vector": [[0, float("nan")], [1, 2]],
              "lower_triangular": [[[1, 2], [3, 4]], [[1, 0], [3, -1]]],
              "lower_cholesky": [[[1, 0], [3, 4]], [[1, 0], [3, -1]]],
              "corr_cholesky": [[[1, 0], [0.6, 0.8]], [[1, 0], [0.5, 0.5]]], "square": [[[1, 2], [3, 4]]],
              "symmetric": [[[1, 2], [3, 4]], [[1, 2], [2, 1]]], "half_open_interval(0.0, 1.0)": [0, 0.5, 1, -1],
              "integer_interval(1, 3)": [0, 1, 1.5, 3, 4], "interval(1, 3)": [0, 1, 1.5, 3, 4], "less_than(2)": [1, 2, 3],
              "greater_than(2)": [1, 2, 3], "greater_than_eq(2)": [1, 2, 3], "multinomial(3)": [[1, 2], [-1, 2], [3, 3]],
              "independent(constraints.positive, 2)": [[[1, 2], [3, 4]], [[1, 2], [3, 0]]],
              "stack([constraints.positive, constraints.boolean], -1)": [[1, 2], [0, 1]],
              "stack([constraints.real_vector, constraints.real_vector], 0)": [[[1, 2]], [[3, float("nan")]]],
              "stack([constraints.real_vector, constraints.simplex], -2)": [[[1, 2], [0, 1]], [[1, 2], [0, 2]]],
              "positive_definite": [[[1, 2], [2, 1]], [[2, 1], [1, 2]], [[-1, 0], [0, -1]]]}
    for name, value in values.items():
        found: list[Any] = []
        for t in (gradcore, torch):
            constraint = eval(f"constraints.{name}", vars(t.distributions))
            found.append((constraint.check(t.tensor(value, dtype=t.float64)).tolist(), constraint.event_dim,
                          constraint.is_discrete, repr(constraint)))
        assert found[0] == found[1], name


def test_what_a_constraint_cannot_be_says_so() -> None:
    c, one = distributions.constraints, gradcore.ones(())
    for call, kind, text in (
            (lambda: c.dependent.check(one), ValueError, "Cannot determine validity of dependent constraint"),
            (lambda: c.Constraint().check(one), NotImplementedError, ""),
            (lambda: c.dependent.event_dim, NotImplementedError, ".event_dim cannot be determined statically"),
            (lambda: c.dependent(event_dim=1).is_discrete, NotImplementedError, ".is_discrete cannot be determined statically"),
            (lambda: c.independent(one, 1), AssertionError, "base_constraint must be a Constraint, got Tensor"),
            (lambda: c.independent(c.real, -1), AssertionError, "reinterpreted_batch_ndims must be >= 0, got -1"),
            (lambda: c.real_vector.check(one), ValueError, "Expected value.dim() >= 1 but got 0"),
            (lambda: c.MixtureSameFamilyConstraint(c.real_vector).check(one), ValueError, "value.dim() >= 1 but got 0"),
            (lambda: c.stack([one]), AssertionError, "All elements of cseq must be Constraint instances")):
        with raises(kind, text):
            call()
    one_of_two = c.dependent(is_discrete=True)(event_dim=1)
    assert one_of_two.is_discrete is True and one_of_two.event_dim == one_of_two(is_discrete=False).event_dim == 1
    assert not c.positive_definite.check(gradcore.ones(2, 2)).item()
    for constraint in (c.square, c.symmetric, c.positive_definite):
        for shape in ((2, 2, 3), (2, 3, 2)):
            assert constraint.check(gradcore.ones(shape)).tolist() == [False, False]


def test_what_a_users_own_distribution_leaves_out_is_warned_of() -> None:
    class Bare(distributions.Distribution):
        pass

    with pytest.warns(UserWarning, match="does not define `arg_constraints`"):
        bare = Bare((2,), validate_args=True)
    with pytest.warns(UserWarning, match="does not define `support`"):
        bare._validate_sample(gradcore.ones(2))
    with raises(NotImplementedError, "defines a custom __init__ method must also define a custom .expand() method"):
        type("Own", (Bare,), {"__init__": lambda self: None})()._get_checked_instance(Bare)


def test_a_users_own_distribution_is_checked() -> None:
    class Shifted(distributions.Normal):
        arg_constraints = {**distributions.Normal.arg_constraints, "by": distributions.constraints.positive,
                           "scale": distributions.constraints.dependent}

        def __init__(self, loc: Any, by: Any, validate_args: bool | None = None) -> None:
            self.by = by
            super().__init__(loc + by, 1.0, validate_args=validate_args)

        def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
            made = self._get_checked_instance(Shifted, _instance)
            return super().expand(batch_shape, _instance=made)

    p = Shifted(gradcore.zeros(2), gradcore.ones(2), validate_args=True).expand((3, 2))
    assert type(p) is Shifted and p.by.shape == (3, 2) and p.log_prob(gradcore.ones(2)).shape == (3, 2)


def test_what_cannot_be_says_so() -> None:
    d, two = distributions, gradcore.ones(2)
    for call, kind, text in (
            (lambda: d.Geometric(), ValueError, "Either `probs` or `logits` must be specified, but not both."),
            (lambda: d.Geometric(two * 0, validate_args=True), ValueError, "to be positive but found invalid values"),
            (lambda: d.Poisson(-two).sample(), RuntimeError, "invalid Poisson rate, expected rate to be non-negative"),
            (lambda: d.Dirichlet(two.sum()), ValueError, "`concentration` parameter must be at least one-dimensional."),
            (lambda: d.Categorical(logits=two.sum()), ValueError, "`logits` parameter must be at least one-dimensional."),
            (lambda: d.Binomial(3, two * 2).sample(), RuntimeError, "probabilities in [0, 1], but prob is from 2.0 to 2.0"),
            (lambda: d.Binomial(-two, two).sample(), RuntimeError, "finite counts from 0 on and"),
            (lambda: d.Binomial(two, two, two), ValueError, "Either `probs` or `logits`"),
            (lambda: d.Binomial(gradcore.tensor([1, 2]), two).entropy(), NotImplementedError,
             "Inhomogeneous total count not supported by `entropy`"),
            (lambda: d.OneHotCategorical(two.sum()), ValueError, "`probs` parameter must be at least one-dimensional"),
            (lambda: d.OneHotCategorical(two).rsample(), NotImplementedError, "OneHotCategorical has no rsample()"),
            (lambda: d.MixtureSameFamily(d.Normal(two, two), d.Normal(two, two)), ValueError, "needs to be an"),
            (lambda: d.MixtureSameFamily(d.Categorical(two), two), ValueError, "The Component distribution needs to be an"),
            (lambda: d.MixtureSameFamily(d.Categorical(gradcore.ones(3)), d.Normal(two, two)), ValueError, "component` (3)"),
            (lambda: d.MixtureSameFamily(d.Categorical(gradcore.ones(3, 2)), d.Normal(gradcore.ones(4, 2), 1.0)), ValueError,
             "`mixture_distribution.batch_shape` (gradcore.Size([3])) is not compatible with"),
            (lambda: d.kl_divergence(*(d.MultivariateNormal(two[:n], gradcore.eye(n)) for n in (1, 2))), ValueError,
             "different event shapes"),
            (lambda: d.kl_divergence(*(d.Independent(d.Normal(two, two), n) for n in (0, 1))), NotImplementedError,
             "different reinterpreted_batch_ndims"),
            (lambda: d.Independent(d.Bernoulli(two), 1).enumerate_support(), NotImplementedError, "cartesian product"),
            (lambda: d.Distribution().log_prob(two), NotImplementedError, "Distribution has no log_prob"),
            (lambda: d.Distribution.set_default_validate_args(2), ValueError, "expects a bool, but got 2"),
            (lambda: d.Normal(np.ones(1), 1.0), TypeError, "parameters must be tensors or numbers, but got array([1.])"),
            (lambda: d.Chi2(-two, validate_args=True), ValueError, "parameter df (Tensor of shape (2,)) of"),
            (lambda: d.LogNormal(0.0, -1.0, validate_args=True), ValueError, "parameter scale (Tensor of shape ()) of"),
            (lambda: d.HalfNormal(two, validate_args=True).log_prob(-two), ValueError, "within the support (GreaterThanEq")):
        with raises(kind, text):
            call()
    assert d.HalfNormal(1.0).log_prob(gradcore.tensor(-1.0)).item() == -math.inf
    of = [(d.Bernoulli(two), 0), (d.Bernoulli(two), 1), (d.Normal(two, two), 0)]
    assert [d.Independent(base, n).has_enumerate_support for base, n in of] == [True, False, False]
    assert d.Independent(*of[0]).enumerate_support().tolist() == [[0, 0], [1, 1]]
    assert d.Normal(gradcore.ones(2, 1), 1.0, validate_args=True).log_prob(gradcore.ones(4, 1, 3)).shape == (4, 2, 3)
