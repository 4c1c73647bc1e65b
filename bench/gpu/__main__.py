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
    Part("compile", "Does every kernel compile for it, and how long does that take?", "bench.gpu.facts:compile_all", 55),
    Part("tests", "Do the GPU's tests pass in strict mode?", "bench.gpu.correct:tests", 62),
    Part("logs", "Is the log the same on NumPy, meta and CUDA?", "bench.gpu.correct:logs", 30),
    Part("kernels", "Do all kernels agree with NumPy, and write only to their outputs?", "bench.gpu.correct:kernels", 60),
    Part("training", "Does a seed give the same training on both devices?", "bench.gpu.correct:training", 15),
    Part("memory", "Do the pool's bytes and the driver's agree?", "bench.gpu.memory:reconciliation", 22),
    Part("ownership", "Do arrays of other libraries keep our memory alive?", "bench.gpu.ownership:ownership", 15),
    Part("streams", "Is memory synchronized that one stream frees and another reuses?", "bench.gpu.streams:streams", 20),
    Part("libraries", "How much memory do matrix products allocate outside our pools?", "bench.gpu.libraries:libraries", 20),
    Part("out of memory", "Does everything work after the memory limit was reached?", "bench.gpu.memory:out_of_memory", 12),
    Part("whole card", "Does everything work after the device was out of memory?", "bench.gpu.limits:whole_card", 12),
    Part("largest batch", "Does the largest GPT that is predicted to fit run?", "bench.gpu.limits:largest_batch", 18),
    Part("steps", "How do a step's time and peak compare with torch's?", "bench.gpu.steps:steps", 42),
    Part("graphs", "How does a captured step's time compare with torch's graph?", "bench.gpu.graphs:graphs", 45),
    Part("bandwidth", "What share of a copy's bandwidth do memory-bound kernels reach?", "bench.gpu.speed:bandwidth", 29),
    Part("arithmetic", "How fast are products, convolutions and attention?", "bench.gpu.speed:arithmetic", 15),
    Part("host", "How much host time does a call take?", "bench.gpu.host:host_cost", 10),
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
