"""Memory accounting: the driver's figures against the pool's, and recovery from running out of memory."""

from __future__ import annotations

from typing import Any

import gradcore
from bench.gpu.part import Outcome, Setting
from bench.gpu.steps import training_step
from bench.workloads import WORKLOADS
from gradcore import nn


def reconciliation(setting: Setting) -> Outcome:
    """Split the driver's figure, after each step that may take memory, into context, segments, libraries and unexplained."""
    outcome = Outcome(table=[["after", "driver", "context", "segments", "library", "remainder", "share", "source"]])
    device: Any = None

    def look(after: str) -> None:
        figures = device.driver_figures()
        if figures is None:
            outcome.table.append([after, "no driver", "", f"{device.ledger.reserved:,}", "0", "", "", ""])
            return
        setting.keep(outcome)
        numbers = (figures.used, figures.context, figures.segments, figures.library, figures.remainder)
        share = "" if not figures.used or figures.remainder is None else f"{figures.remainder / figures.used:.2%}"
        outcome.table.append([after, *["N/A" if n is None else f"{n:,}" for n in numbers], share, figures.source])
        outcome.figures[after] = [*numbers, {x.name: x.nbytes for x in figures.libraries}]
        if "steps of" in after and share and abs(figures.remainder or 0) > figures.used / 100:
            outcome.problems.append(f"after {after} the remainder is {figures.remainder:,} bytes, {share} of what is used")
        if figures.used is not None and figures.used < figures.segments + figures.library:
            outcome.problems.append(f"after {after} the driver reports {figures.used:,} bytes, but the pools hold "
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
    for name in ("large", "cnn", "gpt"):
        workload = WORKLOADS[name].with_batch(2 if setting.rehearsal else WORKLOADS[name].batch)
        step = training_step(gradcore, workload, setting.device)
        live = []
        for _ in range(2 if setting.rehearsal else 100):
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
    outcome.summary = f"CuPy allocated in {', '.join(seen)}" if seen else "CuPy allocated for no op"
    last = outcome.table[-1]
    outcome.summary += f"; at the end the driver reports {last[1]}, of which {last[5] or 'nothing'} unexplained"
    return outcome


def out_of_memory(setting: Setting) -> Outcome:
    """Exceed a limit: the error must name layer and line, nothing may leak, and a smaller batch must train afterwards."""
    device = gradcore.device(setting.device)
    layer = nn.Sequential(nn.Linear(256, 256)).to(setting.device)
    gradcore.empty_cache(setting.device)
    limit = (64 if setting.rehearsal else 1024) << 20
    gradcore.set_memory_limit(limit, setting.device)
    # The batch takes half of it, so that the layer's result, which takes the other half, does not fit beside the weights.
    most = limit // 2 // (256 * 4)
    before, text = device.ledger.allocated, ""

    def train(batch: int) -> float:
        loss = layer(gradcore.zeros(batch, 256, device=setting.device)).square().mean()
        loss.backward()
        for p in layer.parameters():
            p.grad = None
        return float(loss.item())

    try:
        try:
            train(most)
        except gradcore.OutOfMemory as error:
            text = str(error)
        live = device.ledger.allocated
        train(64)
    finally:
        gradcore.set_memory_limit(None, setting.device)
    problems = []
    if "out of memory" not in text or "in layer 0" not in text or "memory.py" not in text:
        problems.append(f"the error does not name the layer and a line of this file: {text[:1000]!r}")
    if live != before:
        problems.append(f"{live - before} bytes were still live after the error")
    return Outcome(f"a batch of 64 trained after one of {most:,} did not fit into {limit >> 20:,} MiB", problems,
                   figures={"text": text.splitlines()[:12]})
