"""Eager training steps compared with PyTorch's: ``python -m bench.step [--models small large cnn gpt]``.

The same network with the same weights and data, forward, backward and update, interleaved on one thread; the losses after six
steps are compared before anything is timed. Ratios of medians: below 1 is faster than PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bench.timing import interleave, one_thread, setting

one_thread()

import numpy as np  # noqa: E402

import gradcore  # noqa: E402
from bench.workloads import WORKLOADS, Workload, check_losses, command, loss_of  # noqa: E402


def training(library: Any, workload: Workload, model: Any, x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    """A function that runs one step and returns the loss."""
    optimizer = getattr(library.optim, workload.optimizer)(model.parameters(), **workload.settings)
    inputs, labels = library.tensor(x), library.tensor(y)

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(library, model, inputs, labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def pair(torch: Any, workload: Workload) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The steps of both libraries, from torch's initial weights."""
    torch.manual_seed(0)
    x, y = workload.arrays()
    theirs = workload.build(torch)
    ours = workload.build(gradcore)
    ours.load_state_dict({k: gradcore.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    return training(gradcore, workload, ours, x, y), training(torch, workload, theirs, x, y)


def main() -> None:
    options = command(__doc__).parse_args()
    import torch

    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    if not options.json:
        print(setting())
    for name in options.models:
        workload = WORKLOADS[name]
        ours, theirs = pair(torch, workload)
        losses = [(ours().item(), theirs().item()) for _ in range(6)]
        check_losses(*map(list, zip(*losses, strict=True)))
        paired = interleave(ours, theirs, times=workload.times, rounds=options.rounds)
        low, high = paired.spread
        results[name] = {"ratio": paired.ratio, "quartiles": (low, high), "loss": losses[-1]}
        if not options.json:
            print(f"{name:6} {workload.about}, batch {workload.batch}, {workload.optimizer}: "
                  f"{paired.ratio:.2f} of torch {torch.__version__} (quartiles {low:.2f} to {high:.2f}); loss after six "
                  f"steps {losses[-1][0]:.6f} and {losses[-1][1]:.6f}", flush=True)
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
