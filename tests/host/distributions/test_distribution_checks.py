"""``validate_args`` of distributions, their constraints and supports, compared with PyTorch's."""

from __future__ import annotations

import re
from typing import Any

import pytest

import gradcore
from gradcore import distributions
from tests.conftest import raises
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


def test_the_default_can_be_set() -> None:
    distributions.Normal(0.0, -1.0)
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
              "simplex": [[0.5, 0.5], [0.5, 0.4], [-1, 2]],
              "positive": [0, 1e-9, -1], "nonnegative": [0, 1, -1], "unit_interval": [0, 1, 1.1], "real": [1, float("nan")],
              "nonnegative_integer": [0, 1.5, 3, -1], "positive_integer": [0, 1.5, 3],
              "real_vector": [[0, float("nan")], [1, 2]],
              "lower_triangular": [[[1, 2], [3, 4]], [[1, 0], [3, -1]]],
              "lower_cholesky": [[[1, 0], [3, 4]], [[1, 0], [3, -1]]],
              "corr_cholesky": [[[1, 0], [0.6, 0.8]], [[1, 0], [0.5, 0.5]]], "square": [[[1, 2], [3, 4]]],
              "symmetric": [[[1, 2], [3, 4]], [[1, 2], [2, 1]]], "positive_definite": [[[1, 2], [2, 1]], [[2, 1], [1, 2]]]}
    for name, value in values.items():
        found = [getattr(t.distributions.constraints, name).check(t.tensor(value, dtype=t.float64)).tolist()
                 for t in (gradcore, torch)]
        assert found[0] == found[1], name


def test_a_users_own_distribution_is_checked() -> None:
    class Shifted(distributions.Normal):
        arg_constraints = {**distributions.Normal.arg_constraints, "by": distributions.constraints.positive}

        def __init__(self, loc: Any, by: Any, validate_args: bool | None = None) -> None:
            self.by = by
            super().__init__(loc + by, 1.0, validate_args=validate_args)

        def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
            made = self._get_checked_instance(Shifted, _instance)
            return super().expand(batch_shape, _instance=made)

    p = Shifted(gradcore.zeros(2), gradcore.ones(2), validate_args=True).expand((3, 2))
    assert type(p) is Shifted and p.by.shape == (3, 2) and p.log_prob(gradcore.ones(2)).shape == (3, 2)
