"""``gradcore.distributions.transforms`` compared with PyTorch's, alone and in a ``TransformedDistribution``."""

from __future__ import annotations

import copy
import gc
import math
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import distributions, nn
from tests.conftest import raises

ROOM = [[0.2, 0.5, 0.9], [0.1, 0.3, 0.7]]
WIDE = [[-2.0, 0.3, 50.0], [0.7, -0.1, 3.0]]

#: Functions that create a transform from a library's tensors and classes, and an input of it.
KINDS: dict[str, tuple[Any, Any]] = {
    "exp": (lambda t, d: d.ExpTransform(), WIDE), "inverse": (lambda t, d: d.ExpTransform().inv, ROOM),
    "sigmoid": (lambda t, d: d.SigmoidTransform(), WIDE), "logit": (lambda t, d: d.SigmoidTransform().inv, ROOM),
    "tanh": (lambda t, d: d.TanhTransform(), [[-2.0, 0.3, 9.0]]), "softplus": (lambda t, d: d.SoftplusTransform(), WIDE),
    "affine": (lambda t, d: d.AffineTransform(0.5, -2.0), WIDE),
    "affine of tensors": (lambda t, d: d.AffineTransform(t([0.5, 1.0, 2.0]), t([[2.0], [-3.0]])), WIDE),
    "affine of events": (lambda t, d: d.AffineTransform(t([0.5, 1.0, 2.0]), t([2.0, 0.1, -1.0]), event_dim=1), WIDE),
    "affine of events by a number": (lambda t, d: d.AffineTransform(0.0, 3, event_dim=1), WIDE),
    "power": (lambda t, d: d.PowerTransform(t([2.0, 0.5, -1.0])), ROOM),
    "stick breaking": (lambda t, d: d.StickBreakingTransform(), [[-2.0, 0.3, 2.0], [0.7, -0.1, 3.0]]),
    "composed": (lambda t, d: d.ComposeTransform([d.AffineTransform(1.0, t([2.0, -1.0, 3.0])), d.TanhTransform(),
                                                  d.AffineTransform(0.0, 2.0)]), ROOM),
    "composed with events": (lambda t, d: d.ComposeTransform([d.ExpTransform(), d.AffineTransform(0.0, 2.0, 1)]), ROOM),
    "composed to events": (lambda t, d: d.ComposeTransform([d.TanhTransform(), d.StickBreakingTransform()]), WIDE),
    "composed of events": (lambda t, d: d.ComposeTransform([
        d.ReshapeTransform((3,), (3, 1)), d.SigmoidTransform(), d.ReshapeTransform((3, 1), (1, 3))]), ROOM),
    "nothing": (lambda t, d: d.ComposeTransform([]), ROOM),
    "independent": (lambda t, d: d.IndependentTransform(d.ExpTransform(), 1), ROOM),
    "reshape": (lambda t, d: d.ReshapeTransform((2, 3), (3, 2, 1)), [ROOM, ROOM]),
    "stack": (lambda t, d: d.StackTransform([d.ExpTransform(), d.TanhTransform()], dim=-2), ROOM),
    "cat": (lambda t, d: d.CatTransform([d.ExpTransform(), d.TanhTransform()], dim=-1, lengths=[2, 1]), ROOM),
    "cat of events": (lambda t, d: d.CatTransform([d.IndependentTransform(k, 1) for k in (d.ExpTransform(), d.TanhTransform())],
                                                  -1, [1, 2]), ROOM),
    "correlations": (lambda t, d: d.CorrCholeskyTransform(), WIDE)}


def made(library: Any, name: str) -> Any:
    d = library.distributions.transforms
    return KINDS[name][0](lambda v: library.tensor(v, dtype=library.float64), d)


def dims(t: Any) -> Any:
    """How many dimensions an event has; None where its values have others."""
    try:
        return t.event_dim
    except ValueError:
        return None


def close(a: Any, b: Any) -> None:
    assert tuple(a.shape) == tuple(b.shape) and str(a.dtype) == str(b.dtype).removeprefix("torch.")
    np.testing.assert_allclose(np.asarray(a.detach()), np.asarray(b.detach()), rtol=1e-9, atol=1e-14)


@pytest.mark.oracle
@pytest.mark.parametrize("name", KINDS)
def test_they_are_pytorchs(name: str, torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        t = made(library, name)
        x = library.tensor(KINDS[name][1], dtype=library.float64, requires_grad=True)
        y = t(x)
        back, jacobian = t.inv(y), t.log_abs_det_jacobian(x, y)
        turned = t.inv.log_abs_det_jacobian(y, x)
        ((y * y).sum() + jacobian.sum()).backward()
        shapes = [tuple(t.forward_shape(x.shape)), tuple(t.inverse_shape(y.shape)), t.domain.event_dim, t.codomain.event_dim]
        kept = t.with_cache()
        said = [repr(t), repr(t.inv), repr(t.codomain), repr(t.domain), t.bijective, t.inv.inv is t, kept.inv(kept(x)) is x]
        valid = t.codomain.check(y.detach())
        if library is gradcore:
            inverse, other = t.inv, copy.deepcopy(t)
            assert other.inv is not inverse and other.inv.inv == other and (other(x) == y).all().item()
        found.append(([y, back, jacobian, turned, x.grad, valid], [*shapes, dims(t)], said))
    for a, b in zip(found[0][0], found[1][0], strict=True):
        close(a, b)
    assert found[0][1] == found[1][1]
    if "tensors" not in name and name.partition(" ")[0] not in ("stack", "cat"):
        assert found[0][2] == found[1][2]


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["SoftmaxTransform", "AbsTransform"])
def test_those_that_are_no_bijections_are_pytorchs(kind: str, torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        t, x = getattr(library.distributions, kind)(), library.tensor(WIDE, dtype=library.float64)
        p = library.distributions.TransformedDistribution(library.distributions.Normal(x, 1.0), [t])
        shapes = [dims(t), tuple(p.batch_shape), tuple(p.event_shape)]
        found.append(([t(x), t.inv(t(x))], [t.bijective, repr(t.domain), repr(t.codomain), *shapes]))
    for a, b in zip(found[0][0], found[1][0], strict=True):
        close(a, b)
    assert found[0][1] == found[1][1]


@pytest.mark.oracle
@pytest.mark.parametrize("name", [n for n in KINDS if n not in (
    "reshape", "inverse", "logit", "power", "stack", "cat", "cat of events", "correlations")])
def test_a_transformed_distribution_is_pytorchs(name: str, torch: Any) -> None:
    found = []
    for library in (gradcore, torch):
        d = library.distributions
        base = d.Normal(library.tensor(ROOM, dtype=library.float64), library.tensor(0.5, dtype=library.float64))
        p = d.TransformedDistribution(base, [d.AffineTransform(0.1, 1.0), made(library, name), d.AffineTransform(0.0, 2.0)])
        wide = p.expand((4, *p.batch_shape))
        value = d.ComposeTransform(p.transforms)(library.tensor(ROOM, dtype=library.float64) * 1.1)
        parts = [p.log_prob(value), wide.log_prob(value), wide.rsample((2,)) * 0]
        if name in ("exp", "affine", "tanh", "affine of tensors"):
            parts += [p.cdf(value)]
        said = [repr(p), repr(p.support), p.has_rsample, tuple(p.batch_shape), tuple(p.event_shape), tuple(wide.batch_shape)]
        found.append((parts, said))
    for a, b in zip(found[0][0], found[1][0], strict=True):
        close(a, b)
    assert found[0][1] == found[1][1]


def test_a_cache_returns_what_was_transformed() -> None:
    x = gradcore.tensor([0.5, 40.0])
    t = distributions.TanhTransform(cache_size=1)
    assert t.inv(t(x)) is x and t.with_cache() is t and t.with_cache(0).inv(t(x))[1].item() == math.inf
    both = distributions.ComposeTransform([distributions.AffineTransform(0.0, 2.0), t], cache_size=1)
    y = both(x)
    assert both.parts[1].inv(y) is both.parts[0](x) and both.inv(y) is x
    # An in-place change of a parameter is not a change of x.
    assert both(x) is y and both(x.clone()) is not y


def test_an_inverse_is_no_cycle() -> None:
    assert not gc.isenabled()
    before = gradcore.memory_allocated()
    t = distributions.AffineTransform(gradcore.ones(1000), gradcore.ones(1000), cache_size=1)
    both = distributions.ComposeTransform([t, distributions.ExpTransform()])
    both.inv(both(gradcore.ones(1000)))
    del t, both
    assert gradcore.memory_allocated() == before


def test_a_composition_takes_what_its_first_part_takes_and_gives_what_its_last_gives() -> None:
    d = distributions
    both = d.ComposeTransform([d.SigmoidTransform().inv, d.ExpTransform()])
    assert both.domain is d.constraints.unit_interval and both.codomain is d.constraints.positive
    assert both.inv.domain is d.constraints.positive and both.inv.codomain is d.constraints.unit_interval


def test_equal_transforms_are_equal() -> None:
    d, two = distributions, gradcore.tensor([2.0, 3.0])
    assert d.ExpTransform() == d.ExpTransform() != d.TanhTransform()
    assert d.AffineTransform(0, two) == d.AffineTransform(0.0, two.clone()) != d.AffineTransform(0.0, two + 1)
    assert d.AffineTransform(0, 1) == d.AffineTransform(0.0, 1.0) and d.PowerTransform(2) == d.PowerTransform(2.0)
    assert d.ComposeTransform([d.ExpTransform()]).inv == d.ComposeTransform([d.ExpTransform().inv])
    assert d.ComposeTransform([d.ExpTransform()]) != d.ComposeTransform([d.TanhTransform()]) != d.TanhTransform()
    assert d.ExpTransform().inv == d.ExpTransform().inv != d.TanhTransform().inv != d.TanhTransform()


@pytest.mark.oracle
def test_a_squashed_policy_trains_as_pytorchs(torch: Any) -> None:
    """A step of SAC's actor: the loss of a fixed action, its gradients, and again in a compiled step."""
    weight = np.linspace(-1, 1, 12).reshape(4, 3)
    found = []
    for library in (gradcore, torch):
        d = library.distributions
        layer = library.nn.Linear(3, 4, dtype=library.float64)
        layer.load_state_dict({"weight": library.tensor(weight), "bias": library.zeros(4, dtype=library.float64)})
        mean, log_std = layer(library.ones(2, 3, dtype=library.float64)).chunk(2, -1)
        p = d.TransformedDistribution(d.Independent(d.Normal(mean, log_std.clamp(-5, 2).exp()), 1),
                                      d.TanhTransform(cache_size=1))
        action = library.tensor([[0.3, -0.9], [0.999, 0.0]], dtype=library.float64)
        loss = p.log_prob(action).mean() - p.base_dist.entropy().mean()
        loss.backward()
        found.append((loss, layer.weight.grad, layer.bias.grad))
    for a, b in zip(*found, strict=True):
        close(a, b)


def test_a_squashed_policy_is_replayed() -> None:
    policy = nn.Linear(3, 4)

    def step(x: Any) -> Any:
        policy.zero_grad()
        mean, log_std = policy(x).chunk(2, -1)
        p = distributions.TransformedDistribution(distributions.Normal(mean, log_std.exp()),
                                                  [distributions.TanhTransform(cache_size=1)])
        action = p.rsample()
        loss = (p.log_prob(action).sum(-1) - action.square().sum(-1)).mean()
        loss.backward()
        return loss

    found = []
    for run in (step, gradcore.compile(step)):
        gradcore.manual_seed(3)
        found.append([(run(gradcore.full((2, 3), 0.1 * k)).item(), policy.weight.grad.tolist()) for k in range(3)])
    assert found[0] == found[1]


def test_what_cannot_be_says_so() -> None:
    d, two = distributions, gradcore.ones(2)
    one = d.Normal(0.0, 1.0)
    for call, kind, text in (
            (lambda: d.ExpTransform(cache_size=2), ValueError, "cache_size must be 0 or 1"),
            (lambda: d.ReshapeTransform((2,), (3,)), ValueError, "in_shape, out_shape have different numbers of elements"),
            (lambda: d.ReshapeTransform((2,), (2, 1)).forward_shape((3,)), ValueError, "Shape mismatch: expected"),
            (lambda: d.StackTransform([d.ExpTransform()])(two), AssertionError, "must equal len(transforms) 1"),
            (lambda: d.ReshapeTransform((2,), (2, 1)).forward_shape(()), ValueError, "Too few dimensions on input"),
            (lambda: d.IndependentTransform(d.ExpTransform(), 2)(two), ValueError, "Too few dimensions on input"),
            (lambda: d.IndependentTransform(d.ExpTransform(), 2).inv(two), ValueError, "Too few dimensions on input"),
            (lambda: d.StackTransform([d.ExpTransform()], 1)(two), AssertionError, "dim 1 out of range for tensor with 1"),
            (lambda: d.CatTransform([d.ExpTransform()], 0, [3])(two), AssertionError, "must equal length 3"),
            (lambda: d.CatTransform([d.ExpTransform()], 1, [2])(two), AssertionError, "dim 1 out of range for tensor with 1"),
            (lambda: d.CatTransform([d.ExpTransform()], 0, [1, 1]), AssertionError, "lengths (2) must match transforms (1)"),
            (lambda: d.CorrCholeskyTransform()(two), ValueError, "Input is not a flattened lower-diagonal number"),
            (lambda: d.StackTransform([two]), AssertionError, "All elements of tseq must be Transform instances"),
            (lambda: type("Own", (d.Transform,), {"__init__": lambda self: None, "_cache_size": 0})().with_cache(),
             NotImplementedError, ".with_cache is not implemented"),
            (lambda: d.AbsTransform().log_abs_det_jacobian(two, two), NotImplementedError, ""),
            (lambda: d.TransformedDistribution(d.Normal(two, two), "exp"), ValueError, "must be a Transform or list"),
            (lambda: d.TransformedDistribution(d.Normal(two, two), ["exp"]), ValueError, "a list of Transforms"),
            (lambda: d.TransformedDistribution(one, d.StickBreakingTransform()), ValueError, "at least 1, but got")):
        with raises(kind, text):
            call()
