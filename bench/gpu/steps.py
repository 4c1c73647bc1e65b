"""Training steps of each model of bench/workloads.py: seconds and peak bytes, next to PyTorch's in the same run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

import gradcore
from bench.gpu.clock import medians
from bench.gpu.part import Outcome, Setting
from bench.workloads import WORKLOADS, Workload, step_on

#: For each model three batch sizes: of the table, between, and one that keeps a GPU busy.
BATCHES = {"small": (64, 256, 512), "large": (512, 2048, 4096), "cnn": (64, 256, 512), "gpt": (8, 32, 64)}


def training_step(library: Any, workload: Workload, device: str, weights: Any = None) -> Callable[[], Any]:
    """A function that runs one step on a device, from given weights if any, and returns the loss."""
    step, batch = step_on(library, workload, device, weights)
    return lambda: step(*batch)


#: The steps whose losses are recorded, of a workload's own batch and of others, and those of them that must agree with
#: PyTorch's: later ones differ by rounding.
_STEPS, _FEWER, _EQUAL = 200, 20, 3


def steps(setting: Setting) -> Outcome:
    """Eager steps, interleaved, each round ended by a synchronization; for the first and the last batch size as TF32, too.

    The other batch sizes come last, as long as most of the time is left.
    """
    torch, start = torch_on(setting), perf_counter()
    outcome = Outcome(table=[["model", "batch", "ms", "torch ms", "ratio", "peak bytes", "libraries' bytes", "torch peak",
                              "ratio of all bytes"]])
    chosen = [(name, sizes[0], tf32) for tf32 in (False, True) for name, sizes in BATCHES.items()]
    first = len(chosen)
    if not setting.rehearsal:
        chosen += [(name, sizes[k], tf32) for k, tf32 in ((2, False), (2, True), (1, False)) for name, sizes in BATCHES.items()]
    for k, (name, batch, tf32) in enumerate(chosen):
        if k >= first and perf_counter() - start > 0.8 * setting.seconds:
            break
        workload = WORKLOADS[name].with_batch(2 if setting.rehearsal else batch)
        try:
            with precision(torch, tf32):
                _compare(f"{name}, TF32" if tf32 else name, workload, torch, setting, outcome, 1e-2 if tf32 else 1e-3)
        except Exception as error:
            outcome.problems.append(f"{name}, batch {workload.batch}: {type(error).__name__}: {str(error)[:800]}")
        setting.keep(outcome)
    outcome.summary = "; ".join(f"{row[0]} {row[1]}: {row[4] or row[2] + ' ms'}" for row in outcome.table[1:])
    if len(outcome.table) <= len(chosen):
        outcome.summary += f"; {len(outcome.table) - 1} of {len(chosen)} were measured"
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


@contextmanager
def precision(torch: Any, allowed: bool) -> Iterator[None]:
    """Products and convolutions of float32 as TF32 in both libraries, if ``allowed``."""
    usual = gradcore.get_float32_matmul_precision()
    if allowed:
        gradcore.set_float32_matmul_precision("high")
        if torch is not None:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        gradcore.set_float32_matmul_precision(usual)
        if torch is not None:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def initial_weights(workload: Workload, torch: Any) -> Any:
    """One set of initial weights for both libraries, on the host."""
    if torch is not None:
        torch.manual_seed(0)
        return {name: value.numpy() for name, value in workload.build(torch).state_dict().items()}
    gradcore.manual_seed(0)
    return {name: value.numpy() for name, value in workload.build(gradcore).state_dict().items()}


def _compare(name: str, workload: Workload, torch: Any, setting: Setting, outcome: Outcome, tolerance: float) -> None:
    weights = initial_weights(workload, torch)
    device, own = gradcore.device(setting.device), WORKLOADS[name.split(",")[0]].batch
    count = _EQUAL if setting.rehearsal else _STEPS if workload.batch == own else _FEWER
    gradcore.empty_cache(setting.device)
    ours = training_step(gradcore, workload, setting.device, weights)
    losses = [ours().item() for _ in range(count)]
    gradcore.reset_peak_memory_stats(setting.device)
    ours()
    device.synchronize()
    peak, reserved = gradcore.max_memory_allocated(setting.device), gradcore.max_memory_reserved(setting.device)
    # torch's peak includes the workspaces of its libraries, ours are in a pool of their own.
    bridge = getattr(device, "bridge", None)
    libraries = bridge.ledger.allocated if bridge else 0
    theirs, other_peak, other_reserved, expected = None, None, None, None
    if torch is not None:
        theirs = training_step(torch, workload, setting.device, weights)
        if setting.device == "cuda":
            torch.cuda.empty_cache()
        expected = [theirs().item() for _ in range(count)]
        if not np.allclose(losses[:_EQUAL], expected[:_EQUAL], rtol=tolerance if setting.device == "cuda" else 1e-4, atol=0):
            outcome.problems.append(f"{name}, batch {workload.batch}: losses {losses[:_EQUAL]}, torch's {expected[:_EQUAL]}")
        if setting.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            theirs()
            torch.cuda.synchronize()
            other_peak, other_reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()

    found = medians({"ours": ours} if theirs is None else {"ours": ours, "torch": theirs}, device,
                    1 if setting.rehearsal else 15)
    mine, other = found["ours"], found.get("torch")
    outcome.figures[f"{name} {workload.batch}"] = {
        "seconds": mine, "torch": other, "peak": peak, "libraries": libraries, "torch peak": other_peak,
        "reserved": reserved, "torch reserved": other_reserved, "losses": losses, "torch losses": expected}
    outcome.table.append([name, str(workload.batch), f"{mine * 1e3:.3f}", f"{other * 1e3:.3f}" if other else "",
                          f"{mine / other:.2f}" if other else "", f"{peak:,}", f"{libraries:,}",
                          f"{other_peak:,}" if other_peak else "",
                          f"{(peak + libraries) / other_peak:.2f}" if other_peak else ""])
