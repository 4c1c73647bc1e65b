"""L-BFGS compared with PyTorch's: equal points, counts and states, with line search and without."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
from gradcore.events import Alloc
from tests.conftest import raises

#: A loss of two parameters, and their initial values.
PROBLEMS: dict[str, tuple[Callable[[Any, Any], Any], list[float], list[float]]] = {
    "quadratic": (lambda a, b: ((a - 1) ** 2 * 3).sum() + (a.sum() * b).sum() + 4 * (b * b).sum(), [0.5, -2.0], [1.0, 3.0]),
    "rosenbrock": (lambda a, b: ((1 - a) ** 2).sum() + 100 * ((b - a * a) ** 2).sum(), [-1.2, 0.3], [1.0, -0.5]),
    "steep": (lambda a, b: (a * 3).exp().sum() + (-a).exp().sum() + (b ** 4).sum(), [2.0], [3.0, -1.0])}
OPTIONS: list[dict[str, Any]] = [
    {"line_search_fn": "strong_wolfe"}, {"lr": 0.01, "max_iter": 7}, {"line_search_fn": "strong_wolfe", "history_size": 2},
    {"line_search_fn": "strong_wolfe", "lr": 0.3, "max_iter": 4, "max_eval": 5}, {"lr": 0.01, "tolerance_change": 0.03}]


def problem(library: Any, name: str, options: dict[str, Any], dtype: Any = None) -> tuple[list[Any], Any, Any]:
    loss_of, *starts = PROBLEMS[name]
    params = [library.tensor(start, dtype=dtype or library.float64, requires_grad=True) for start in starts]
    optimizer = library.optim.LBFGS(params, **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(*params)
        loss.backward()
        return loss

    return params, optimizer, closure


@pytest.mark.oracle
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_steps_are_pytorchs(torch: Any, name: str, options: dict[str, Any]) -> None:
    if name == "steep" and "line_search_fn" not in options:
        options = {**options, "lr": 0.001}
    (ours, a, first), (theirs, b, second) = (problem(library, name, options) for library in (gradcore, torch))
    # Rounding grows with each iteration.
    for _ in range(2):
        assert a.step(first).item() == pytest.approx(b.step(second).item(), rel=1e-5, abs=1e-10)
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p.tolist(), q.tolist(), rtol=1e-5, atol=1e-8)
        mine, other = a.state_dict()["state"][0], b.state_dict()["state"][0]
        assert (mine["n_iter"], mine["func_evals"]) == (other["n_iter"], other["func_evals"])
        assert len(mine["old_dirs"]) == len(other["old_dirs"])


@pytest.mark.oracle
def test_line_searches_in_hilly_country_are_pytorchs(torch: Any) -> None:
    """Where most first steps go too far or not far enough, so that an interval is found and narrowed.

    In a few places a search takes another turn if the start differs in its last digits, as two machines' sines do: those do not
    count.
    """
    generator = np.random.default_rng(0)
    steady = 0
    for _ in range(150):
        country = generator.standard_normal((3, 3)) * [[2], [3], [1]]
        options = {"lr": 10 ** generator.uniform(-3, 2), "max_iter": 2, "max_eval": int(generator.integers(2, 12))}
        theirs = [_searched(torch, country * [[nudge], [1], [1]], options)
                  for nudge in (1, 1 + 1e-15, 1 - 1e-15, 1 + 1e-14, 1 - 1e-14)]
        if np.ptp(theirs, axis=0).max() < 1e-9:
            steady += 1
            np.testing.assert_allclose(_searched(gradcore, country, options), theirs[0], rtol=1e-6, atol=1e-8)
    assert steady > 130


def _searched(library: Any, country: Any, options: dict[str, Any]) -> list[float]:
    """Where one step of LBFGS arrives, and after how many evaluations."""
    start, by, of = (library.tensor(x, dtype=library.float64) for x in country.tolist())
    p = start.requires_grad_()
    optimizer = library.optim.LBFGS([p], line_search_fn="strong_wolfe", **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = ((p * by).sin() * of).sum() + (p * p).sum() / 50 + (p[0] * p[1]).cos()
        loss.backward()
        return loss

    optimizer.step(closure)
    return [*p.tolist(), optimizer.state_dict()["state"][0]["func_evals"]]


@pytest.mark.oracle
@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
def test_a_state_is_taken_over_from_pytorch_and_from_a_file(torch: Any, options: dict[str, Any]) -> None:
    options = {**options, "max_iter": 5}
    theirs, b, second = problem(torch, "rosenbrock", options)
    b.step(second)
    state, starts = copy.deepcopy(b.state_dict()), [q.tolist() for q in theirs]
    b.step(second)
    for _ in range(2):
        ours, a, first = problem(gradcore, "rosenbrock", options)
        for p, start in zip(ours, starts, strict=True):
            p.data.copy_(gradcore.tensor(start, dtype=gradcore.float64))
        a.load_state_dict(state)
        file = io.BytesIO()
        gradcore.save(a.state_dict(), file)
        state = gradcore.load(file)
        assert type(a.state[ours[0]]["n_iter"]) is int
        a.step(first)
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p.tolist(), q.tolist(), rtol=1e-6)


def test_a_network_is_fitted_on_the_closures_own_account_and_all_goes_back() -> None:
    gradcore.manual_seed(0)
    before = gradcore.memory_requested()

    def fit() -> None:
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        x = gradcore.randn(40, 2)
        y = x[:, :1] * x[:, 1:]
        optimizer = optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe", history_size=5)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        with gradcore.step() as s:
            first = optimizer.step(closure).item()
        phases = {r.tag.phase for r in s.log if isinstance(r, Alloc) and r.tag.op == "tanh"}
        assert phases == {"forward"}
        for _ in range(5):
            last = optimizer.step(closure).item()
        assert last < 0.05 * first

    fit()
    assert gradcore.memory_requested() == before


@pytest.mark.parametrize("tolerance", [0.0, 2.0])
def test_a_step_ends_where_no_gradient_exceeds_the_tolerance(tolerance: float) -> None:
    p = gradcore.tensor([0.0, tolerance], requires_grad=True)
    optimizer = optim.LBFGS([p], tolerance_grad=tolerance)
    calls: list[float] = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (p * p).sum() / 2
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure).item() == tolerance ** 2 / 2
    assert p.tolist() == [0.0, tolerance] and len(calls) == 1


def test_errors_say_what_to_do() -> None:
    p, q = gradcore.ones(2, requires_grad=True), gradcore.ones(2, requires_grad=True)
    with raises(TypeError, "needs step(closure), where closure() calls zero_grad() and backward(), and returns the loss"):
        optim.LBFGS([p]).step()
    with raises(ValueError, "doesn't support per-parameter options"):
        optim.LBFGS([{"params": [p]}, {"params": [q]}])
    with raises(ValueError, "only 'strong_wolfe' is supported as line_search_fn, but got 'armijo'"):
        optim.LBFGS([p], line_search_fn="armijo")
