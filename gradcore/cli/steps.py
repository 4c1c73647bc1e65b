"""Training steps of a workload, and the highest peak of the first ones."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

import gradcore
from gradcore import models, trees
from gradcore._step import peaks_of
from gradcore.cli.common import make_optimizer
from gradcore.devices.device import get_device
from gradcore.errors import DeviceError, SpecError
from gradcore.memory.stack import unnamed
from gradcore.models.examples import Batch, batch
from gradcore.report.recording import Recording
from gradcore.report.step import StepReport
from gradcore.utils.checkpointed import checkpoint_layers

T = TypeVar("T")

#: The most steps until blocks lie as after a step before.
_SETTLING = 32


def train_step(workload: Any, optimizer: Any, batch: Batch, device: Any,
               level: str = "events", batch_size: int | None = None) -> tuple[float, gradcore.step]:
    """One training step on a batch of arrays; returns the loss and the recorded step. The loss is NaN on meta, where there are
    no values, and if the step of a user's own returns none.

    ``batch_size`` is needed for arrays without one row for each sample. Raises ValueError for a loss that is no tensor with one
    element and a gradient.
    """
    device = get_device(device)
    arrays = list(trees.leaves(batch))
    batch_size = len(arrays[0]) if batch_size is None else batch_size
    with gradcore.step(batch_size=batch_size, device=device, level=level) as step, device:
        given = [gradcore.tensor(a, device=device) if isinstance(a, np.ndarray) else a for a in arrays]
        try:
            loss = workload.run(trees.filled(batch, given), optimizer)
        except SpecError as error:
            said = str(error)
            if "dtype" in said and "float64" in said and any(getattr(a, "dtype", None) == np.float64 for a in arrays):
                error.add_note("the batch has float64, which NumPy makes unless it is told dtype=np.float32")
            raise
        except DeviceError as error:
            if device.type != "cpu" and "two devices" in str(error):
                error.add_note("tensors that the model's file makes outside of the function are on the CPU: make them in the "
                               f"function, which runs with {device} as the default device, or move them, as x.to(y.device) "
                               "does")
            raise
        value = loss.item() if isinstance(loss, gradcore.Tensor) and loss.numel() == 1 and device.type != "meta" else math.nan
    return value, step


class Measured(NamedTuple):
    """The report of the step with the highest peak of some ``steps``; the name of the optimizer, None for a user's own step;
    whether blocks lay as after a step before by then; whether as many bytes were live as after a step before; and the
    recording of that step, if it was asked for."""

    report: StepReport
    steps: int
    optimizer: str | None
    settled: bool
    level: bool
    recording: Recording | None = None


def measured(model: str, batch_size: int, device: Any, optimizer: str | None = None, dataset: Any = None, steps: int = 3,
             seed: int = 0, settle: bool = False, recorded: bool = False, checkpoints: Iterable[str] = ()) -> Measured:
    """The report of the step with the highest peak among the first ``steps`` steps, from an empty pool; its ``peak.reserved``
    is the most of any of them. The first step creates the optimizer's state, so later steps differ from it.

    Without a name, ``optimizer`` is the model's usual one. Steps find other gaps than those before, so their blocks come to lie
    elsewhere: ``settle`` goes on until they lie as after a step before, for at most 32 steps. They never do if live bytes grow
    with each step, and may need more if many of them change places. Layers of the module named in ``checkpoints`` are
    checkpointed.
    """
    gradcore.manual_seed(seed)
    # Beside the generator, a model from before this one may be live, in a reference cycle, as one with a hook of its own is.
    if len(get_device(device).ledger.live) > 1:
        gc.collect()
    # Its layers come no more, and what calls of them are would take longer to collect with each attempt of a search.
    get_device(device).calls.clear()
    gradcore.empty_cache(device)
    workload = models.load(model, batch_size, dataset, device)
    # On meta, values are not needed, and a batch of any size costs nothing.
    given = batch(workload.example, model, batch_size, device == "meta", workload.any_size)
    workload.require_fit(given, model)
    update, chosen = None, None
    if isinstance(workload, models.Workload):
        chosen = optimizer or models.defaults(model).optimizer
        update = make_optimizer(chosen, checkpoint_layers(workload.module, checkpoints).parameters())
    elif optimizer is not None:
        raise ValueError(f"{model} returned a training step, which has optimizers of its own: leave out --optimizer")
    # A report takes longer than the step of a small model does, so only that of one step is made.
    highest: gradcore.step | None = None
    taken = allocated = reserved = 0
    layouts: list[Any] = []
    lives: list[int] = []
    settled = False
    while taken < steps or (settle and not settled and taken < steps + _SETTLING):
        step = train_step(workload, update, given, device, batch_size=batch_size)[1]
        taken += 1
        _, most, segments = peaks_of(step)
        reserved = max(reserved, segments)
        if highest is None or most > allocated:
            highest, allocated = step, most
        if settle:
            lives.append(get_device(device).ledger.allocated)
            layouts.append(get_device(device).stack.pool.layout())
            settled = layouts[-1] in layouts[:-1]
    assert highest is not None, "at least one step is taken"
    # Only the figures are of interest.
    highest.names_holders = False
    report = replace(highest.report, peak=replace(highest.report.peak, reserved=reserved))
    return Measured(report, taken, chosen, settled, not lives or lives[-1] in lives[:-1],
                    highest.recording if recorded else None)


@contextmanager
def many_attempts() -> Iterator[None]:
    """A context for a search: errors name no holders, since nobody reads them, and the collector, which each attempt with a
    model of a file runs, passes over all that there was before, or it would take half of the time."""
    gc.freeze()
    try:
        with unnamed():
            yield
    finally:
        gc.unfreeze()


def limited(limit: int | None, device: Any, work: Callable[[], T]) -> T:
    """Do ``work`` with an empty pool of the device that may reserve at most ``limit`` bytes."""
    memory = get_device(device).stack.limit
    gradcore.empty_cache(device)
    before, memory.limit = memory.limit, limit
    try:
        return work()
    finally:
        memory.limit = before
