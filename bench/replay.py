"""Replayed training steps compared with PyTorch's eager ones: ``python -m bench.replay [--models small large cnn gpt]``.

The same network with the same weights and data, interleaved on one thread; before anything is timed, the replay's losses are
compared with those of eager mode, bit by bit, and with PyTorch's. Ratios of medians: below 1 is faster than PyTorch.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from bench.timing import Paired, interleave, one_thread, setting

one_thread()


import gradcore  # noqa: E402
from bench.step import pair  # noqa: E402
from bench.workloads import WORKLOADS, Workload, check_losses, command, step_on  # noqa: E402

#: Steps before the weights are reset: the network soon memorizes the batch, and then gradients would become denormal numbers,
#: whose slow arithmetic would dominate the times.
STEPS = 8


def runs(torch: Any, workload: Workload, brought: bool) -> tuple[Any, Any, Any, Any]:
    """The replayed step, the eager one and PyTorch's, from the same weights and with compared losses; and the plan.

    ``brought`` makes the batch an argument of the compiled step; otherwise it is captured.
    """
    eager, theirs = pair(torch, workload)
    if brought:
        torch.manual_seed(0)
        weights = {k: v.numpy() for k, v in workload.build(torch).state_dict().items()}
        step, batch = step_on(gradcore, workload, "cpu", weights)
        compiled = gradcore.compile(step)
        replayed = partial(compiled, *batch)
    else:
        replayed = compiled = gradcore.compile(pair(torch, workload)[0])
    losses = [(replayed().item(), eager().item(), theirs().item()) for _ in range(3)]
    assert all(a == b for a, b, _ in losses), f"the replay's losses differ from eager's: {losses}"
    check_losses([a for a, _, _ in losses], [c for _, _, c in losses])
    return replayed, eager, theirs, compiled.plans[0]


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--brought", action="store_true", help="pass the batch to the compiled step, instead of capturing it")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    if not options.json:
        print(setting())
    for name in options.models:
        workload = WORKLOADS[name]
        found, eagerly = Paired([], []), Paired([], [])
        while len(found.ours) < options.rounds:
            replayed, eager, theirs, plan = runs(torch, workload, options.brought)
            some = min(options.rounds - len(found.ours), max(STEPS // workload.times, 1))
            for paired, other in ((found, theirs), (eagerly, eager)):
                measured = interleave(replayed, other, times=workload.times, rounds=some)
                paired.ours.extend(measured.ours)
                paired.theirs.extend(measured.theirs)
        low, high = found.spread
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
