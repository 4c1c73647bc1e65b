"""Compiled functions that train a copy of a model, as Reptile and first-order MAML do: copies and their optimizers are new."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn
from tests.host.graph_mode.test_compile import same

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda params: gradcore.optim.SGD(params, lr=0.1),
    "momentum": lambda params: gradcore.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: gradcore.optim.Adam(params, lr=0.1)}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_copy_is_trained_in_replays(kind: str) -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        before = gradcore.memory_allocated()
        model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

        @wrap
        def reptile(x: Any, y: Any, model: Any = model) -> Any:
            learner = copy.deepcopy(model)
            optimizer = OPTIMIZERS[kind](learner.parameters())
            for _ in range(3):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(learner(x), y)
                loss.backward()
                optimizer.step()
            with gradcore.no_grad():
                for p, q in zip(model.parameters(), learner.parameters(), strict=True):
                    p += 0.5 * (q - p)
            return loss.detach()

        values, peaks = [], []
        for k in range(5):
            x, y = gradcore.arange(12.0).reshape(4, 3) / (k + 1), gradcore.ones(4, 1)
            with gradcore.step() as s:
                values.append(reptile(x, y))
            peaks.append(s.report.peak.allocated - before)
            roles = {role: s.report.by_role.get(role, 0) for role in ("parameter", "buffer", "optimizer state")}
        if wrap is gradcore.compile:
            assert len(reptile.programs) == len(reptile.traces) == 1
        found.append(([*values, *(p.detach().clone() for p in model.parameters())], peaks, roles))
        del reptile, model, values
    (values, peaks, owners), (others, lower, same_owners) = found
    assert all(map(same, values, others)) and max(lower[1:]) <= peaks[-1] and owners == same_owners


def test_a_copied_model_is_called() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    f, x = gradcore.compile(lambda x: copy.deepcopy(model)(x).detach()), gradcore.ones(2, 3)
    for _ in range(3):
        with gradcore.no_grad():
            model[0].weight.mul_(0.5)
        assert same(f(x), model(x).detach())
    assert len(f.programs) == len(f.traces) == 1


def test_an_optimizer_that_is_made_once_is_not_new() -> None:
    weight = nn.Parameter(gradcore.ones(2))

    @functools.cache
    def optimizer() -> Any:
        return gradcore.optim.SGD([weight], lr=1.0)

    def step(x: Any) -> None:
        weight.grad = None
        (weight * x).sum().backward()
        optimizer().step()

    f, x = gradcore.compile(step), gradcore.ones(2)
    for rate in (1.0, 1.0, 0.5, 0.25):
        optimizer().param_groups[0]["lr"] = rate
        before = weight.detach().clone()
        f(x)
        assert same(weight.detach(), before - rate)
    weight.grad = None
    optimizer.cache_clear()
    g = gradcore.compile(step)
    g(x)
    assert "makes an optimizer, SGD, that exists after the run" in g.traces[0] and not g.programs
    optimizer().param_groups[0]["lr"] = 0.5
    before = weight.detach().clone()
    g(x)
    assert same(weight.detach(), before - 0.5)
    weight.grad = None
    optimizer.cache_clear()
