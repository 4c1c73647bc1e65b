"""Training steps of each model of bench/workloads.py: seconds and peak bytes, next to PyTorch's in the same run."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

import gradcore
from bench.gpu.part import Outcome, Setting
from bench.workloads import WORKLOADS, Workload, step_on

#: For each model, the batch size of the table, and one that keeps a GPU busy.
_BATCHES = {"small": (64, 512), "large": (512, 4096), "cnn": (64, 512), "gpt": (8, 64)}


def training_step(library: Any, workload: Workload, device: str, weights: Any = None) -> Callable[[], Any]:
    """A function that runs one step on a device, from given weights if any, and returns the loss."""
    step, batch = step_on(library, workload, device, weights)
    return lambda: step(*batch)


def steps(setting: Setting) -> Outcome:
    """Eager steps, interleaved, each round ended by a synchronisation; TF32 off in both."""
    torch = torch_on(setting)
    outcome = Outcome(table=[["model", "batch", "ms", "torch ms", "ratio", "peak bytes", "torch peak", "ratio"]])
    for name, batches in _BATCHES.items():
        for batch in batches[:1] if setting.rehearsal else batches:
            workload = WORKLOADS[name].with_batch(2 if setting.rehearsal else batch)
            try:
                _compare(name, workload, torch, setting, outcome)
            except Exception as error:
                outcome.problems.append(f"{name}, batch {workload.batch}: {type(error).__name__}: {str(error)[:800]}")
            setting.keep(outcome)
    outcome.summary = "; ".join(f"{row[0]} {row[1]}: {row[4] or row[2] + ' ms'}" for row in outcome.table[1:])
    if torch is None:
        outcome.summary += " (torch is not installed, or sees no GPU)"
    return outcome


def torch_on(setting: Setting) -> Any:
    """torch, if it can run on the same device."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if setting.device == "cuda":
        if not torch.cuda.is_available():
            return None
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    return torch


def initial_weights(workload: Workload, torch: Any) -> Any:
    """One set of initial weights for both libraries, on the host."""
    if torch is not None:
        torch.manual_seed(0)
        return {name: value.numpy() for name, value in workload.build(torch).state_dict().items()}
    gradcore.manual_seed(0)
    return {name: value.numpy() for name, value in workload.build(gradcore).state_dict().items()}


def _compare(name: str, workload: Workload, torch: Any, setting: Setting, outcome: Outcome) -> None:
    weights = initial_weights(workload, torch)
    device = gradcore.device(setting.device)
    gradcore.empty_cache(setting.device)
    ours = training_step(gradcore, workload, setting.device, weights)
    losses = [ours().item() for _ in range(3)]
    gradcore.reset_peak_memory_stats(setting.device)
    ours()
    device.synchronize()
    peak = gradcore.max_memory_allocated(setting.device)
    theirs, other_peak = None, None
    if torch is not None:
        theirs = training_step(torch, workload, setting.device, weights)
        expected = [theirs().item() for _ in range(3)]
        np.testing.assert_allclose(losses, expected, rtol=1e-3 if setting.device == "cuda" else 1e-4)
        if setting.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            theirs()
            torch.cuda.synchronize()
            other_peak = torch.cuda.max_memory_allocated()

    def seconds(run: Callable[[], Any], times: int) -> float:
        device.synchronize()
        start = perf_counter()
        for _ in range(times):
            run()
        device.synchronize()
        return (perf_counter() - start) / times

    times = max(1, min(50, int(0.05 / max(seconds(ours, 1), 1e-6))))
    a, b = [], []
    for _ in range(2 if setting.rehearsal else 15):
        a.append(seconds(ours, times))
        if theirs is not None:
            b.append(seconds(theirs, times))
    mine, other = statistics.median(a), statistics.median(b) if b else None
    outcome.figures[f"{name} {workload.batch}"] = {"seconds": mine, "torch": other, "peak": peak, "torch peak": other_peak,
                                                   "losses": losses}
    outcome.table.append([name, str(workload.batch), f"{mine * 1e3:.3f}", f"{other * 1e3:.3f}" if other else "",
                          f"{mine / other:.2f}" if other else "", f"{peak:,}", f"{other_peak:,}" if other_peak else "",
                          f"{peak / other_peak:.2f}" if other_peak else ""])
