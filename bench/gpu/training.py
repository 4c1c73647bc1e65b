"""Training of the sample models: the same from a seed as on the CPU, and the same bits whenever it is repeated."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

import gradcore
from bench.gpu.part import Outcome, Setting
from gradcore import nn
from gradcore.models import registry

#: By model: samples of a batch, few enough for the CPU to train beside the GPU.
_BATCHES = {"mlp": 64, "cnn": 16, "chargpt": 2}
_SEED = 7
#: The steps in which losses must be close, by how much; rounding differences grow in the course of training.
_CLOSE, _APART = 10, 1e-3
#: Normal numbers may differ by two units in the last place between devices, and are rounded again; all others are equal.
_NORMAL = 5e-7


def training(setting: Setting) -> Outcome:
    """With the same seed on both devices initial weights and dropout masks must be equal, and losses of training runs close."""
    outcome = Outcome(table=[["model", "steps", "first loss", "last loss", "CPU's last", "apart at first", "apart at most"]])
    mask, other = (_mask(device) for device in (setting.device, "cpu"))
    if not np.array_equal(mask, other):
        outcome.problems.append(f"dropout's mask differs in {int((mask != other).sum())} of {mask.size} elements")
    for name in _BATCHES:
        (weights, ours), (others, theirs) = (_run(name, device, 10 if setting.rehearsal else 200)
                                                             for device in (setting.device, "cpu"))
        for key, weight in weights.items():
            if not np.allclose(weight, others[key], rtol=_NORMAL, atol=0):
                outcome.problems.append(f"{name}: initial {key} differs by up to {np.abs(weight - others[key]).max():.1e}")
        equal = sum(np.array_equal(weight, others[key]) for key, weight in weights.items())
        apart = np.abs(np.subtract(ours, theirs))
        outcome.figures[name] = {"losses": ours, "cpu": theirs, "equal weights": equal, "weights": len(weights)}
        outcome.table.append([name, str(len(ours)), f"{ours[0]:.5f}", f"{ours[-1]:.5f}", f"{theirs[-1]:.5f}",
                              f"{apart[:_CLOSE].max():.1e}", f"{apart.max():.1e}"])
        learnt = setting.rehearsal or np.mean(ours[-5:]) < ours[0]
        if not (np.isfinite(ours).all() and apart[:_CLOSE].max() <= _APART and learnt):
            outcome.problems.append(f"{name}: losses {ours}, the CPU's {theirs}")
        setting.keep(outcome)
    outcome.summary = "; ".join(f"{row[0]}: losses of {row[1]} steps at most {row[6]} apart, initial weights "
                                f"{outcome.figures[row[0]]['equal weights']} of {outcome.figures[row[0]]['weights']} equal"
                                for row in outcome.table[1:])
    return outcome


def _mask(device: str) -> Any:
    gradcore.manual_seed(_SEED)
    return nn.functional.dropout(gradcore.ones(10_007, device=device), 0.3).cpu().numpy()


def _run(name: str, device: str, steps: int) -> tuple[dict[str, Any], list[float]]:
    """The initial weights of a model, and the losses of a training run."""
    gradcore.manual_seed(_SEED)
    made = registry.load(name, _BATCHES[name], device=device)
    # A CPU tensor's array shares its memory, which training writes to.
    weights = {key: value.cpu().numpy().copy() for key, value in made.module.state_dict().items()}
    optimizer = gradcore.optim.SGD(made.module.parameters(), lr=0.05, momentum=0.9)
    losses = []
    assert made.task is not None
    for batch in islice(made.task.batches(_BATCHES[name], _SEED), steps):
        x, y = (gradcore.tensor(part, device=device) for part in batch)
        optimizer.zero_grad()
        loss = made.loss(made.module, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return weights, losses


def determinism(setting: Setting) -> Outcome:
    """The gradients of each sample model, for one batch, must have the same bits each time."""
    outcome = Outcome(table=[["model", "batch", "runs", "gradients that differed"]])
    runs = 3 if setting.rehearsal else 100
    for name, batch in _BATCHES.items():
        batch = batch if setting.rehearsal else 64
        gradcore.manual_seed(_SEED)
        made = registry.load(name, batch, device=setting.device)
        x, y = (gradcore.tensor(part, device=setting.device) for part in made.example(batch))
        first: dict[str, bytes] = {}
        differed = set()
        for _ in range(runs):
            made.module.zero_grad()
            made.loss(made.module, x, y).backward()
            for key, parameter in made.module.named_parameters():
                found = parameter.grad.cpu().numpy().tobytes()
                if first.setdefault(key, found) != found:
                    differed.add(key)
        outcome.table.append([name, str(batch), str(runs), ", ".join(sorted(differed)) or "none"])
        if differed:
            outcome.problems.append(f"{name}: gradients of {', '.join(sorted(differed))} differ between runs")
        setting.keep(outcome)
    outcome.summary = (f"{runs} runs of {', '.join(_BATCHES)}: gradients "
                       + ("differ" if outcome.problems else "have equal bits"))
    return outcome
