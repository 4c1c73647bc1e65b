"""``gradcore.distributions`` compared with PyTorch's: equal densities, entropies and shapes, and matching samples."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest

import gradcore
from gradcore import distributions, nn
from gradcore.errors import NotCovered
from tests.conftest import raises

Maker = Any

#: Functions that create two distributions of a kind from a library's tensors, and values for log_prob.
KINDS: dict[str, tuple[Maker, Maker, Any]] = {
    "Normal": (lambda t, d: d.Normal(t([0.5, -1.0]), t([1.0, 2.0])), lambda t, d: d.Normal(0.0, t([2.0, 0.5])),
               [[0.1, 0.2], [3, -1]]),
    "Laplace": (lambda t, d: d.Laplace(t([0.5, -1.0]), t([1.0, 2.0])), lambda t, d: d.Laplace(t([1.0, -1.0]), 2.0),
                [0.1, -2.0]),
    "Exponential": (lambda t, d: d.Exponential(t([0.5, 2.0])), lambda t, d: d.Exponential(t([1.5, 1.0])), [0.1, 2.0]),
    "Uniform": (lambda t, d: d.Uniform(t([0.5, -1.0]), t([1.0, 2.0])), None, [[0.6, 1.9], [0.9, -1.0]]),
    "Bernoulli": (lambda t, d: d.Bernoulli(t([0.2, 0.9])), lambda t, d: d.Bernoulli(logits=t([0.3, -1.0])),
                  [[1.0, 0.0], [0, 0]]),
    "Categorical": (lambda t, d: d.Categorical(t([[1.0, 3.0, 4.0], [2.0, 1.0, 1.0]])),
                    lambda t, d: d.Categorical(logits=t([[0.1, 2.0, -1.0], [0.0, 0.0, 1.0]])), [2, 0]),
    "Independent": (lambda t, d: d.Independent(d.Normal(t([[0.5, -1.0]]), t([[1.0, 2.0]])), 1),
                    lambda t, d: d.Independent(d.Normal(t([[0.0, 0.0]]), 1.0), 1), [[0.1, 0.2]]),
    "MultivariateNormal": (lambda t, d: d.MultivariateNormal(t([0.5, -1.0]), t([[2.0, 0.5], [0.5, 1.0]])), None,
                           [[0.1, 0.2], [1, 1]]),
}


def made(library: Any, maker: Maker) -> Any:
    return maker(lambda v: library.tensor(v, dtype=library.float64), library.distributions)


def close(a: Any, b: Any, **how: Any) -> None:
    assert tuple(a.shape) == tuple(b.shape)
    np.testing.assert_allclose(np.asarray(a.detach()), np.asarray(b.detach()), rtol=1e-6, **how)


@pytest.mark.oracle
@pytest.mark.parametrize("name", KINDS)
def test_they_say_what_pytorchs_say(name: str, torch: Any) -> None:
    first, second, values = KINDS[name]
    found = []
    for library in (gradcore, torch):
        p = made(library, first)
        text = repr(p).replace("gradcore", "torch")
        of = library.tensor(values) if name == "Categorical" else library.tensor(values, dtype=library.float64)
        parts = [p.log_prob(of), p.entropy(), p.perplexity()]
        if name != "Categorical":
            parts += [p.mean, p.variance, p.stddev]
        if second is not None:
            q = made(library, second)
            parts += [library.distributions.kl_divergence(p, q), library.distributions.kl_divergence(q, p)]
        shapes = [tuple(p.sample(s).shape) for s in ((), (5,), (2, 3))] + [tuple(p.batch_shape), tuple(p.event_shape)]
        found.append((parts, shapes, text, p.has_rsample))
    for a, b in zip(found[0][0], found[1][0], strict=True):
        close(a, b, atol=1e-12)
    assert found[0][1:] == found[1][1:]


#: Of no dimensions: the parameters of one distribution.
SCALAR = {"Normal": 2, "Uniform": 2, "Laplace": 2, "Cauchy": 2, "Gumbel": 2, "LogNormal": 2, "Exponential": 1, "Gamma": 2,
          "StudentT": 1, "Pareto": 2, "Weibull": 2, "HalfNormal": 1, "HalfCauchy": 1, "Chi2": 1, "InverseGamma": 2, "Beta": 2,
          "RelaxedBernoulli": 2, "Bernoulli": 1, "Geometric": 1, "Poisson": 1, "FisherSnedecor": 2}


@pytest.mark.parametrize("name", SCALAR)
def test_one_distribution_draws_one_number(name: str) -> None:
    p = getattr(distributions, name)(*[gradcore.tensor(x) for x in (0.25, 0.75)[:SCALAR[name]]], validate_args=False)
    draws = [p.sample(), p.expand(()).sample(), *([p.rsample()] if p.has_rsample else [])]
    assert [(tuple(x.shape), x.isfinite().item()) for x in draws] == [((), True)] * len(draws)
    assert p.sample((2,)).shape == p.expand((2,)).sample().shape == (2,)


@pytest.mark.parametrize("name", [n for n in KINDS if n != "Categorical"])
def test_draws_have_the_mean_and_the_variance(name: str) -> None:
    gradcore.manual_seed(0)
    p = made(gradcore, KINDS[name][0])
    drawn = p.sample((20000,))
    assert not drawn.requires_grad and drawn.isfinite().all().item()
    for found, expected in ((drawn.mean(0), p.mean), (drawn.var(0), p.variance)):
        assert ((found - expected).abs() < 0.06 * p.stddev + 0.05 * p.variance).all().item()


@pytest.mark.oracle
@pytest.mark.parametrize("name", KINDS)
def test_expanded_and_inverted_they_are_pytorchs(name: str, torch: Any) -> None:
    first, _, values = KINDS[name]
    found = []
    for library in (gradcore, torch):
        p = made(library, first)
        wide = p.expand((3, 2, *p.batch_shape))
        of = library.tensor(values) if name == "Categorical" else library.tensor(values, dtype=library.float64)
        parts = [wide.log_prob(of), wide.entropy(), wide.sample((2,)) * 0]
        if name in ("Laplace", "Exponential", "Uniform"):
            share = library.tensor([[0.1, 0.9], [0.25, 0.5]], dtype=library.float64)
            parts += [p.icdf(share), p.cdf(p.icdf(share)), wide.cdf(of)]
        if name in ("Categorical", "Bernoulli"):
            parts += [wide.enumerate_support(), p.enumerate_support(expand=False)]
        found.append((wide.batch_shape, wide.event_shape, parts))
    assert tuple(map(tuple, found[0][:2])) == tuple(map(tuple, found[1][:2]))
    for a, b in zip(found[0][2], found[1][2], strict=True):
        close(a, b)
        assert str(a.dtype) == str(b.dtype).removeprefix("torch.")


@pytest.mark.parametrize("shape", [(), (2,), (2, 2), (1, 2)])
def test_mixtures_of_a_batch_share_weights_by_the_rules_of_broadcasting(shape: tuple[int, ...]) -> None:
    weights, means = gradcore.rand(*shape, 3), gradcore.arange(24.0).reshape(2, 2, 2, 3)
    found = [distributions.MixtureSameFamily(distributions.Categorical(w), distributions.Normal(means, 1.0))
             for w in (weights, weights.expand(2, 2, 2, 3))]
    for part in ("mean", "variance"):
        close(*(getattr(p, part) for p in found))
    close(*(p.log_prob(gradcore.ones(2, 2, 2)) for p in found))


@pytest.mark.parametrize("dtype", [gradcore.float16, gradcore.bfloat16])
@pytest.mark.parametrize("kind", ["Normal", "Laplace", "Cauchy", "Gumbel"])
def test_draws_of_few_bits_are_finite(kind: str, dtype: Any) -> None:
    gradcore.manual_seed(0)
    draws = getattr(distributions, kind)(*gradcore.tensor([0.0, 1.0], dtype=dtype)).sample((20_000,))
    assert draws.dtype == dtype and draws.isfinite().all().item()


def test_categories_come_as_often_as_they_are_likely() -> None:
    gradcore.manual_seed(0)
    p = distributions.Categorical(gradcore.tensor([[1.0, 3.0, 4.0], [2.0, 1.0, 1.0]]))
    counts = nn.functional.one_hot(p.sample((8000,)), 3).float().mean(0)
    assert (counts - p.probs).abs().max().item() < 0.03 and p.mode.tolist() == [2, 0]


@pytest.mark.parametrize("name", ["Normal", "Laplace", "Uniform", "Exponential", "MultivariateNormal"])
def test_gradients_pass_through_a_draw(name: str) -> None:
    parameters = {"Exponential": (2.0,), "Uniform": (0.0, 2.0)}.get(name, (1.0, 2.0))
    leaves = [gradcore.full((1,), v, requires_grad=True) for v in parameters]
    given = [leaves[0], leaves[1].reshape(1, 1)] if name == "MultivariateNormal" else leaves
    getattr(distributions, name)(*given).rsample((4000,)).mean().backward()
    # The mean of each is linear in all parameters but a rate, and does not depend on a deviation.
    expected = {"Exponential": [-0.25], "Uniform": [0.5, 0.5]}.get(name, [1.0, 0.0])
    assert [x.grad.item() for x in leaves] == pytest.approx(expected, abs=0.06)


@pytest.mark.oracle
@pytest.mark.parametrize("of", [lambda d, a, b: d.StudentT(a, b * 0, b).variance, lambda d, a, b: d.FisherSnedecor(b, a).mean])
def test_where_there_is_no_moment_gradients_are_0(of: Any, torch: Any) -> None:
    slopes = []
    for library in (gradcore, torch):
        df, scale = (library.tensor(v, requires_grad=True) for v in ([0.5, 1.0, 2.0, 5.0], 3.0))
        library.nan_to_num(of(library.distributions, df, scale), 0.0, 0.0).sum().backward()
        slopes.append([None if x.grad is None else x.grad.tolist() for x in (df, scale)])
    assert slopes[0][0] == pytest.approx(slopes[1][0]) and slopes[0][1] == pytest.approx(slopes[1][1])


def test_a_policys_step_is_replayed() -> None:
    policy = nn.Linear(3, 4)
    optimizer = gradcore.optim.SGD(policy.parameters(), lr=0.1)

    def step(x: Any, action: Any) -> Any:
        optimizer.zero_grad()
        choice = distributions.Categorical(logits=policy(x))
        spread = distributions.Normal(policy(x), 0.5)
        loss = -choice.log_prob(action).mean() - choice.entropy().mean() - spread.log_prob(spread.sample()).mean()
        loss.backward()
        optimizer.step()
        return loss

    start, found = {k: v.clone() for k, v in policy.state_dict().items()}, []
    for run in (step, gradcore.compile(step)):
        policy.load_state_dict(start)
        gradcore.manual_seed(3)
        found.append([run(gradcore.full((2, 3), 0.1 * k), gradcore.zeros(2, dtype=gradcore.int64)).item() for k in range(4)])
    assert found[0] == found[1] and len(run.programs) == 1  # type: ignore[attr-defined]


@pytest.mark.oracle
def test_a_precision_is_as_good_as_a_covariance(torch: Any) -> None:
    root, loc = np.random.default_rng(0).normal(size=(2, 3, 3)), np.array([0.5, -1.0, 2.0])
    found = []
    for library in (gradcore, torch):
        given = library.tensor(root @ root.transpose(0, 2, 1) + np.eye(3), requires_grad=True)
        p = library.distributions.MultivariateNormal(library.tensor(loc), precision_matrix=given)
        density = p.log_prob(library.tensor(2 * loc))
        slope, = library.autograd.grad(density.sum(), given)
        assert "precision_matrix: " in repr(p)
        found.append([x.detach().numpy() for x in (density, slope, p.precision_matrix, p.covariance_matrix, p.entropy())])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-9)


@pytest.mark.oracle
def test_vectors_that_share_a_factor_are_told_apart_from_those_that_do_not(torch: Any) -> None:
    rng = np.random.default_rng(0)
    shapes = [((3,), (), (3,)), ((3,), (), (5, 4, 3)), ((5, 3), (), (4, 5, 3)), ((5, 3), (1,), (5, 3)), ((3,), (5,), (4, 1, 3)),
              ((4, 1, 3), (5,), (2, 4, 5, 3)), ((3,), (4, 1), (4, 5, 3)), ((5, 3), (4, 1), (3,)), ((3,), (3,), (3, 3))]
    for loc, factors, value in shapes:
        root = np.tril(rng.normal(size=(*factors, 3, 3)), -1) + 2 * np.eye(3)
        numbers, found = [rng.normal(size=loc), root, rng.normal(size=value)], []
        for library in (gradcore, torch):
            leaves = [library.tensor(x, requires_grad=True) for x in numbers]
            p = library.distributions.MultivariateNormal(leaves[0], scale_tril=leaves[1])
            other = library.distributions.MultivariateNormal(library.zeros(3, dtype=library.float64),
                                                             leaves[1].detach() @ leaves[1].detach().mT)
            results = [p.log_prob(leaves[2]), library.distributions.kl_divergence(p, other),
                       library.distributions.kl_divergence(other, p)]
            slopes = library.autograd.grad(sum(x.square().sum() for x in results), leaves)
            assert p.rsample((2,)).shape == (2, *p.batch_shape, 3)
            found.append([x.detach().numpy() for x in (*results, *slopes)])
        for ours, theirs in zip(*found, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, 1e-9, 1e-9)


def test_no_factor_is_copied_for_each_vector() -> None:
    loc, factor = gradcore.zeros(500, 16, requires_grad=True), gradcore.eye(16, requires_grad=True)
    p = distributions.MultivariateNormal(loc, scale_tril=factor)
    with gradcore.step() as step:
        p.log_prob(p.rsample((4,))).sum().backward()
    assert step.report.peak.requested < 10 * 2000 * 16 * 4
    assert p.log_prob(gradcore.zeros(0, 1, 16)).shape == (0, 500)


@pytest.mark.oracle
def test_normals_of_matrices_that_are_derived_from_normals_of_vectors(torch: Any) -> None:
    found = []
    for t in (gradcore, torch):
        class OfMatrices(t.distributions.MultivariateNormal):
            event_shape: Any = t.Size((3, 2))

        covariance = t.diag(t.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=t.float64))
        p = OfMatrices(t.zeros(4, 6, dtype=t.float64), covariance)
        covariances = [p.covariance_matrix.tolist()]
        p.covariance_matrix = covariance * 2
        covariances.append(p.covariance_matrix.tolist())
        with pytest.raises(ValueError, match="covariance_matrix"):
            t.distributions.MultivariateNormal(t.zeros(6, dtype=t.float64), -covariance, validate_args=True)
        found.append([p.entropy().tolist(), p.log_prob(t.ones(6, dtype=t.float64)).tolist(), p.variance.tolist(),
                      p.scale_tril.tolist(), p.precision_matrix.tolist(), *covariances])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-12, 1e-12)


def test_what_there_is_not_says_so() -> None:
    two = gradcore.ones(2)
    for call, kind, text in (
            (lambda: distributions.Categorical(), ValueError, "Either `probs` or `logits` must be specified, but not both."),
            (lambda: distributions.Categorical(two.sum()), ValueError, "`probs` parameter must be at least one-dimensional"),
            (lambda: distributions.Bernoulli(two, two), ValueError, "Either `probs` or `logits`"),
            (lambda: distributions.Bernoulli(two).rsample(), NotImplementedError, "Bernoulli has no rsample()"),
            (lambda: distributions.MultivariateNormal(two), ValueError, "Exactly one of covariance_matrix or"),
            (lambda: distributions.MultivariateNormal(two, precision_matrix=two), ValueError,
             "precision_matrix must be at least two-dimensional, with optional leading batch dimensions"),
            (lambda: distributions.MultivariateNormal(two[0], scale_tril=two), ValueError, "loc must be at least one-d"),
            (lambda: distributions.Independent(distributions.Normal(two, two), 2), ValueError, "actual 2 vs 1"),
            (lambda: distributions.kl_divergence(distributions.Cauchy(two, two), distributions.Laplace(two, two)),
             NotImplementedError, "No KL(p || q) is implemented for p type Cauchy and q type Laplace"),
            (lambda: distributions.Kumaraswamy, NotCovered, "gradcore.distributions.Beta")):
        with raises(kind, text):
            call()
    assert distributions.Normal(0, 1).log_prob(gradcore.zeros(())).item() == pytest.approx(-0.5 * math.log(2 * math.pi))


@pytest.mark.oracle
def test_what_distributions_have_besides_pytorchs_begins_in_one_way(torch: Any) -> None:
    found = set()
    for name, kind in vars(distributions).items():
        if isinstance(kind, type) and issubclass(kind, (distributions.Distribution, distributions.Transform)):
            found |= {*dir(kind)} - {*dir(getattr(torch.distributions, name))}
    for name, kind in vars(distributions.constraints).items():
        if isinstance(kind, type) and hasattr(torch.distributions.constraints, name):
            found |= {*dir(kind)} - {*dir(getattr(torch.distributions.constraints, name))}
    # PyTorch's transforms say what these are of each kind.
    found -= {"domain", "codomain"}
    assert not [name for name in found if not name.startswith(("_dist_", "_transform_", "_constraint_", "_compile_", "__"))]


@pytest.mark.parametrize("name", "_shown _fixed _parts _drawn _check_value _validate_parameters _whole".split())
def test_a_programs_own_names_change_no_distribution(name: str) -> None:
    for members in ({}, {name: lambda self: "mine"}):
        p = type("Mine", (distributions.LogNormal,), members)(gradcore.zeros(2), gradcore.ones(2), validate_args=True)
        if not members:
            setattr(p, name, 3)
        assert repr(p).startswith("Mine(") and p.expand((3, 2)).sample().shape == (3, 2)
        assert p.log_prob(gradcore.ones(2)).isfinite().all().item() and p.cdf(gradcore.ones(2)).tolist() == [0.5, 0.5]


@pytest.mark.oracle
def test_parameters_of_the_common_shape_are_those_that_were_given(torch: Any) -> None:
    """So they are leaves, whose gradients are read, and which an optimizer takes."""
    found = []
    for library in (gradcore, torch):
        d, x, y = library.distributions, library.ones(2, requires_grad=True), library.ones(2, requires_grad=True)
        tensors = library.broadcast_tensors(x, y, library.ones(1))
        p = d.Normal(x, y)
        p.log_prob(library.zeros(2)).sum().backward()
        library.optim.SGD([p.loc, p.scale], lr=0.1).step()
        parts = [d.Gamma(x, 1.0).concentration, d.Bernoulli(logits=x).logits, d.Poisson(x).rate, d.StudentT(x).df]
        found.append(([t is x for t in tensors], [t is x for t in parts], p.loc.grad.tolist(), x.tolist(), y.tolist()))
    assert found[0] == found[1] and found[0][0] == [True, False, False] and all(found[0][1])


@pytest.mark.oracle
def test_a_class_of_a_programs_shows_its_parameters(torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        constraints = library.distributions.constraints

        class Ramp(library.distributions.Distribution):  # type: ignore[misc,name-defined]
            arg_constraints: ClassVar[dict[str, Any]] = {
                "low": constraints.real, "rate": constraints.positive, "computed": constraints.real}
            computed = property(lambda self: self.low)

            def __init__(self, low: Any, rate: Any) -> None:
                self.low, self.rate = low, rate
                super().__init__(rate.shape, validate_args=False)

        class Silent(library.distributions.Distribution):  # type: ignore[misc,name-defined]
            arg_constraints: ClassVar[dict[str, Any]] = {}

        found.append([repr(Ramp(library.tensor(2.0), library.ones(3))), repr(Silent(validate_args=False))])
    assert found[0] == [text.replace("torch.", "gradcore.") for text in found[1]]
    assert found[0][0] == "Ramp(low: 2.0, rate: gradcore.Size([3]))"
