"""Interleaved timing (A B A B) in one process on one thread, with ratios of medians."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def one_thread() -> None:
    """Restrict libraries to one thread; call before the first import of NumPy or torch."""
    for name in THREADS:
        os.environ[name] = "1"


@dataclass(frozen=True)
class Paired:
    """Seconds of each round of two interleaved runs."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        """The median of ours divided by that of theirs."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def spread(self) -> tuple[float, float]:
        """The lower and upper quartile of the ratios of the rounds."""
        ratios = sorted(a / b for a, b in zip(self.ours, self.theirs, strict=True))
        return ratios[len(ratios) // 4], ratios[(3 * len(ratios)) // 4]


def setting() -> str:
    """A line that names the kernels of NumPy's products, which affect ratios and may be chosen by the environment."""
    from gradcore.cli.collect_env import openblas_kernels

    return f"NumPy's products by OpenBLAS, kernels for {openblas_kernels() or 'a processor that it does not name'}"


def seconds(run: Callable[[], object], times: int) -> float:
    start = perf_counter()
    for _ in range(times):
        run()
    return (perf_counter() - start) / times


def interleave(ours: Callable[[], object], theirs: Callable[[], object], *, times: int, rounds: int = 15) -> Paired:
    """Time ``rounds`` rounds of ``times`` calls of each in turn, after a warm-up round."""
    seconds(ours, times)
    seconds(theirs, times)
    a, b = [], []
    for _ in range(rounds):
        a.append(seconds(ours, times))
        b.append(seconds(theirs, times))
    return Paired(a, b)
