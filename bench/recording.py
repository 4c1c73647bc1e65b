"""The cost of recording a step: ``python -m bench.recording``.

The records per step times the measured cost of a record, relative to the time of the step; and for each level, the time of a
recorded step relative to one without recording, interleaved.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

from bench.timing import interleave, one_thread, seconds

one_thread()

import gradcore  # noqa: E402
from bench.step import training  # noqa: E402
from bench.workloads import WORKLOADS  # noqa: E402
from gradcore._step import LEVELS  # noqa: E402
from gradcore.events import Site, Tag  # noqa: E402


def record_seconds(rounds: int = 15, pairs: int = 2000) -> float:
    """Seconds per record: half of the extra time of an allocation and its release while a log is written; median of rounds."""
    device = gradcore.device("cpu")
    tag = Tag("bench", "", "setup", "temporary", Site(__file__, 1, "record_seconds"), None, None)

    def pair() -> None:
        block = device.ledger.allocate(512, device.stream, tag)
        device.ledger.release(block)

    costs = []
    for _ in range(rounds):
        silent = seconds(pair, pairs)
        with gradcore.step(device="cpu"):
            logged = seconds(pair, pairs)
        costs.append((logged - silent) / 2)
    return statistics.median(costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    cost = record_seconds(options.rounds)
    print(f"a record: {cost * 1e9:.0f} ns")
    for name, workload in WORKLOADS.items():
        step = training(gradcore, workload, workload.build(gradcore), *workload.arrays())
        step()
        with gradcore.step() as s:
            step()

        count = s.report.records
        took = {level: interleave(recorded(step, level), step, times=max(workload.times // 2, 1), rounds=options.rounds)
                for level in LEVELS}
        plain = statistics.median(took["off"].theirs)
        ratios = ", ".join(f"{paired.ratio:.2f} at {level}" for level, paired in took.items())
        print(f"{name:6} {count} records per step of {plain * 1e3:.2f} ms: {count * cost / plain:.1%} of its time; "
              f"relative to a step without recording: {ratios}", flush=True)


def recorded(step: Callable[[], Any], level: str) -> Callable[[], None]:
    """The step with recording at ``level``."""

    def run() -> None:
        with gradcore.step(level=level):
            step()

    return run


if __name__ == "__main__":
    main()
