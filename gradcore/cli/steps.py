"""Training steps of a workload, and the highest peak of the first ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import gradcore
from gradcore import models
from gradcore.cli.common import make_optimizer
from gradcore.devices.device import get_device
from gradcore.models.examples import batch
from gradcore.report.step import StepReport

#: The most steps until blocks lie as after a step before.
_SETTLING = 32


def train_step(workload: Any, optimizer: Any, x: np.ndarray, y: np.ndarray, device: Any,
               level: str = "events", batch_size: int | None = None) -> tuple[float, gradcore.step]:
    """One training step; returns the loss and the recorded step. On meta the loss is NaN, since there are no values.

    ``batch_size`` is needed for arrays without one row for each sample. Raises ValueError for a loss that is no tensor with one
    element and a gradient.
    """
    with gradcore.step(batch_size=len(x) if batch_size is None else batch_size, device=device, level=level) as step:
        inputs = gradcore.tensor(x, device=device)
        labels = gradcore.tensor(y, device=device)
        optimizer.zero_grad()
        loss = workload.loss(workload.module, inputs, labels)
        if not (isinstance(loss, gradcore.Tensor) and loss.numel() == 1 and loss.requires_grad):
            what = (f"{loss.spec}{'' if loss.requires_grad else ' without a gradient'}" if isinstance(loss, gradcore.Tensor)
                    else f"a {type(loss).__name__}")
            raise ValueError(f"the model's loss must be one number that requires a gradient, but is {what}")
        loss.backward()
        optimizer.step()
        value = math.nan if device == "meta" else loss.item()
    return value, step


class Measured(NamedTuple):
    """The report of the step with the highest peak of some ``steps``; whether blocks lay as after a step before by then; and
    whether as many bytes were live as after a step before."""

    report: StepReport
    steps: int
    settled: bool
    level: bool


def measure(model: str, batch_size: int, device: Any, optimizer: str = "sgd", dataset: Any = None, steps: int = 3,
            seed: int = 0) -> StepReport:
    """The report of the step with the highest peak among the first ``steps`` steps, from an empty pool; its ``peak.reserved``
    is the most of any of them.

    The first step creates the optimizer's state, so later steps differ from it.
    """
    return measured(model, batch_size, device, optimizer, dataset, steps, seed).report


def measured(model: str, batch_size: int, device: Any, optimizer: str = "sgd", dataset: Any = None, steps: int = 3,
             seed: int = 0, settle: bool = False) -> Measured:
    """As :func:`measure`. Steps find other gaps than those before, so their blocks come to lie elsewhere: ``settle`` goes on
    until they lie as after a step before, for at most 32 steps. They never do if live bytes grow with each step, and may need
    more if many of them change places.
    """
    gradcore.manual_seed(seed)
    gradcore.empty_cache(device)
    workload = models.load(model, batch_size, dataset, device)
    # On meta, values are not needed, and a batch of any size costs nothing.
    x, y = batch(workload.example, model, batch_size, device == "meta", workload.any_size)
    update = make_optimizer(optimizer, workload.module.parameters())
    reports: list[StepReport] = []
    layouts: list[Any] = []
    lives: list[int] = []
    settled = False
    while len(reports) < steps or (settle and not settled and len(reports) < steps + _SETTLING):
        reports.append(train_step(workload, update, x, y, device, batch_size=batch_size)[1].report)
        if settle:
            lives.append(get_device(device).ledger.allocated)
            layouts.append(get_device(device).stack.pool.layout())
            settled = layouts[-1] in layouts[:-1]
    highest = max(reports, key=lambda r: r.peak.allocated)
    peak = replace(highest.peak, reserved=max(r.peak.reserved for r in reports))
    return Measured(replace(highest, peak=peak), len(reports), settled, not lives or lives[-1] in lives[:-1])
