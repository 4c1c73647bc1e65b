"""A hundred replayed training steps equal a hundred eager ones, bit for bit: dropout, batch norm, schedules, fused losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.devices.host import fused as host_fused

STEPS = 100
F = nn.functional


def convolutional() -> Any:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3),
                         nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 5))


def attentive() -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Flatten(2), layer, nn.LayerNorm(8), nn.Flatten(), nn.Linear(16, 5))


def perceptron() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(512, 16), nn.ReLU(), nn.Linear(16, 5))


def bent() -> Any:
    """The second weight is large enough to hold pieces of gelu."""
    return nn.Sequential(nn.Flatten(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 64), nn.LayerNorm(64),
                         nn.Linear(64, 512), nn.GELU("tanh"), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 5))


def tokens(x: Any) -> Any:
    """Two tokens of eight numbers per sample."""
    return x[:, :, 0, :8]


#: Model, its input from a batch, optimizer, options, and learning rate schedule.
CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], str, dict[str, Any], Callable[[Any], Any]]] = {
    "convolutional": (convolutional, lambda x: x, "Adam", {"lr": 0.01},
                      lambda o: gradcore.optim.lr_scheduler.CosineAnnealingLR(o, STEPS)),
    "attentive": (attentive, tokens, "AdamW", {"lr": 0.01, "weight_decay": 0.1},
                  lambda o: gradcore.optim.lr_scheduler.ExponentialLR(o, 0.97)),
    "perceptron": (perceptron, lambda x: x, "SGD", {"lr": 0.05, "momentum": 0.9},
                   lambda o: gradcore.optim.lr_scheduler.StepLR(o, 10, 0.5)),
    "bent": (bent, lambda x: x, "Adam", {"lr": 0.001}, lambda o: gradcore.optim.lr_scheduler.StepLR(o, 10, 0.5)),
}


def trained(name: str, wrap: Callable[[Any], Any], passed: bool) -> tuple[list[bytes], Any]:
    """The bytes of the loss of each step, and of every parameter, buffer and gradient afterwards; the result of ``wrap``.

    Batches are ``passed`` to the step, or written to tensors that it refers to.
    """
    build, view, kind, settings, schedule_of = CASES[name]
    gradcore.manual_seed(0)
    model = build()
    optimizer = getattr(gradcore.optim, kind)(model.parameters(), **settings)
    schedule = schedule_of(optimizer)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(view(x)), y)
        loss.backward()
        optimizer.step()
        return loss

    batch = gradcore.zeros(6, 2, 16, 16), gradcore.zeros(6, dtype="int64")
    run = wrap(step if passed else lambda: step(*batch))
    generator = np.random.default_rng(1)
    found = []
    for k in range(STEPS):
        values = generator.standard_normal((6, 2, 16, 16)).astype(np.float32)
        labels = generator.integers(0, 5, 6)
        if k % 10 == 9:
            # Ignored labels take another path through the kernel.
            labels[:2] = -100
        new = gradcore.tensor(values), gradcore.tensor(labels)
        if not passed:
            for t, value in zip(batch, new, strict=True):
                t.copy_(value)
        found.append(run(*(new if passed else ())).detach().numpy().tobytes())
        schedule.step()
    found += [t.detach().numpy().tobytes() for t in (*model.parameters(), *model.buffers())]
    found += [p.grad.numpy().tobytes() for p in model.parameters()]
    return found, run


@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_steps_are_replayed_bit_for_bit(name: str, passed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fused: list[str] = []
    for kind, made in host_fused.KINDS.items():
        def noted(steps: Any, kind: str = kind, made: Any = made) -> Any:
            found = made(steps)
            fused.extend([kind] * (found is not None))
            return found

        monkeypatch.setitem(host_fused.KINDS, kind, noted)
    eager, _ = trained(name, lambda step: step, passed)
    replayed, compiled = trained(name, gradcore.compile, passed)
    assert len(set(eager[:STEPS])) > STEPS // 2, "the losses change"
    assert eager == replayed
    plan = compiled.plans[-1]
    assert len(compiled.traces) == 2 and plan.bound <= plan.nbytes <= 1.02 * plan.bound
    assert fused.count("loss with slopes") == 1, "the loss and its slopes are made together"
    assert fused.count("gelu over its input with slopes") == 2 * (name == "bent"), "gelu and its gradient are made together"


@pytest.mark.parametrize("rows, classes", [(4, 40), (32, 40), (200, 3)])
@pytest.mark.parametrize("returned", [True, False])
def test_a_step_need_not_return_its_loss(rows: int, classes: int, returned: bool) -> None:
    """The loss of one that does not is freed when the gradient is computed, and its bytes are reused."""
    x, y = gradcore.zeros(rows, 8), gradcore.zeros(rows, dtype="int64")

    def training(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
        gradcore.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, classes))
        optimizer = gradcore.optim.SGD(model.parameters(), lr=0.1)

        def step() -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss if returned else None

        return wrap(step), model

    found = []
    for wrap in (lambda f: f, gradcore.compile):
        run, model = training(wrap)
        generator = np.random.default_rng(1)
        for k in range(6):
            labels = generator.integers(0, classes, rows)
            if k % 2:
                labels[:2] = -100
            x.copy_(gradcore.tensor(generator.standard_normal((rows, 8)).astype(np.float32)))
            y.copy_(gradcore.tensor(labels))
            run()
        found.append([p.detach().numpy().tobytes() for p in model.parameters()])
    assert found[0] == found[1] and len(run.traces) == 2
    replay = next(iter(run._entries.values()))[0].replay
    assert any("loss_with_slopes" in getattr(f, "__qualname__", "") for f, _ in replay._bound.calls.parts[0]) is returned
