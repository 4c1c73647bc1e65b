"""Replayed training steps beside PyTorch's eager ones: ``python -m bench.replay [--models small large cnn gpt]``.

The same network from the same weights on the same data, interleaved on one thread; the replay's losses are compared with
eager's bit by bit, and with PyTorch's, before anything is timed. Ratios of medians: below 1 is faster than PyTorch.
"""

from __future__ import annotations

import json
from typing import Any

from bench.timing import Paired, interleave, one_thread

one_thread()

import numpy as np  # noqa: E402

import gradcore  # noqa: E402
from bench.step import pair  # noqa: E402
from bench.workloads import WORKLOADS, Workload, command  # noqa: E402

#: Steps from the same weights: the batch is learnt by heart in few of them, and the denormal numbers that gradients then are
#: made of would be all that is timed.
STEPS = 8


def runs(torch: Any, workload: Workload) -> tuple[Any, Any, Any]:
    """The step compiled, eager and PyTorch's, from the same weights, when their losses have been compared."""
    eager, theirs = pair(torch, workload)
    replayed = gradcore.compile(pair(torch, workload)[0])
    losses = [(replayed().item(), eager().item(), theirs().item()) for _ in range(3)]
    assert all(a == b for a, b, _ in losses), f"a replay's losses are not eager's: {losses}"
    np.testing.assert_allclose([a for a, _, _ in losses], [c for _, _, c in losses], rtol=2e-5)
    return replayed, eager, theirs


def main() -> None:
    options = command(__doc__).parse_args()
    import torch

    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    for name in options.models:
        workload = WORKLOADS[name]
        found, eagerly = Paired([], []), Paired([], [])
        while len(found.ours) < options.rounds:
            replayed, eager, theirs = runs(torch, workload)
            some = min(options.rounds - len(found.ours), max(STEPS // workload.times, 1))
            for paired, other in ((found, theirs), (eagerly, eager)):
                measured = interleave(replayed, other, times=workload.times, rounds=some)
                paired.ours.extend(measured.ours)
                paired.theirs.extend(measured.theirs)
        low, high = found.spread
        plan = replayed.plans[0]
        results[name] = {"ratio": found.ratio, "quartiles": (low, high), "of eager": eagerly.ratio, "arena": plan.nbytes,
                         "bound": plan.bound}
        if not options.json:
            print(f"{name:6} {workload.about}, batch {workload.batch}: {found.ratio:.2f} of torch {torch.__version__} "
                  f"(quartiles {low:.2f} to {high:.2f}), {eagerly.ratio:.2f} of gradcore's eager step; arena {plan.nbytes:,} "
                  f"bytes, lower bound {plan.bound:,}", flush=True)
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
