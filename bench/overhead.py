"""The overhead of an op beyond its arithmetic: ``python -m bench.overhead``.

A chain of 1,000 multiplications and additions of a 4-element tensor, forward, backward and release, interleaved with the same
chain in PyTorch (if installed) on one thread; then the phases of gradcore's chain, in microseconds per op.
"""

from __future__ import annotations

import argparse
import json

from bench.timing import interleave, one_thread, seconds

one_thread()

import numpy as np  # noqa: E402

import gradcore  # noqa: E402
from gradcore.events import Site, Tag  # noqa: E402

OPS = 1000


def chain(library: object, values: tuple[np.ndarray, np.ndarray, np.ndarray]) -> object:
    """A function that builds the chain on a leaf, runs backward, and drops it all."""
    tensor = library.tensor  # type: ignore[attr-defined]
    factor, term, start = (tensor(v) for v in values)

    def run() -> object:
        x = start.detach().clone().requires_grad_()
        y = x
        for _ in range(OPS // 2):
            y = y * factor
            y = y + term
        y.sum().backward()
        return x.grad

    return run


def phases(values: tuple[np.ndarray, np.ndarray, np.ndarray], times: int) -> dict[str, float]:
    """Microseconds per op of gradcore's phases."""
    factor, term, start = (gradcore.tensor(v) for v in values)

    def forward(leaf: object) -> object:
        y = leaf
        for _ in range(OPS // 2):
            y = y * factor
            y = y + term
        return y

    def no_graph() -> None:
        with gradcore.no_grad():
            forward(start)

    leaf = start.detach().clone().requires_grad_()
    made: list[object] = []

    def build() -> None:
        made.append(forward(leaf))

    def back() -> None:
        y = made.pop()
        y.sum().backward()  # type: ignore[attr-defined]
        released.append(y)

    released: list[object] = []
    device = gradcore.device("cpu")
    tag = Tag("bench", "", "setup", "temporary", Site(__file__, 1, "phases"), None, None)

    def pair() -> None:
        block = device.ledger.allocate(16, device.stream, tag)
        device.ledger.release(block)

    def part(run: object, per: int = OPS) -> float:
        return min(seconds(run, 1) for _ in range(times)) / per * 1e6  # type: ignore[arg-type]

    for _ in range(times):
        build()
    figures = {"pool pair": min(seconds(pair, 2000) for _ in range(times)) * 1e6, "apply without graph": part(no_graph)}
    figures["backward"] = part(back)
    figures["release of the graph"] = part(released.pop)
    figures["apply with graph"] = part(build)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    values = (np.full(4, 0.999, np.float32), *generator.standard_normal((2, 4)).astype(np.float32))
    figures = phases(values, options.rounds)
    result: dict[str, object] = {"microseconds": figures}
    try:
        import torch
    except ImportError:
        torch = None
        print("torch is not installed (pip install -e '.[oracle]'): no comparison")
    if torch is not None:
        torch.set_num_threads(1)
        ours, theirs = chain(gradcore, values), chain(torch, values)
        np.testing.assert_allclose(ours().numpy(), theirs().numpy(), rtol=1e-4)
        paired = interleave(ours, theirs, times=2, rounds=options.rounds)
        result |= {"ratio": paired.ratio, "quartiles": paired.spread, "torch": torch.__version__}
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:24}{value:8.2f} us")
    if torch is not None:
        low, high = paired.spread
        print(f"chain of {OPS:,} ops, forward + backward + release: {paired.ratio:.2f} of torch {torch.__version__} "
              f"(quartiles {low:.2f} to {high:.2f}, {options.rounds} rounds)")


if __name__ == "__main__":
    main()
