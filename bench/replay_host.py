"""The host's time for a call of a captured training step, without the driver's, and what its guards take of it:

    python -m tests.card FOLDER bench.replay_host [--models small large cnn gpt]

Needs no GPU: on the tests' card, whose calls cost another time than a driver's, launching a graph is replaced by nothing here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from time import perf_counter
from typing import Any

import gradcore
from bench.workloads import WORKLOADS, step_on


class _Launches:
    """The runtime, with launches of one graph that do nothing but what the host is waiting for."""

    def __init__(self, runtime: Any, box: Any) -> None:
        self._runtime = runtime
        self._box = box

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def graphLaunch(self, *graph: Any) -> None:
        if self._box is not None:
            self._box._words[0] += 1


def microseconds(run: Callable[[], Any], rounds: int) -> float:
    """The least mean of 300 calls."""
    found = []
    for _ in range(rounds):
        start = perf_counter()
        for _ in range(300):
            run()
        found.append((perf_counter() - start) / 300)
    return min(found) * 1e6


def measured(name: str, rounds: int) -> dict[str, float]:
    step, batch = step_on(gradcore, WORKLOADS[name].with_batch(8), "cuda")
    compiled = gradcore.compile(step)
    for _ in range(4):
        compiled(*batch)
    entry, = compiled._cached()
    graph = entry.replay._captured[0].graph
    graph._cuda = _Launches(graph._cuda, entry.replay._fixed.boxes[0])
    gradcore.cuda.synchronize()
    whole, guards = lambda: compiled(*batch), lambda: entry.fits([*batch])
    return {"call": microseconds(whole, rounds), "guards": microseconds(guards, rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=tuple(WORKLOADS), default=["small", "large"])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    for name in options.models:
        results[name] = found = measured(name, options.rounds)
        if not options.json:
            print(f"{name:6} a call takes the host {found['call']:.1f} us, {found['guards']:.1f} of it for guards", flush=True)
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
