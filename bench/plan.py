"""The time of planning, and the size of the arena relative to the lower bound: ``python -m bench.plan``.

Times are for synthetic programs with lifetimes as in a training step: half of what forward allocates is kept for backward, and
most of what backward allocates is released two instructions later. Arenas are those of the reference models' training steps,
traced on meta, followed by how far results that overwrite operands lower the bound.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from time import perf_counter
from typing import Any

import gradcore
from bench.workloads import WORKLOADS, step_on
from gradcore.program.planning.packing import Slot, lay_out, lower_bound
from gradcore.program.planning.plan import Plan
from gradcore.spec import round_up

BATCHES = {"small": (1, 64, 256), "large": (16, 512), "cnn": (1, 4, 8, 64, 128), "gpt": (1, 2, 8, 32)}


def lifetimes(count: int, seed: int) -> list[Slot]:
    """Slots of 512 bytes to 4 MiB, with uniformly distributed logarithms of sizes."""
    generator = random.Random(seed)
    half = count // 2
    found = []
    for k in range(count):
        size = round_up(int(2 ** generator.uniform(9, 22)))
        waits = generator.random() < (0.5 if k < half else 0.1)
        last = (2 * half - k if k < half else count) if waits else k + generator.randrange(1, 4)
        found.append(Slot(size, k, last))
    return found


def seconds(count: int, rounds: int) -> dict[str, float]:
    """Median seconds to plan ``count`` buffers, and the largest ratio of arena to bound."""
    times, over = [], []
    for seed in range(rounds):
        slots = lifetimes(count, seed)
        start = perf_counter()
        _, nbytes, _ = lay_out(slots)
        times.append(perf_counter() - start)
        over.append(nbytes / lower_bound(slots))
    return {"seconds": statistics.median(times), "slowest": max(times), "over": max(over)}


def planned(name: str, batch: int) -> Plan:
    """The plan of a model's training step."""
    step, batch_of = step_on(gradcore, WORKLOADS[name].with_batch(batch), "meta")
    compiled = gradcore.compile(step)
    for _ in range(2):
        compiled(*batch_of)
    found: Plan = compiled.plans[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for count in (1_000, 10_000):
        found = results[f"{count} buffers"] = seconds(count, options.rounds)
        if not options.json:
            print(f"{count:6,} buffers: {found['seconds']:.2f} s (slowest {found['slowest']:.2f} s), "
                  f"at most {found['over'] - 1:.2%} above the bound", flush=True)
    for name, batches in BATCHES.items():
        for batch in batches:
            arena = planned(name, batch)
            results[f"{name} {batch}"] = {"arena": arena.nbytes, "bound": arena.bound, "apart": arena.apart,
                                           "shared": len(arena.shared), "order": arena.order}
            if not options.json:
                print(f"{name:6} batch {batch:4}: arena {arena.nbytes:12,} bytes, {arena.nbytes / arena.bound - 1:.2%} above "
                      f"the bound, which {len(arena.shared)} results written over operands lower by "
                      f"{1 - arena.bound / arena.apart:.1%}; {arena.order}", flush=True)
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
