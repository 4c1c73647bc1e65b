"""What recomputing outputs in backward costs and saves: ``python -m bench.recompute [--models small cnn gpt llama mobile]``.

Training steps that recompute the outputs of cheap ops, as usual, interleaved on one thread with steps that keep them
(``gradcore.recompute(False)``): ratios of the medians of their times, and of their peaks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from bench.timing import interleave, one_thread

one_thread()

import gradcore  # noqa: E402
from bench.peak import MODELS  # noqa: E402
from bench.workloads import Workload, step_on  # noqa: E402


def peak(run: Callable[[], Any]) -> int:
    """The peak's allocated bytes in the second step, which has the optimizer's state from the beginning."""
    for _ in range(2):
        with gradcore.step(device="cpu") as step:
            run()
    return step.report.peak.allocated


def compare(workload: Workload, rounds: int) -> tuple[float, float]:
    """The time of a step that recomputes outputs, and its peak, relative to one that keeps them."""
    step, batch = step_on(gradcore, workload, "cpu")

    def usual() -> Any:
        return step(*batch)

    def keeping() -> Any:
        with gradcore.recompute(False):
            return step(*batch)

    lower = peak(usual) / peak(keeping)
    return interleave(usual, keeping, times=workload.times, rounds=rounds).ratio, lower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    for name in options.models:
        workload = MODELS[name]
        time, lower = compare(workload, options.rounds)
        print(f"{name:7} {workload.about}, batch {workload.batch}: {time:.2f} of the time of steps that keep outputs, "
              f"{lower:.2f} of their peak", flush=True)


if __name__ == "__main__":
    main()
