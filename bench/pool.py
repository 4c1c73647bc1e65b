"""What a step's allocations cost the pool, on the host: ``python -m bench.pool``.

The requests and releases of a training step, from its log on meta, are repeated in a pool of their own: the microseconds that
they take, how many find no block of their size that waits, so that the pool has to search, and the bytes reserved and live.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from unittest import mock

import gradcore
from bench.timing import seconds
from bench.workloads import WORKLOADS, Workload, step_on
from gradcore.events import ALLOC, FREE, OUTSIDE
from gradcore.memory.pool import Pool
from gradcore.memory.resource import Block, Stream
from gradcore.memory.sources import CountingSource
from gradcore.memory.stack import build
from gradcore.memory.streams import NoDriver

#: Steps before the figures: the pool then finds every step's sizes where the last one left them.
WARM_UP = 30


@dataclass
class Requests:
    """What a step asks of the pool."""

    #: Bytes and tags of what lives before it.
    before: list[tuple[int, int]]
    #: Each request's number, bytes and tag, or the number of what is released, with None; it may be of the step before.
    wanted: list[tuple[int, int | None, int]]
    #: Tags of what lives on after the step.
    lasting: set[int]


def requests(workload: Workload) -> Requests:
    """The requests of a step that comes after equal ones."""
    step, batch = step_on(gradcore, workload, "meta")
    for _ in range(3):
        step(*batch)
    ledger = gradcore.device("meta").ledger
    log = ledger.begin_log()
    ends = [0, len(log)]
    for _ in range(2):
        step(*batch)
        ends.append(len(log))
    ledger.end_log(log)
    made, freed = [], []
    for part in (log[a:b] for a, b in pairwise(ends)):
        made.append([r for r in part if r[0] == ALLOC and r[2] != OUTSIDE])
        freed.append({r[1] for r in part if r[0] == FREE})
    number = {r[1]: k for part in made[1:] for k, r in enumerate(part)}
    wanted: list[tuple[int, int | None, int]] = []
    for r in log[ends[2]:]:
        if r[0] == ALLOC and r[1] in number:
            wanted.append((number[r[1]], r[4], r[7]))
        elif r[0] == FREE and r[1] in number:
            wanted.append((number[r[1]], None, 0))
    return Requests([(r[4], r[7]) for r in made[0] if r[1] not in freed[1]], wanted,
                    {r[7] for r in made[2] if r[1] not in freed[2]})


def cost(workload: Workload, rounds: int) -> dict[str, float]:
    """The figures of one workload; microseconds are a median over the rounds."""
    asked = requests(workload)
    memory, stream = build(CountingSource(), NoDriver()), Stream(0)
    allocate, release = memory.ledger.allocate, memory.ledger.release
    live: dict[int, deque[Block]] = defaultdict(deque)
    live[-1] += [allocate(nbytes, stream, tag) for nbytes, tag in asked.before]

    def step() -> None:
        for number, nbytes, tag in asked.wanted:
            if nbytes is not None:
                live[number].append(allocate(nbytes, stream, tag))
            elif live[number]:
                release(live[number].popleft())

    with mock.patch("gradcore.memory.placement._outlives", asked.lasting.__contains__):
        for _ in range(WARM_UP):
            step()
        with mock.patch.object(Pool, "allocate", autospec=True, side_effect=Pool.allocate) as search:
            step()
        times = [seconds(step, 1) for _ in range(rounds)]
    return {"requests": sum(nbytes is not None for _, nbytes, _ in asked.wanted), "searches": search.call_count,
            "microseconds": median(times) * 1e6, "reserved": memory.pool.reserved, "peak": memory.ledger.peaks[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = {name: cost(workload, options.rounds) for name, workload in WORKLOADS.items()}
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, f in figures.items():
        print(f"{name:8}{f['requests']:5} requests, {f['searches']:3} of them searched for, {f['microseconds']:6.0f} us; "
              f"{f['reserved']:13,} bytes reserved for a peak of {f['peak']:,}")


if __name__ == "__main__":
    main()
