"""Distributions that are made of others, of vectors and of counts, compared with PyTorch's: all that they say of themselves."""

from __future__ import annotations

import gc
import inspect
import itertools
import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import distributions, functional
from gradcore.distributions import kl
from gradcore.errors import DataDependentShape
from tests.conftest import raises

P = [[0.1, 0.3, 0.6], [0.2, 0.5, 0.3]]
#: Functions that create a distribution from a library's tensors, values, and shares for icdf.
KINDS: dict[str, tuple[Any, Any]] = {
    "LogNormal": (lambda t, d: d.LogNormal(t([0.5, -1.0]), t([0.7, 0.4])), [[0.1, 2.0], [3.0, 0.2]]),
    "Gumbel": (lambda t, d: d.Gumbel(t([0.5, -1.0]), t([0.7, 2.0])), [[0.1, -2.0], [3.0, 0.2]]),
    "HalfNormal": (lambda t, d: d.HalfNormal(t([0.5, 2.0])), [[0.1, 2.0], [0.0, 0.2]]),
    "HalfCauchy": (lambda t, d: d.HalfCauchy(t([0.5, 2.0])), [[0.1, 2.0], [0.0, 0.2]]),
    "Cauchy": (lambda t, d: d.Cauchy(t([0.5, -1.0]), t([0.7, 2.0])), [[0.1, -2.0], [30.0, 0.2]]),
    "Pareto": (lambda t, d: d.Pareto(t([0.5, 1.0]), t([3.5, 4.0])), [[0.6, 2.0], [3.0, 1.2]]),
    "Pareto without a variance": (lambda t, d: d.Pareto(t(1.0), t([1.0, 2.0])), [[1.6, 2.0], [3.0, 1.2]]),
    "Weibull": (lambda t, d: d.Weibull(t([0.5, 2.0]), t([0.7, 3.0])), [[0.6, 2.0], [3.0, 1.2]]),
    "Poisson": (lambda t, d: d.Poisson(t([0.5, 7.3])), [[0.0, 5.0], [2.0, 11.0]]),
    "Binomial": (lambda t, d: d.Binomial(t(5.0), t([0.5, 0.1])), [[0.0, 5.0], [2.0, 1.0]]),
    "Binomial by logits": (lambda t, d: d.Binomial(3, logits=t([-0.5, 2.1])), [[0.0, 3.0], [2.0, 1.0]]),
    "Normal": (lambda t, d: d.Normal(t([0.5, -2.0]), t([0.7, 3.0])), [[0.6, 2.0], [3.0, 1.2]]),
    "Geometric": (lambda t, d: d.Geometric(t([0.3, 1.0])), [[0.0, 0.0], [3.0, 2.0]]),
    "Geometric by logits": (lambda t, d: d.Geometric(logits=t([0.3, -1.0])), [[0.0, 0.0], [3.0, 1.0]]),
    "LogisticNormal": (lambda t, d: d.LogisticNormal(t([[0.5, -1.0]]), t([0.7, 2.0])), P),
    "OneHotCategorical": (lambda t, d: d.OneHotCategorical(t(P)), [[0, 1, 0], [1, 0, 0]]),
    "OneHotCategorical by logits": (lambda t, d: d.OneHotCategorical(logits=t(P[0])), [[0, 1, 0], [1, 0, 0]]),
    "OneHotCategoricalStraightThrough": (lambda t, d: d.OneHotCategoricalStraightThrough(t(P)), [[0, 1, 0], [1, 0, 0]]),
    "RelaxedBernoulli": (lambda t, d: d.RelaxedBernoulli(t(0.7), t([0.3, 0.9])), [[0.1, 0.8], [0.5, 0.99]]),
    "RelaxedBernoulli by logits": (lambda t, d: d.RelaxedBernoulli(t([2.2]), logits=t([0.3, -0.9])), [[0.1, 0.8], [0.5, 0.99]]),
    "RelaxedOneHotCategorical": (lambda t, d: d.RelaxedOneHotCategorical(t(0.7), t(P)), P),
    "RelaxedOneHotCategorical by logits": (lambda t, d: d.RelaxedOneHotCategorical(t([1.7]), logits=t(P[1])), P),
    "Gamma": (lambda t, d: d.Gamma(t([0.5, 3.0]), t([0.7, 2.0])), [[0.1, 2.0], [3.0, 0.2]]),
    "Chi2": (lambda t, d: d.Chi2(t([0.5, 3.0])), [[0.1, 2.0], [3.0, 0.2]]),
    "InverseGamma": (lambda t, d: d.InverseGamma(t([0.5, 3.0]), t([0.7, 2.0])), [[0.1, 2.0], [3.0, 0.2]]),
    "InverseGamma without a mean": (lambda t, d: d.InverseGamma(t([1.0, 2.0]), t(0.7)), [[0.1, 2.0], [3.0, 0.2]]),
    "Beta": (lambda t, d: d.Beta(t([0.5, 3.0]), t([1.7, 2.0])), [[0.1, 0.9], [0.3, 0.2]]),
    "Beta below 1": (lambda t, d: d.Beta(t([0.5, 0.3]), t([0.7, 0.3])), [[0.1, 0.9], [0.3, 0.2]]),
    "Dirichlet": (lambda t, d: d.Dirichlet(t([[0.5, 3.0, 1.0], [2.0, 3.0, 7.0]])), P),
    "Dirichlet of ones": (lambda t, d: d.Dirichlet(t([1.0, 1.0, 1.0])), P[0]),
    "Dirichlet below 1": (lambda t, d: d.Dirichlet(t([0.5, 0.7, 0.2])), P[0]),
    "StudentT": (lambda t, d: d.StudentT(t([5.5, 9.0]), t([1.7, 2.0]), t(0.5)), [[0.1, 2.0], [3.0, -0.2]]),
    "StudentT without a variance": (lambda t, d: d.StudentT(t([1.0, 2.0, 2.5])), [[0.1, 2.0, 1.0], [3.0, -0.2, 0.0]]),
    "FisherSnedecor": (lambda t, d: d.FisherSnedecor(t([1.5, 3.0]), t([14.7, 29.0])), [[0.1, 2.0], [3.0, 0.2]]),
    "FisherSnedecor without a variance": (lambda t, d: d.FisherSnedecor(t([2.0, 3.0, 2.5]), t([2.0, 4.0, 2.5])),
                                          [[0.1, 2.0, 1.0], [3.0, 0.2, 2.0]]),
    "NegativeBinomial": (lambda t, d: d.NegativeBinomial(t(5.5), t([0.5, 0.1])), [[0.0, 5.0], [2.0, 1.0]]),
    "NegativeBinomial by logits": (lambda t, d: d.NegativeBinomial(3, logits=t([-0.5, 2.1])), [[0.0, 3.0], [2.0, 1.0]]),
    "NegativeBinomial of nothing": (lambda t, d: d.NegativeBinomial(t(0.0), t([0.5, 0.1])), [[0.0, 0.0], [0.0, 0.0]]),
    "mixture": (lambda t, d: d.MixtureSameFamily(d.Categorical(t(P[0])), d.Normal(t([-1.0, 0.0, 2.0]), t([0.5, 1.0, 0.2]))),
                [[0.1], [2.0]]),
    "mixture of vectors": (lambda t, d: d.MixtureSameFamily(d.Categorical(logits=t(P)), d.Independent(
        d.Normal(t([[[0.0, 1.0], [-1.0, 2.0], [3.0, 3.0]], [[0.0, 1.0], [1.0, 2.0], [3.0, 0.3]]]), t(1.0)), 1)),
                           [[0.1, 2.0], [0, 1]]),
}
PARTS = ["mean", "variance", "stddev", "mode", "support", "arg_constraints", "has_rsample", "has_enumerate_support",
         "batch_shape", "event_shape",
         "entropy()", "perplexity()", "log_prob(value)", "cdf(value)", "icdf(share)",
         "enumerate_support()", "enumerate_support(expand=False)", "support.check(value)",
         "sample((2, 3)) * 0", "rsample((2,)) * 0", "probs",
         "logits", "temperature"]


def created(library: Any, name: str, dtype: str = "float64") -> Any:
    return KINDS[name][0](lambda v: library.tensor(v, dtype=getattr(library, dtype)), library.distributions)


def asked(p: Any, part: str, library: Any, name: str, dtype: str = "float64") -> Any:
    """What a distribution says to an expression: arrays, shapes or texts."""
    of = {"value": library.tensor(KINDS[name][1], dtype=getattr(library, dtype)),
          "share": library.tensor([[0.1], [0.75]], dtype=getattr(library, dtype)), "p": p}
    try:
        found = eval(f"p.{part}", of)
    except (NotImplementedError, AttributeError):
        return "missing"
    return np.asarray(found.detach()) if hasattr(found, "detach") else tuple(found) if part.endswith("shape") else repr(found)


def same(a: Any, b: Any, part: str, rtol: float = 1e-9) -> None:
    if isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray) and a.shape == b.shape and a.dtype == b.dtype, (part, a, b)
        assert np.allclose(a, b, rtol=rtol, atol=rtol / 100, equal_nan=True), (part, a, b)
    elif not (part == "support" and "tensor" in a):
        assert a == b, part


@pytest.mark.oracle
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("expanded", [False, True], ids=["as made", "expanded"])
def test_they_say_what_pytorchs_say(name: str, expanded: bool, torch: Any) -> None:
    both = [created(library, name) for library in (gradcore, torch)]
    if "ixture" not in name and "tensor" not in repr(both[0]):
        assert repr(both[0]).replace("gradcore", "torch") == repr(both[1])
    if expanded:
        both = [p.expand((4, *(2,) * (2 - len(p.batch_shape) - len(p.event_shape)), *p.batch_shape)) for p in both]
    for part in PARTS:
        same(*(asked(p, part, library, name) for p, library in zip(both, (gradcore, torch), strict=True)), part)


@pytest.mark.parametrize("name", KINDS)
def test_shapes_are_known_on_meta(name: str) -> None:
    real = created(gradcore, name)
    there = KINDS[name][0](lambda v: gradcore.tensor(v, dtype=gradcore.float64, device="meta"), gradcore.distributions)
    value = real.sample((2,))
    for part in ("sample((3,))", "rsample()", "mean", "mode", "variance", "entropy()", "log_prob(value)", "cdf(value)",
                 "icdf(value)", "enumerate_support()"):
        with suppress(NotImplementedError, DataDependentShape):
            found = eval(f"p.{part}", {"p": there, "value": value.to("meta")})
            same = eval(f"p.{part}", {"p": real, "value": value})
            assert (found.device, found.shape, found.dtype) == ("meta", same.shape, same.dtype), part


@pytest.mark.oracle
@pytest.mark.parametrize("name", KINDS)
def test_gradients_of_densities_are_pytorchs(name: str, torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        leaves: list[Any] = []

        def leaf(v: Any, library: Any = library, leaves: Any = leaves) -> Any:
            leaves.append(library.tensor(v, dtype=library.float64, requires_grad=True))
            return leaves[-1]

        p = KINDS[name][0](leaf, library.distributions)
        loss = p.log_prob(library.tensor(KINDS[name][1], dtype=library.float64)).sum()
        if not isinstance(asked(p, "entropy()", library, name), str):
            loss = loss + p.entropy().sum()
        loss.backward()
        found.append([leaf.grad for leaf in leaves])
    for a, b in zip(*found, strict=True):
        # PyTorch's second derivative of lgamma, which entropies have in their gradients, is a sum of few terms.
        same(np.asarray(a), np.asarray(b), "gradient", 1e-7 if "digamma" in inspect.getsource(type(p).entropy) else 1e-9)


@pytest.mark.parametrize("name", [n for n in KINDS if "Cauchy" not in n and "Relaxed" not in n and "without" not in n
                                  and n != "LogisticNormal"])
def test_draws_have_the_mean_and_the_variance(name: str) -> None:
    gradcore.manual_seed(0)
    p = created(gradcore, name)
    drawn = p.sample((20000,))
    assert not drawn.requires_grad and drawn.isfinite().all().item() and p.support.check(drawn).all().item()
    assert ((drawn.mean(0) - p.mean).abs() <= 0.05 * p.stddev).all().item()
    assert ((drawn.var(0) - p.variance).abs() <= 0.1 * p.variance).all().item() or name == "Pareto"


@pytest.mark.parametrize("name", ["Cauchy", "HalfCauchy", "Gumbel", "Weibull", "LogNormal", "Pareto", "HalfNormal", "mixture",
                                  "Gamma", "Chi2", "InverseGamma"])
def test_draws_are_distributed_as_cdf_says(name: str) -> None:
    gradcore.manual_seed(1)
    p = created(gradcore, name)
    drawn = p.cdf(p.sample((20000,)))
    for share in (0.1, 0.5, 0.9):
        assert ((drawn < share).double().mean(0) - share).abs().max().item() < 0.012


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["RelaxedBernoulli", "RelaxedOneHotCategorical", "LogisticNormal"])
def test_relaxed_draws_are_as_pytorchs(name: str, torch: Any) -> None:
    gradcore.manual_seed(2)
    torch.manual_seed(2)
    a, b = (np.asarray(created(library, name).sample((20000,))) for library in (gradcore, torch))
    assert np.abs(a.mean(0) - b.mean(0)).max() < 0.012 and np.abs(a.std(0) - b.std(0)).max() < 0.012
    assert created(gradcore, name).support.check(gradcore.tensor(a)).all().item() or name == "LogisticNormal"


@pytest.mark.oracle
@pytest.mark.parametrize("given", [{"probs": P}, {"logits": [0.5, -1.0, -math.inf]}])
def test_counts_of_categories_are_pytorchs(given: dict[str, Any], torch: Any) -> None:
    """Not by :data:`KINDS`: PyTorch's entropy is of float32, and it has none of an expanded one."""
    found = []
    for library in (gradcore, torch):
        p = library.distributions.Multinomial(6, **{name: library.tensor(value) for name, value in given.items()})
        values = library.tensor([[1.0, 5.0, 0.0], [6.0, 0.0, 0.0]])
        made = (p.log_prob(values), p.mean, p.variance, p.entropy(), p.expand((4, 2)).log_prob(values))
        found.append([[np.asarray(x) for x in made], tuple(p.batch_shape), tuple(p.event_shape), repr(p.support)])
    assert found[0][1:] == found[1][1:]
    for ours, theirs in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_counts_of_categories_have_their_sum_and_their_mean() -> None:
    gradcore.manual_seed(0)
    p = distributions.Multinomial(6, gradcore.tensor(P))
    drawn = p.sample((4000,))
    assert (drawn.sum(-1) == 6).all().item() and p.support.check(drawn).all().item()
    np.testing.assert_allclose(drawn.mean(0), p.mean, atol=0.1)
    np.testing.assert_allclose(drawn.var(0), p.variance, atol=0.15)
    with raises(NotImplementedError, "inhomogeneous total_count is not supported"):
        distributions.Multinomial(gradcore.tensor([1, 2]), gradcore.tensor(P))  # type: ignore[arg-type]


def test_draws_are_counted_without_a_row_of_categories_for_each() -> None:
    with gradcore.step() as step:
        drawn = distributions.Multinomial(400, gradcore.ones(8, 100)).sample()
    assert step.report.peak.requested < 400 * drawn.nbytes / 2


def test_parts_of_a_batch_are_drawn_separately() -> None:
    gradcore.manual_seed(0)
    weights, places = gradcore.tensor([0.5, 0.5]), gradcore.tensor([0.0, 10.0]).expand(2, 2)
    p = distributions.MixtureSameFamily(distributions.Categorical(weights), distributions.Normal(places, 1.0))
    drawn = p.sample((4000,))
    assert abs(((drawn > 5)[:, 0] == (drawn > 5)[:, 1]).float().mean().item() - 0.5) < 0.03


@pytest.mark.parametrize("name", ["RelaxedBernoulli", "RelaxedOneHotCategorical", "OneHotCategoricalStraightThrough"])
def test_gradients_pass_through_a_draw(name: str) -> None:
    logits = gradcore.tensor([[0.5, -1.0, 0.2]], requires_grad=True)
    given = () if name.startswith("One") else (gradcore.tensor(0.5),)
    p = getattr(distributions, name)(*given, logits=logits)
    drawn = p.rsample((3000,))
    assert not name.startswith("One") or p.support.check(drawn).all().item()
    (drawn * gradcore.tensor([1.0, 0.0, 0.0])).sum(-1).mean().backward()
    assert logits.grad[0, 0].item() == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("concentration", [0.05, 0.5, 3.0, 200.0, 3e4])
def test_gradients_of_gamma_draws_are_those_of_their_means(concentration: float) -> None:
    """Of the mean of log x, which is digamma, and of x."""
    gradcore.manual_seed(4)
    a = gradcore.full((), concentration, dtype=gradcore.float64, requires_grad=True)
    drawn = distributions.Gamma(a, gradcore.ones((), dtype=gradcore.float64)).rsample((40000,))
    slope, = gradcore.autograd.grad(drawn.log().mean(), a, retain_graph=True)
    assert slope.item() == pytest.approx(gradcore.polygamma(1, a).item(), rel=0.03)
    assert gradcore.autograd.grad(drawn.mean(), a)[0].item() == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("made", [
    lambda a: distributions.Beta(a, 2.0), lambda a: distributions.StudentT(a + 3),
    lambda a: distributions.InverseGamma(a + 4, 2.0), lambda a: distributions.FisherSnedecor(a, a + 9),
    lambda a: distributions.Dirichlet(functional.stack([a, a * 2, a * 3], -1))])
def test_draws_by_gammas_have_gradients_of_their_means(made: Any) -> None:
    """Of the mean square, which is variance and squared mean."""
    gradcore.manual_seed(5)
    a = gradcore.full((1,), 2.0, dtype=gradcore.float64, requires_grad=True)
    p = made(a)
    slope, = gradcore.autograd.grad(p.rsample((60000,)).square().mean(0).sum(), a, retain_graph=True)
    expected, = gradcore.autograd.grad((p.variance + p.mean.square()).sum(), a)
    assert slope.item() == pytest.approx(expected.item(), rel=0.06, abs=0.01)


@pytest.mark.parametrize("dtype", [gradcore.float32, gradcore.float64])
def test_draws_beside_0_and_1_have_a_density(dtype: Any) -> None:
    gradcore.manual_seed(6)
    small = gradcore.full((3,), 0.05, dtype=dtype)
    for p in (distributions.Beta(small, small), distributions.Dirichlet(small)):
        assert p.log_prob(p.sample((2000,))).isfinite().all()


#: Two of each that has a divergence.
PAIRS: dict[str, tuple[Any, Any]] = {
    "Normal": (lambda t, d: d.Normal(t([0.5, -1.0]), t([1.0, 2.0])), lambda t, d: d.Normal(t([0.1, 1.0]), t([2.0, 0.5]))),
    "Laplace": (lambda t, d: d.Laplace(t([0.5, -1.0]), t([1.0, 2.0])), lambda t, d: d.Laplace(t([1.0, -1.0]), 2.0)),
    "Exponential": (lambda t, d: d.Exponential(t([0.5, 2.0])), lambda t, d: d.Exponential(t([1.5, 1.0]))),
    "Uniform": (lambda t, d: d.Uniform(t([0.5, -1.0]), t([1.0, 2.0])), lambda t, d: d.Uniform(t([0.2, 1.0]), t([1.5, 2.0]))),
    "Bernoulli": (lambda t, d: d.Bernoulli(t([0.2, 0.9])), lambda t, d: d.Bernoulli(logits=t([0.3, -1.0]))),
    "certain": (lambda t, d: d.Bernoulli(t([0.0, 1.0])), lambda t, d: d.Bernoulli(t([1.0, 1.0]))),
    "certain categories": (lambda t, d: d.Categorical(t([[0.0, 1.0], [0.5, 0.5]])), lambda t, d: d.Categorical(t([1.0, 0.0]))),
    "Gumbel": (lambda t, d: d.Gumbel(t([0.5, -1.0]), t([1.0, 2.0])), lambda t, d: d.Gumbel(t([0.1, 1.0]), t([2.0, 0.5]))),
    "Poisson": (lambda t, d: d.Poisson(t([0.5, 7.3])), lambda t, d: d.Poisson(t([1.5, 3.3]))),
    "Binomial": (lambda t, d: d.Binomial(t([5.0, 3.0]), t([0.5, 0.1])), None),
    "Cauchy": (lambda t, d: d.Cauchy(t([0.5, -1.0]), t([1.0, 2.0])), lambda t, d: d.Cauchy(t([0.1, 1.0]), t([2.0, 0.5]))),
    "Pareto": (lambda t, d: d.Pareto(t([0.5, 1.0]), t([1.5, 2.5])), lambda t, d: d.Pareto(t([0.4, 1.5]), t([0.5, 3.0]))),
    "Geometric": (lambda t, d: d.Geometric(t([0.3, 0.8])), lambda t, d: d.Geometric(t([0.5, 0.1]))),
    "HalfNormal": (lambda t, d: d.HalfNormal(t([0.3, 0.8])), lambda t, d: d.HalfNormal(t([0.5, 0.1]))),
    "HalfCauchy": (lambda t, d: d.HalfCauchy(t([0.3, 0.8])), lambda t, d: d.HalfCauchy(t([0.5, 0.1]))),
    "LogNormal": (lambda t, d: d.LogNormal(t([0.3, 0.8]), 1.0), lambda t, d: d.LogNormal(t([0.5, 0.1]), 2.0)),
    "OneHotCategorical": (lambda t, d: d.OneHotCategorical(t(P)), lambda t, d: d.OneHotCategorical(logits=t(P))),
    "Gamma": (lambda t, d: d.Gamma(t([1.5, 3.0]), t([0.7, 2.0])), lambda t, d: d.Gamma(t([0.5, 4.0]), t([1.7, 1.0]))),
    "Beta": (lambda t, d: d.Beta(t([1.5, 0.7]), t([1.7, 2.0])), lambda t, d: d.Beta(t([0.5, 4.0]), t([1.7, 1.0]))),
    "Dirichlet": (lambda t, d: d.Dirichlet(t([[1.5, 0.7], [1.0, 3.0]])), lambda t, d: d.Dirichlet(t([[0.5, 4.0], [1.0, 2.0]]))),
    "Uniform within": (lambda t, d: d.Uniform(t([0.1, 0.0]), t([0.9, 1.0])), lambda t, d: d.Uniform(t([-1.0, 0.0]), 1.0)),
    "MultivariateNormal": (lambda t, d: d.MultivariateNormal(t(P), scale_tril=t([[1.0, 0, 0], [0.5, 2, 0], [1, 1, 3]])),
                           lambda t, d: d.MultivariateNormal(t(P[0]), t([[2.0, 0, 0.5], [0, 2, 0], [0.5, 0, 3]]))),
}


@pytest.mark.oracle
def test_divergences_are_pytorchs(torch: Any) -> None:
    makers = [maker for pair in PAIRS.values() for maker in pair if maker]
    made = [[maker(lambda v, t=t: t.tensor(v, dtype=t.float64), t.distributions) for maker in makers]
            for t in (gradcore, torch)]
    compared = 0
    for i, j in itertools.product(range(len(made[0])), repeat=2):
        results = []
        for ps, t in zip(made, (gradcore, torch), strict=True):
            try:
                results.append(np.asarray(t.distributions.kl_divergence(ps[i], ps[j])))
            except NotImplementedError:
                results.append(None)
        if results and results[1] is not None:
            compared += 1
            assert results[0] is not None, (made[1][i], made[1][j])
            same(results[0], results[1], f"{made[1][i]}, {made[1][j]}", 1e-7)
        elif results:
            assert results[0] is None
    assert compared > 140


def test_a_registered_divergence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kl, "_REGISTRY", dict(kl._REGISTRY))

    class Mine(distributions.Normal):
        """A distribution of a user's."""

    p, q = Mine(0.0, 1.0), distributions.Normal(1.0, 1.0)
    assert distributions.kl_divergence(p, q).item() == 0.5

    @distributions.register_kl(Mine, distributions.Normal)
    def mine(p: Any, q: Any) -> Any:
        return q.loc * 7

    assert distributions.kl_divergence(p, q).item() == 7 and distributions.kl_divergence(q, q).item() == 0
    distributions.register_kl(distributions.Normal, Mine)(lambda p, q: q.loc * 8)
    with pytest.warns(RuntimeWarning, match="Ambiguous kl_divergence"):
        assert distributions.kl_divergence(p, p).item() == 0
    with raises(TypeError, "Expected type_p to be a Distribution subclass but got"):
        distributions.register_kl(int, Mine)


def test_classes_that_are_made_anew_in_each_step_go() -> None:
    most = kl._find.cache_info().maxsize
    assert most is not None
    for _ in range(most + 40):
        normal = type("Anew", (distributions.Normal,), {})(0.0, 1.0)
        assert distributions.kl_divergence(normal, normal).item() == 0
    del normal
    gc.collect()
    assert len([kind for kind in distributions.Normal.__subclasses__() if kind.__name__ == "Anew"]) <= most
