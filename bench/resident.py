"""Peak resident memory of training, without that of imports: ``python -m bench.resident [--models small large cnn gpt]``.

Six steps of PyTorch, of gradcore in eager mode, and of a replay, each in a process of its own. A replay's process also runs the
step eagerly, while it is traced. Linux only: reads the kernel's high-water mark (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from bench.timing import one_thread

one_thread()

STEPS = 6
KINDS = ("torch", "eager", "replay")


def high_water() -> int:
    """The peak of this process's resident bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def measured(name: str, kind: str) -> int:
    """Peak resident bytes of training in this process, minus those after the imports."""
    import gradcore
    from bench.step import training
    from bench.workloads import WORKLOADS

    library: Any = gradcore
    if kind == "torch":
        import torch

        torch.set_num_threads(1)
        library = torch
    workload = WORKLOADS[name]
    before = high_water()
    step = training(library, workload, workload.build(library), *workload.arrays())
    run = gradcore.compile(step) if kind == "replay" else step
    for _ in range(STEPS):
        run()
    return high_water() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=["small", "large", "cnn", "gpt"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "KIND"), help="measure this process alone, and print bytes")
    options = parser.parse_args()
    if options.one:
        print(measured(*options.one))
        return
    results = {}
    for name in options.models:
        peak = {kind: int(subprocess.run([sys.executable, "-m", "bench.resident", "--one", name, kind], check=True,
                                         capture_output=True, text=True).stdout) for kind in KINDS}
        results[name] = peak
        if not options.json:
            print(f"{name:6} " + ", ".join(f"{kind} {peak[kind] / 2**20:.1f} MiB" for kind in KINDS)
                  + f": the replay takes {peak['replay'] / peak['torch']:.2f} of torch, "
                    f"{peak['replay'] / peak['eager']:.2f} of gradcore's eager mode", flush=True)
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
