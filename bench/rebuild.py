"""The cost of rebuilding the graph in every step, by model and batch size: ``python -m bench.rebuild``.

For each step: the number of nodes that forward builds and their share of an eager step's time (nodes times the measured cost of
one, as in the step report); the time of the same step on the meta device, which runs all Python code and no kernels; and that
of a replay. Each of the two is interleaved with the eager step; ratios of medians, on one thread, without recording.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

from bench.timing import interleave, one_thread

one_thread()

import gradcore  # noqa: E402
from bench.workloads import WORKLOADS, Workload, command, step_on  # noqa: E402

BATCHES = {"small": (1, 64, 512), "large": (16, 128, 512), "cnn": (1, 8, 64), "gpt": (1, 2, 8)}


def measured(workload: Workload, rounds: int, times: int) -> dict[str, Any]:
    """One row of the table: seconds, counts and ratios."""
    # A learning rate of 0: otherwise the loss of the single batch would reach 0, and denormal numbers are many times slower.
    workload = replace(workload, settings={**workload.settings, "lr": 0.0})
    step, batch = step_on(gradcore, workload, "cpu")
    replayed = gradcore.compile(step_on(gradcore, workload, "cpu")[0])
    for _ in range(3):
        step(*batch), replayed(*batch)
    with gradcore.step() as s:
        step(*batch)
    paired = interleave(lambda: replayed(*batch), lambda: step(*batch), times=times, rounds=rounds)
    eager = statistics.median(paired.theirs)
    shapes_step, shapes = step_on(gradcore, workload, "meta")
    python = interleave(lambda: shapes_step(*shapes), lambda: step(*batch), times=times, rounds=rounds)
    return {"nodes": s.report.nodes, "graph": s.report.graph_seconds / eager, "python": python.ratio, "eager": eager,
            "replay": statistics.median(paired.ours), "ratio": paired.ratio, "quartiles": paired.spread}


def main() -> None:
    options = command(__doc__).parse_args()
    results: dict[str, Any] = {}
    if not options.json:
        print("| model | batch | nodes | eager step | building them | all Python | replay | of eager |\n" + "|---" * 8 + "|")
    for name in options.models:
        for batch in BATCHES[name]:
            workload = WORKLOADS[name].with_batch(batch)
            times = max(1, WORKLOADS[name].times * WORKLOADS[name].batch // (4 * batch))
            row = results[f"{name} {batch}"] = measured(workload, options.rounds, min(times, 50))
            if not options.json:
                print(f"| {name} | {batch} | {row['nodes']} | {row['eager'] * 1e3:.2f} ms | {row['graph']:.1%} | "
                      f"{row['python']:.0%} | {row['replay'] * 1e3:.2f} ms | {row['ratio']:.2f} |", flush=True)
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
