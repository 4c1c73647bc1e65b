"""Stress test of memory reuse across streams while kernels are delayed, and of uploads concurrent with compute."""

from __future__ import annotations

import functools
import random
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

import gradcore
from bench.gpu.part import Outcome, Setting
from gradcore import cuda

#: The number of streams of the stress test.
STREAMS = 8

_NAP = r"""
extern "C" __global__ void nap(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}
"""


@functools.cache
def _nap() -> Any:
    import cupy

    return cupy.RawKernel(_NAP, "nap")


def sleep(device: Any, cycles: int) -> None:
    """Delay the current stream by a number of cycles of the device's clock."""
    if device.type == "cuda":
        _nap()((1,), (1,), (np.int64(cycles),))


class Stress:
    """Tensors that are created, checked, given a new stamp and dropped on random streams, each use after the previous one.

    Every element of a tensor holds its stamp; each stream counts the elements that differ.
    """

    def __init__(self, device: Any, seed: int) -> None:
        self.device = device
        self.rng = random.Random(seed)
        self.streams = [cuda.default_stream(device), *(cuda.Stream(device) for _ in range(STREAMS - 1))]
        self.wrong = []
        for stream in self.streams:
            with cuda.stream(stream):
                self.wrong.append(gradcore.zeros((), dtype=np.int64, device=device))
        self.live: list[tuple[Any, int, int]] = []
        self.stamps = 0

    def make(self) -> None:
        which = self.rng.randrange(STREAMS)
        self.stamps += 1
        with cuda.stream(self.streams[which]):
            tensor = gradcore.full((self.rng.choice([100, 5000, 5000, 70_000, 600_000]),), self.stamps,
                                   dtype=np.int64, device=self.device)
        self.live.append((tensor, self.stamps, which))

    def use(self) -> None:
        at = self.rng.randrange(len(self.live))
        tensor, stamp, last = self.live[at]
        which = self.rng.randrange(STREAMS)
        if which != last:
            self.streams[which].wait_stream(self.streams[last])
        self.stamps += 1
        with cuda.stream(self.streams[which]):
            if self.rng.random() < 0.05:
                sleep(self.device, 200_000)
            self.wrong[which].add_((tensor != stamp).sum())
            tensor.fill_(self.stamps)
        self.live[at] = tensor, self.stamps, which

    def run(self, rounds: int, seconds: float = 1e9) -> int:
        """Run for a number of rounds, or of seconds, whichever ends first; returns the number of rounds done."""
        until = perf_counter() + seconds
        for k in range(rounds):
            chance = self.rng.random()
            if not self.live or (chance < 0.35 and len(self.live) < 40):
                self.make()
            elif chance < 0.65:
                self.use()
            else:
                self.live.pop(self.rng.randrange(len(self.live)))
            if chance > 0.998:
                gradcore.empty_cache(self.device)
            if perf_counter() > until:
                return k + 1
        return rounds

    def found(self) -> int:
        """The number of elements that differed from their stamp. Waits for all work."""
        self.live.clear()
        self.device.synchronize()
        return sum(int(count.item()) for count in self.wrong)


def streams(setting: Setting) -> Outcome:
    """Run the stress test on eight streams of a device that poisons reused blocks; then uploads concurrent with compute."""
    with poisoned(setting.device) as device:
        stress = Stress(device, 0)
        rounds = stress.run(300 if setting.rehearsal else 10_000, setting.seconds / 2)
        wrong = stress.found()
    outcome = Outcome(f"{rounds:,} rounds on {STREAMS} streams, {wrong} elements wrong",
                      figures={"rounds": rounds, "wrong": wrong})
    if wrong:
        outcome.problems.append(outcome.summary)
    setting.keep(outcome)
    _uploads(gradcore.device(setting.device), setting, outcome)
    return outcome


@contextmanager
def poisoned(name: str) -> Iterator[Any]:
    """A separate device whose blocks are filled with ones when they are reused. Inside, it serves its kernels' workspaces;
    afterwards the device of that name does again, and nothing of this one is left on the card."""
    if name != "cuda":
        from gradcore.devices.host.device import make_host

        yield make_host()
        return
    from gradcore.devices.gpu import loaded as gpu_loaded
    from gradcore.devices.gpu import workspaces as gpu_workspaces
    from gradcore.devices.gpu.device import CudaDevice

    registered: tuple[dict[int, Any], ...] = (gpu_workspaces.RESERVES, gpu_workspaces.FLUSHES, gpu_workspaces.SHARED,
                                              gpu_loaded.FIGURES)
    before = [each.copy() for each in registered]
    gpu_workspaces.SHARED.clear()
    device = CudaDevice(0, poison=True)
    try:
        yield device
    finally:
        device.synchronize()
        for each, entries in zip(registered, before, strict=True):
            each.clear()
            each.update(entries)
        device.ledger.flush()
        device.bridge.ledger.flush()


def _uploads(device: Any, setting: Setting, outcome: Outcome) -> None:
    """Time compute, uploads, and both at once, and check the values that arrive."""
    size, width, times = (1 << 12, 64, 2) if setting.rehearsal else (1 << 24, 4096, 8)
    batches = [gradcore.full((size,), float(k)).pin_memory() for k in range(4)]
    weight = gradcore.full((width, width), 1 / width, device=device)
    target = gradcore.device("meta") if setting.rehearsal else device

    def compute() -> Any:
        x = weight
        for _ in range(times):
            x = x @ weight
        return x

    def upload() -> list[Any]:
        return [batch.to(target, non_blocking=True) for batch in batches]

    def seconds(*work: Any) -> float:
        taken = []
        for _ in range(1 if setting.rehearsal else 5):
            device.synchronize()
            start = perf_counter()
            held = [part() for part in work]
            device.synchronize()
            taken.append(perf_counter() - start)
            del held
        return statistics.median(taken)

    seconds(compute, upload)
    alone, copies, both = seconds(compute), seconds(upload), seconds(compute, upload)
    hidden = (alone + copies - both) / min(alone, copies) if min(alone, copies) else 0.0
    arrived = [float(t.max().item()) for t in upload()] if target.type != "meta" else [0.0, 1.0, 2.0, 3.0]
    outcome.figures["seconds of compute, uploads, both"] = [alone, copies, both]
    outcome.summary += f"; compute {alone * 1e3:.1f} ms, uploads {copies * 1e3:.1f} ms, both {both * 1e3:.1f} ms"
    if arrived != [0.0, 1.0, 2.0, 3.0]:
        outcome.problems.append(f"batches of 0, 1, 2, 3 arrived as {arrived}")
    if not setting.rehearsal and hidden < 0.3:
        outcome.problems.append(f"uploads do not run beside compute: {hidden:.0%} of the shorter is hidden")
