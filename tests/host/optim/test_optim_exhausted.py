"""Updates that run out of memory at any of their allocations change nothing, and the next one is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore
from gradcore import nn, optim
from gradcore.engine.value import tensors_in
from gradcore.events import Alloc
from gradcore.optim import swa_utils
from tests.meta.memory_stacks import Fault

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}), ("Adam", {"weight_decay": 0.1, "maximize": True}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1, "maximize": True}), ("AdamW", {"amsgrad": True}),
    ("RMSprop", {"centered": True}), ("Muon", {}), ("Muon", {"nesterov": False}), ("Adafactor", {"weight_decay": 0.1}),
    ("Adafactor", {"lr": "tensor", "weight_decay": 0.1})]
AVERAGES: list[Callable[[], dict[str, Any]]] = [
    dict, lambda: {"use_buffers": True}, lambda: {"avg_fn": swa_utils.get_ema_avg_fn()},
    lambda: {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()}]


def values(tensors: list[Any]) -> list[Any]:
    return [t.tolist() for t in tensors]


def check(update: Callable[[], Any], tensors: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each allocation of ``update`` fail in turn."""
    device = gradcore.device("cpu")
    memory = device.memory
    before, live = values(tensors()), set(device.ledger.live)
    for number in range(1, 500):
        monkeypatch.setattr(device, "memory", Fault(memory, {number}))
        failed = False
        try:
            update()
        except gradcore.OutOfMemory:
            failed = True
        monkeypatch.setattr(device, "memory", memory)
        if not failed:
            break
        assert values(tensors()) == before and set(device.ledger.live) == live, number
    assert number > 1 and values(tensors()) != before


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_an_update_of_an_optimizer(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "Muon":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install -e '.[bfloat16]'")
    options = {key: gradcore.tensor(0.1) if value == "tensor" else value for key, value in options.items()}
    # Adafactor updates a parameter at a time.
    shapes = [(3, 4)] if name == "Adafactor" else [(3, 4), (5, 2)]
    params = [nn.Parameter(gradcore.arange(float(rows * columns)).sin().reshape(rows, columns)) for rows, columns in shapes]
    optimizer = getattr(optim, name)(params, **options)

    def give(seed: float) -> None:
        for p in params:
            p.grad = (p.detach() * 3 + seed).cos()

    for seed in (0.0, 1.0):
        give(seed)
        optimizer.step()
    give(2.0)
    twin = [nn.Parameter(p.detach().clone()) for p in params]
    other = getattr(optim, name)(twin, **options)
    other.load_state_dict(optimizer.state_dict())
    for p, q in zip(params, twin, strict=True):
        q.grad = p.grad.clone()
    check(optimizer.step, lambda: [*params, *tensors_in(list(optimizer.state.values()))], monkeypatch)
    other.step()
    assert values(params) == values(twin)


@pytest.mark.parametrize("options", AVERAGES)
def test_an_update_of_averages(options: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    averaged = swa_utils.AveragedModel(model, **options())
    averaged.update_parameters(model)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.detach().add_(1)
    check(lambda: averaged.update_parameters(model), lambda: list(averaged.state_dict().values()), monkeypatch)
    assert averaged.n_averaged.item() == 2


@pytest.mark.parametrize(("name", "options"), [("Adam", {"amsgrad": True}), ("Muon", {}), ("Adafactor", {})], ids=str)
def test_what_an_update_takes_for_one_parameter_is_of_its_layer(name: str, options: dict[str, Any]) -> None:
    if name == "Muon":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install -e '.[bfloat16]'")
    model = nn.Sequential(nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False))
    optimizer = getattr(optim, name)(model.parameters(), **options)
    with gradcore.step() as step:
        model(gradcore.ones(2, 40)).sum().backward()
        start = len(gradcore.device("cpu").ledger.log)
        optimizer.step()
    made = [r.tag for r in step.log[start:] if isinstance(r, Alloc)]
    assert {tag.layer for tag in made if tag.role != "workspace"} == {"0", "1"}, made
