"""Muon and Adafactor: PyTorch's steps in several ops, with state that has an owner, replayed by compiled functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
from gradcore.events import Read
from tests.conftest import raises
from tests.host.optim.test_optim import give_gradients, oracle

__all__ = ["oracle"]

pytest.importorskip("ml_dtypes", reason="Muon computes in bfloat16")

SHAPES = ((7, 5), (4, 4), (3, 7), (64, 32))


def parameters(library: Any) -> list[Any]:
    return [library.tensor(np.random.default_rng(k).normal(size=s).astype(np.float32), requires_grad=True)
            for k, s in enumerate(SHAPES)]


@pytest.mark.oracle
@pytest.mark.parametrize("options", [
    {}, {"lr": 0.02}, {"lr": 0.02, "momentum": 0.8, "nesterov": False, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.0},
    {"ns_coefficients": (3.0, -4.0, 1.5), "eps": 1e-3, "ns_steps": 3, "adjust_lr_fn": "original"}], ids=str)
def test_muons_steps_and_state_are_pytorchs(oracle: Any, options: dict[str, Any]) -> None:
    ours, theirs = parameters(gradcore), parameters(oracle)
    a, b = optim.Muon(ours, **options), oracle.optim.Muon(theirs, **options)
    for step in range(12):
        give_gradients(gradcore, ours, step)
        give_gradients(oracle, theirs, step)
        if step % 5 == 3:
            ours[1].grad = theirs[1].grad = None
        if step == 6:
            a.param_groups[0]["lr"] = b.param_groups[0]["lr"] = 0.01
        if step == 8:
            # From PyTorch's state.
            a = optim.Muon(ours)
            a.load_state_dict(b.state_dict())
        a.step()
        b.step()
    for k, (p, q) in enumerate(zip(ours, theirs, strict=True)):
        # Sums in another order are rounded to another number of bfloat16 here and there.
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), atol=1e-5 if k < 3 else 1e-3)
    mine, other = a.state_dict(), b.state_dict()
    assert set(mine["param_groups"][0]) == set(other["param_groups"][0])
    assert {k: set(s) for k, s in mine["state"].items()} == {k: set(s) for k, s in other["state"].items()}


@pytest.mark.parametrize("kind", ["Muon", "Adafactor"])
def test_a_step_is_replayed_bit_for_bit(kind: str) -> None:
    losses: list[list[float]] = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8, bias=kind == "Adafactor"), nn.Tanh(), nn.Linear(8, 3, bias=False))
        optimizer = getattr(optim, kind)(model.parameters(), lr=0.02)

        @wrap
        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = (model(x) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        losses.append([step(gradcore.ones(5, 6) * (k + 1)).item() for k in range(8)])
    assert losses[0] == losses[1] and len(step.programs) == 1 and len(step.traces) == 2


def test_muon_follows_a_schedule_without_another_trace() -> None:
    model = nn.Linear(6, 4, bias=False)
    optimizer = optim.Muon(model.parameters(), lr=0.02, weight_decay=0.0)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    @gradcore.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    moved = []
    for _ in range(5):
        before = model.weight.detach().clone()
        step(gradcore.ones(5, 6))
        schedule.step()
        moved.append((model.weight.detach() - before).norm().item())
    np.testing.assert_allclose(np.divide(moved[1:], moved[:-1]), 0.5, rtol=0.1)
    assert len(step.traces) == 2


def test_state_belongs_to_the_layer_of_its_parameter() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model(gradcore.ones(2, 6)).sum().backward()
    both = optim.Adafactor(model.parameters()), optim.Muon([p for p in model.parameters() if p.ndim == 2])
    for optimizer in both:
        optimizer.step()
        again = type(optimizer)(p for g in optimizer.param_groups for p in g["params"])
        again.load_state_dict(optimizer.state_dict())
        again.step()
        for name, p in model.named_parameters():
            for of in (optimizer, again):
                for key, value in of.state.get(p, {}).items():
                    tag = value.storage.block.tag
                    assert (tag.role, tag.layer, tag.phase) == ("optimizer state", name.partition(".")[0], "optimizer"), key
    state = both[0].state[model[0].weight]
    assert {k: (tuple(v.shape), v.storage.nbytes) for k, v in state.items()} == {
        "step": ((), 4), "row_var": ((8, 1), 32), "col_var": ((1, 6), 24)}


@pytest.mark.parametrize("kind", ["Muon", "Adafactor"])
def test_nothing_but_the_state_is_left(kind: str) -> None:
    p = gradcore.ones(6, 4, requires_grad=True)
    (p * p).sum().backward()
    optimizer = getattr(optim, kind)([p])
    optimizer.step()
    before = gradcore.memory_allocated()
    optimizer.step()
    assert gradcore.memory_allocated() == before


def test_counts_beyond_what_16_bits_hold() -> None:
    p = gradcore.ones(3, dtype=gradcore.bfloat16, requires_grad=True)
    a = optim.Adafactor([p])
    p.grad = gradcore.ones(3, dtype=gradcore.bfloat16)
    a.step()
    a.state[p]["step"].fill_(3000)
    b = optim.Adafactor([p])
    b.load_state_dict(a.state_dict())
    b.step()
    assert b.state[p]["step"].item() == 3001 and b.state[p]["variance"].dtype == p.dtype


def test_state_is_loaded_without_values() -> None:
    for device in ("cpu", "meta"):
        p = gradcore.ones(3, 2, device=device, requires_grad=True)
        p.grad = gradcore.ones(3, 2, device=device)
        a, b = optim.Adafactor([p]), optim.Adafactor([p])
        a.step()
        with gradcore.step(device=device) as s:
            b.load_state_dict(a.state_dict())
        assert not any(isinstance(record, Read) for record in s.log)
        count = b.state[p]["step"]
        assert (count.device.type, count.shape, count.dtype) == (device, (), np.float32)
        assert count.storage is not a.state[p]["step"].storage


def test_errors_have_pytorchs_words() -> None:
    p = gradcore.ones(2, 2, requires_grad=True)
    for make, text in (
            (lambda: optim.Muon([p], lr=-1), "Learning rate should be >= 0 but is: -1"),
            (lambda: optim.Muon([p], weight_decay=-1), "weight decay should be >= 0 but is: -1"),
            (lambda: optim.Muon([p], adjust_lr_fn="no"), "Adjust learning rate function no is not supported"),
            (lambda: optim.Muon([gradcore.ones(2, requires_grad=True)]),
             "Muon only supports 2D parameters whereas we found a parameter with size:"),
            (lambda: optim.Adafactor([p], beta2_decay=0.1), "beta2_decay should be <= 0 but is: 0.1"),
            (lambda: optim.Adafactor([p], eps=(-1.0, 0.1)), "epsilon1 should be >= 0 but is: -1.0"),
            (lambda: optim.Adafactor([p], eps=(None, -1.0)), "epsilon2 should be >= 0 but is: -1.0"),
            (lambda: optim.Adafactor([p], d=0.5), "Clipping threshold d should be >= 1 but is: 0.5"),
            (lambda: optim.Adafactor([p], weight_decay=-1), "weight_decay should be >= 0 but is: -1")):
        with raises(ValueError, text):
            make()
