"""Where the device's bytes are: the driver's account beside the pool's, allocations of CuPy's own, who owns an address."""

from __future__ import annotations

from typing import Any

import numpy as np

import gradcore
from bench.gpu.part import Outcome, Setting
from bench.gpu.steps import training_step
from bench.workloads import WORKLOADS
from gradcore import nn


def reconciliation(setting: Setting) -> Outcome:
    """The driver's figure after each thing that may take memory: context + segments + library + what nobody explains."""
    outcome = Outcome(table=[["after", "driver", "segments", "library", "remainder", "source"]])
    device: Any = None

    def look(after: str) -> None:
        figures = device.driver_figures()
        if figures is None:
            outcome.table.append([after, "no driver", f"{device.ledger.reserved:,}", "0", "", ""])
            return
        numbers = (figures.used, figures.segments, figures.library, figures.remainder)
        outcome.table.append([after, *["" if n is None else f"{n:,}" for n in numbers], figures.source])
        outcome.figures[after] = list(numbers)
        if figures.used is not None and figures.used < figures.segments + figures.library:
            outcome.problems.append(f"after {after} the driver knows of {figures.used:,} bytes, but the pools hold "
                                    f"{figures.segments + figures.library:,}")

    device = gradcore.device(setting.device)
    look("the context")
    on = {"device": setting.device}
    x = gradcore.zeros(1 << 20, **on)
    device.synchronize()
    look("the first tensor")
    y = gradcore.ones(256, 256, **on) @ gradcore.ones(256, 256, **on)
    look("the first product")
    y = nn.functional.conv2d(gradcore.ones(4, 3, 16, 16, **on), gradcore.ones(8, 3, 3, 3, **on))
    device.synchronize()
    look("the first convolution")
    del x, y
    for name in ("cnn", "gpt"):
        workload = WORKLOADS[name].with_batch(2 if setting.rehearsal else WORKLOADS[name].batch)
        step = training_step(gradcore, workload, setting.device)
        live = []
        for _ in range(2 if setting.rehearsal else 50):
            step()
            live.append(device.ledger.allocated)
        device.synchronize()
        look(f"{len(live)} steps of {name}")
        if len(set(live[1:])) > 1:
            outcome.problems.append(f"{name}: live bytes after its steps are {sorted(set(live[1:]))}")
        del step
    gradcore.empty_cache(setting.device)
    look("empty_cache")
    bridge = getattr(device, "bridge", None)
    seen = {} if bridge is None else {op: list(numbers) for op, numbers in bridge.seen.items()}
    outcome.figures["allocations of CuPy's own, by op: count and bytes"] = seen
    outcome.summary = f"CuPy allocated in {', '.join(seen)}" if seen else "no op made CuPy allocate"
    last = outcome.table[-1]
    outcome.summary += f"; at the end the driver says {last[1]}, of which {last[4] or 'nothing'} unexplained"
    return outcome


def ownership(setting: Setting) -> Outcome:
    """CuPy's and torch's arrays over our blocks outlive the tensors, also while kernels still run."""
    import cupy

    from gradcore.devices.gpu import export

    problems, notes = [], []
    device = gradcore.device("cuda")
    for round_ in range(50):
        tensor = gradcore.full((1 << 16,), float(round_), device="cuda")
        view = export(tensor)[1::2]
        # Freed while the product still runs, and taken by the next: the stream keeps them in order.
        busy = gradcore.ones(1024, 1024, device="cuda") @ gradcore.ones(1024, 1024, device="cuda")
        del tensor, busy
        others = [gradcore.full((1 << 16,), -1.0, device="cuda") for _ in range(8)]
        if float(cupy.asnumpy(view).min()) != round_ or float(cupy.asnumpy(view).max()) != round_:
            problems.append(f"round {round_}: a view's bytes were handed out while the view was alive")
            break
        del view, others
    try:
        import torch
    except ImportError:
        notes.append("torch is not installed")
    else:
        if torch.cuda.is_available():
            source = gradcore.arange(1000, dtype=np.float32, device="cuda")
            theirs = torch.from_dlpack(export(source))
            device.synchronize()
            del source
            gradcore.zeros(1000, device="cuda")
            if theirs.sum().item() != 499500:
                problems.append("torch's tensor over our bytes lost them when ours went")
            back = cupy.from_dlpack(theirs)
            if int(back.data.ptr) != theirs.data_ptr():
                problems.append("DLPack copied on the way back")
            notes.append("DLPack to torch and back shares the bytes")
        else:
            notes.append("torch sees no GPU")
    return Outcome("views outlived their tensors in 50 rounds; " + "; ".join(notes) if not problems else problems[0], problems)


def out_of_memory(setting: Setting) -> Outcome:
    """A limit is met: the text names layer and line, nothing leaks, and a smaller batch trains afterwards."""
    device = gradcore.device(setting.device)
    layer = nn.Sequential(nn.Linear(256, 256)).to(setting.device)
    gradcore.empty_cache(setting.device)
    gradcore.set_memory_limit(gradcore.memory_reserved(setting.device) + (64 << 20), setting.device)
    before, text = device.ledger.allocated, ""

    def train(batch: int) -> float:
        loss = layer(gradcore.zeros(batch, 256, device=setting.device)).square().mean()
        loss.backward()
        for p in layer.parameters():
            p.grad = None
        return float(loss.item())

    try:
        try:
            train(1 << 17)
        except gradcore.OutOfMemory as error:
            text = str(error)
        live = device.ledger.allocated
        train(64)
    finally:
        gradcore.set_memory_limit(None, setting.device)
    problems = []
    if "out of memory" not in text or "memory.py" not in text:
        problems.append(f"the error names no line of this file: {text[:1000]!r}")
    if live != before:
        problems.append(f"{live - before} bytes stayed alive after the error")
    return Outcome("a batch of 64 trained after one of 131,072 did not fit into 64 MiB", problems,
                   figures={"text": text.splitlines()[:12]})
