"""Distributions that a compiled policy makes and returns."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import distributions as D
from gradcore import nn

POLICIES: dict[str, Callable[[Any], Any]] = {
    "categorical": lambda y: D.Categorical(logits=y), "probabilities": lambda y: D.Categorical(probs=y.exp()),
    "normal": lambda y: D.Normal(y, 1.0), "normals": lambda y: D.Normal(y, y.exp()),
    "independent": lambda y: D.Independent(D.Normal(y, y.exp()), 1), "bernoulli": lambda y: D.Bernoulli(logits=y),
    "one hot": lambda y: D.OneHotCategorical(logits=y), "laplace": lambda y: D.Laplace(y, y.exp()),
    "squashed": lambda y: D.TransformedDistribution(D.Normal(y, y.exp()), [D.TanhTransform(cache_size=1)]),
    "mixture": lambda y: D.MixtureSameFamily(D.Categorical(logits=y), D.Normal(y, y.exp())),
    "log-normal": lambda y: D.LogNormal(y, y.exp()), "exponential": lambda y: D.Exponential(y.exp()),
    "multivariate": lambda y: D.MultivariateNormal(y, scale_tril=gradcore.diag_embed(y.exp())),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_distribution_that_a_policy_returns(policy: str) -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[Any]:
        gradcore.manual_seed(0)
        m = nn.Linear(2, 3)
        optimizer, found = gradcore.optim.SGD(m.parameters(), lr=0.05), []
        act = wrap(lambda x: POLICIES[policy](m(x)))
        for k in range(5):
            dist = act(gradcore.full((4, 2), 0.2 * k + 0.1))
            a = dist.sample()
            optimizer.zero_grad()
            chances = dist.log_prob(a)
            (-chances.mean()).backward()
            optimizer.step()
            found += [a.tolist(), chances.tolist(), tuple(dist.batch_shape), repr(dist)]
            if policy != "squashed":
                found.append(dist.mean.tolist())
            if policy not in ("squashed", "mixture"):
                found.append(dist.entropy().tolist())
        found.append([p.tolist() for p in m.parameters()])
        if wrap is gradcore.compile:
            assert len(act.programs) == 1, act.explain()
        return found

    def near(a: Any, b: Any) -> None:
        assert type(a) is type(b)
        if isinstance(a, (list, tuple)):
            assert len(a) == len(b)
            for v, w in zip(a, b, strict=True):
                near(v, w)
        else:
            assert a == (pytest.approx(b, rel=1e-4, abs=1e-5, nan_ok=True) if isinstance(a, float) else b)

    near(trained(gradcore.compile), trained(lambda f: f))


def test_a_transform_is_made_anew_with_its_distribution() -> None:
    def act(x: Any) -> Any:
        return D.TransformedDistribution(D.Normal(x, x.exp()), [D.TanhTransform(cache_size=1)])

    compiled = gradcore.compile(act)
    found = [compiled(gradcore.full((2,), 0.5)) for _ in range(4)]
    assert compiled.programs and len({id(d.transforms[0]) for d in found}) == 4
    value = found[1].rsample()
    assert found[1].transforms[0]._cached_x_y[1] is value and found[2].transforms[0]._cached_x_y == (None, None)
    inverse = found[3].transforms[0].inv
    assert inverse.inv is found[3].transforms[0]
    gc.collect()
