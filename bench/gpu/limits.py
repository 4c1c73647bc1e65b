"""Exhausting device memory and recovering from it, and training with the largest batch that is predicted to fit."""

from __future__ import annotations

import json
from typing import Any

import gradcore
from bench.gpu.libraries import free_bytes
from bench.gpu.part import REHEARSED, Outcome, Setting, python, run_limited
from gradcore import nn

#: The difference in bytes that is allowed in the driver's free memory, which is due to its rounding of allocations.
_SLACK = 4 << 20


def whole_card(setting: Setting) -> Outcome:
    """Allocate until the device is full (in a rehearsal: up to a limit): the error names the owners, and all is released.

    A training step runs before, so that one-time allocations of libraries and kernels are done, and another afterwards.
    """
    device = gradcore.device(setting.device)
    layer = nn.Sequential(nn.Linear(256, 256)).to(setting.device)

    def train() -> None:
        layer(gradcore.zeros(64, 256, device=setting.device)).square().mean().backward()
        for p in layer.parameters():
            p.grad = None
        device.synchronize()

    train()
    gradcore.empty_cache(setting.device)
    free, live = free_bytes(device), device.ledger.allocated
    if setting.rehearsal:
        gradcore.set_memory_limit(256 << 20, setting.device)
    try:
        text, most = _fill(setting.device, (free or 256 << 20) // 16)
        left = device.ledger.allocated - live
        train()
    finally:
        if setting.rehearsal:
            gradcore.set_memory_limit(None, setting.device)
    gradcore.empty_cache(setting.device)
    device.synchronize()
    problems = []
    if "out of memory" not in text or "limits.py" not in text:
        problems.append(f"the error names no line of this file: {text[:1000]!r}")
    if left:
        problems.append(f"{left:,} bytes were still live after the error")
    after = free_bytes(device)
    if free is not None and after is not None and free - after > _SLACK:
        problems.append(f"the driver reported {free:,} free bytes before, and {after:,} afterwards")
    if free is not None and most < 0.9 * free:
        problems.append(f"out of memory was raised with {most:,} bytes live of {free:,} that were free")
    return Outcome(f"{most:,} bytes were live when it ran out; a step trained afterwards", problems,
                   [["free before", "live at the error", "free afterwards"],
                    [*("no driver" if n is None else f"{n:,}" for n in (free, most, after))]],
                   {"free": free, "live": most, "free afterwards": after, "text": text.splitlines()[:12]})


def _fill(device: str, nbytes: int) -> tuple[str, int]:
    """Allocate tensors of ``nbytes`` until memory runs out: the error's text, and the peak of live bytes."""
    held: list[Any] = []
    ledger = gradcore.device(device).ledger
    for _ in range(200):
        try:
            held.append(gradcore.empty(nbytes // 4, device=device))
        except gradcore.OutOfMemory as error:
            return str(error), ledger.allocated
    return "", ledger.allocated


def largest_batch(setting: Setting) -> Outcome:
    """The largest batch of the small GPT that is predicted to fit in nine tenths of the free memory, and whether it trains."""
    free = free_bytes(gradcore.device(setting.device))
    memory = int((free or 64 << 20) * 0.9)
    command = ["gradcore.cli.main", "find-batch", "chargpt", "--memory", str(memory), "--device", setting.device, "--json",
               "--steps", "1"]
    # In a rehearsal it ends before the part's own limit.
    code, output = run_limited(python(*command), setting.seconds * (REHEARSED - 1 if setting.rehearsal else 1))
    line = next((line for line in output.splitlines() if line.startswith("{")), None)
    if code != 0 or line is None:
        how = "it timed out" if code is None else f"code {code}"
        return Outcome(how, [f"{how}: {output[-2000:]}"])
    found = json.loads(line)
    problems = [] if found["confirmed"] else [
        f"a batch of {found['batch_size']:,} should fit into {memory:,} bytes, but on the device "
        + ("its peak differs from the prediction" if found["confirmed"] is False else "it was not run")]
    how = "as predicted" if found["confirmed"] else "not as predicted"
    return Outcome(f"{found['batch_size']:,} samples in {memory:,} bytes: {how}", problems, [
        ["memory", "batch", "peak allocated", "peak reserved", "as predicted"],
        [f"{memory:,}", f"{found['batch_size']:,}", f"{found['allocated']:,}", f"{found['reserved']:,}",
         str(found["confirmed"])]], found)
