"""``python -m bench.gpu --out DIR [--cpu-rehearsal] [--parts NAME ...]``: DIR/gpu.json and DIR/gpu.md, in under nine minutes.

Each part runs in a process of its own with its own time limit; a failure is recorded, and the other parts still run. The exit
code is 1 if anything is wrong. ``--cpu-rehearsal`` runs the parts that do not need a GPU, on the CPU device.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from bench.gpu.page import page
from bench.gpu.part import Part, Setting, run_part

#: In order of importance; the seconds add up to less than nine minutes.
PARTS = (
    Part("environment", "Which machine is it?", "bench.gpu.facts:environment", 20),
    Part("compile", "Does every kernel compile for it, and how long does that take?", "bench.gpu.facts:compile_all", 70,
         needs_gpu=True),
    Part("tests", "Do the GPU's tests pass in strict mode?", "bench.gpu.correct:tests", 62),
    Part("logs", "Is the log the same on NumPy, meta and CUDA?", "bench.gpu.correct:logs", 30),
    Part("kernels", "Do all kernels give NumPy's numbers, and write nowhere else?", "bench.gpu.correct:kernels", 60),
    Part("training", "Does a seed train the same on both devices?", "bench.gpu.correct:training", 15),
    Part("memory", "Do the pool's bytes and the driver's agree?", "bench.gpu.memory:reconciliation", 22),
    Part("ownership", "Do foreign arrays keep our blocks alive?", "bench.gpu.ownership:ownership", 15),
    Part("streams", "Does memory that goes from stream to stream stay in order?", "bench.gpu.streams:streams", 20),
    Part("libraries", "What do matrix products take where no pool of ours sees it?", "bench.gpu.libraries:libraries", 20),
    Part("out of memory", "Does a limit that is met leave everything in order?", "bench.gpu.memory:out_of_memory", 12),
    Part("whole card", "Does a device that runs out leave everything in order?", "bench.gpu.limits:whole_card", 12),
    Part("largest batch", "Does the largest GPT that should fit fit?", "bench.gpu.limits:largest_batch", 18),
    Part("steps", "How long is a step, and how high its peak, beside torch?", "bench.gpu.steps:steps", 42),
    Part("graphs", "How long is a captured step, beside torch's graph?", "bench.gpu.graphs:graphs", 30),
    Part("bandwidth", "Which share of a copy's bandwidth do memory-bound kernels reach?", "bench.gpu.speed:bandwidth", 29),
    Part("arithmetic", "How fast are products, convolutions and attention?", "bench.gpu.speed:arithmetic", 15),
    Part("host", "What does a call cost the host?", "bench.gpu.host:host_cost", 10),
    Part("sanitizer", "Does compute-sanitizer find anything?", "bench.gpu.correct:sanitizer", 37, needs_gpu=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder for gpu.json and gpu.md")
    parser.add_argument("--cpu-rehearsal", action="store_true", help="run what needs no GPU, on the CPU")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS], metavar="NAME",
                        help=f"only these: {', '.join(part.name for part in PARTS)}")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    setting = Setting("cpu" if options.cpu_rehearsal else "cuda", options.cpu_rehearsal, options.out.resolve())
    found = []
    for part in PARTS:
        if options.parts and part.name not in options.parts:
            continue
        outcome = run_part(part, setting)
        found.append((part, outcome))
        print(f"{part.name:14} {outcome.status:8} {outcome.seconds:5.1f} s  {outcome.summary}", flush=True)
        # After each part, so that an interruption does not lose the results so far.
        (options.out / "gpu.json").write_text(json.dumps({
            "version": 1, "rehearsal": options.cpu_rehearsal,
            "parts": {p.name: {"question": p.question, **dataclasses.asdict(o)} for p, o in found}}, indent=1) + "\n")
        (options.out / "gpu.md").write_text(page(found, options.cpu_rehearsal))
    sys.exit(any(outcome.problems for _, outcome in found))


if __name__ == "__main__":
    main()
