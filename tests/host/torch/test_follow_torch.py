"""Fifty steps of each model from PyTorch's own weights follow its loss, to float32 precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from bench.workloads import ADAM, SGD, Workload, cnn, gpt, loss_of, mlp


def small_gpt(library: Any) -> Any:
    return gpt(library, vocab=17, context=12, width=24, layers=2, heads=3)


MODELS = {
    "mlp": Workload("", mlp(20, 32, 32, 5), 16, (20,), (), 5, "SGD", SGD, 1),
    "cnn": Workload("", cnn, 8, (3, 12, 12), (), 10, "SGD", {"lr": 0.05, "momentum": 0.9}, 1),
    "gpt": Workload("", small_gpt, 4, (12,), (12,), 17, "Adam", ADAM, 1, tokens=17)}


@pytest.mark.oracle
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_follows(name: str, torch: Any) -> None:
    follow(torch, MODELS[name])


def follow(torch: Any, workload: Workload) -> None:
    torch.manual_seed(0)
    theirs, ours = workload.build(torch), workload.build(gradcore)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({k: gradcore.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    losses: list[list[float]] = []
    for library, model in ((gradcore, ours), (torch, theirs)):
        optimizer = getattr(library.optim, workload.optimizer)(model.parameters(), **workload.settings)
        found = []
        for step in range(50):
            x, y = (library.tensor(a) for a in workload.arrays(step % 5))
            optimizer.zero_grad()
            loss = loss_of(library, model, x, y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    mine, expected = map(np.array, losses)
    assert expected[-5:].mean() < expected[:5].mean()
    np.testing.assert_allclose(mine[:10], expected[:10], rtol=1e-4)
    np.testing.assert_allclose(mine, expected, rtol=2e-2, atol=2e-3)
    # And back: torch loads our weights, and computes the same for a batch.
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in ours.state_dict().items()})
    x, y = workload.arrays(9)
    values = [loss_of(t, model.eval(), t.tensor(x), t.tensor(y)).item() for t, model in ((gradcore, ours), (torch, theirs))]
    np.testing.assert_allclose(*values, rtol=1e-4)
