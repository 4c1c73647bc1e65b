"""``python -m bench.gpu --out DIR [--cpu-rehearsal] [--parts NAME ...]``: DIR/gpu.json and DIR/gpu.md, in under nine minutes.

Each part runs in a process of its own; those that only check run beside each other if there are cores and memory for it, those
that measure alone. A failure is recorded, and the other parts still run. The exit code is 1 if anything is wrong.
``--cpu-rehearsal`` runs the parts that do not need a GPU, on the CPU device.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.gpu.facts import memory_of_card
from bench.gpu.page import page
from bench.gpu.part import Outcome, Part, Setting
from bench.gpu.schedule import outcomes

#: The seconds add up to less than nine minutes.
PARTS = (
    Part("environment", "Which machine is it?", "bench.gpu.facts:environment", 20),
    Part("compile", "Does every kernel compile for it, and how long does that take?", "bench.gpu.facts:compile_all", 50),
    Part("tests", "Do the GPU's tests pass in strict mode?", "bench.gpu.correct:tests", 46, True),
    Part("kernels", "Do all kernels agree with NumPy, and write only to their outputs?", "bench.gpu.correct:kernels", 46, True),
    Part("logs", "Is the log the same on NumPy, meta and CUDA?", "bench.gpu.correct:logs", 27, True),
    Part("train", "Does `gradcore train` train?", "bench.gpu.commands:train", 18, True),
    Part("training", "Does a seed give the same training on both devices?", "bench.gpu.training:training", 22, True),
    Part("errors", "How large are errors of float32 beside NumPy's?", "bench.gpu.errors:errors", 10, True),
    Part("determinism", "Do gradients have the same bits every time?", "bench.gpu.training:determinism", 10, True),
    Part("ownership", "Do arrays of other libraries keep our memory alive?", "bench.gpu.ownership:ownership", 15, True),
    Part("forms", "Do calls of all forms and of mixed dtypes agree with the CPU's?", "bench.gpu.correct:forms", 22, True),
    Part("memcheck", "Is every access within an allocation?", "bench.gpu.correct:memcheck", 7, True, needs_gpu=True),
    Part("racecheck", "Are accesses to shared memory ordered?", "bench.gpu.correct:racecheck", 5, True, needs_gpu=True),
    Part("initcheck", "Is memory written before it is read?", "bench.gpu.correct:initcheck", 4, True, needs_gpu=True),
    Part("synccheck", "Do all threads reach each barrier?", "bench.gpu.correct:synccheck", 4, True, needs_gpu=True),
    Part("memory", "Do the pool's bytes and the driver's agree?", "bench.gpu.memory:reconciliation", 20),
    Part("streams", "Is memory synchronized that one stream frees and another reuses?", "bench.gpu.streams:streams", 20),
    Part("libraries", "How much memory do matrix products allocate outside our pools?", "bench.gpu.libraries:libraries", 20),
    Part("out of memory", "Does everything work after the memory limit was reached?", "bench.gpu.memory:out_of_memory", 12),
    Part("whole card", "Does everything work after the device was out of memory?", "bench.gpu.limits:whole_card", 12),
    Part("largest batch", "Does the largest GPT that is predicted to fit run?", "bench.gpu.limits:largest_batch", 18),
    Part("steps", "How do a step's time and peak compare with torch's?", "bench.gpu.steps:steps", 40),
    Part("graphs", "How does a captured step's time compare with torch's graph?", "bench.gpu.graphs:graphs", 41),
    Part("bandwidth", "What share of a copy's bandwidth do memory-bound kernels reach?", "bench.gpu.speed:bandwidth", 27),
    Part("arithmetic", "How fast are products, convolutions and attention?", "bench.gpu.speed:arithmetic", 15),
    Part("host", "How much host time does a call take?", "bench.gpu.host:host_cost", 8),
)
#: Bytes of the card and cores for each of the parts that run beside each other, and the most of them.
_SHARE, _CORES, _MOST = 8 << 30, 2, 12


def at_once(memory: int | None) -> int:
    """How many parts may run beside each other, on a card of so many bytes, or on none."""
    fit = _MOST if memory is None else memory // _SHARE
    return max(min((os.cpu_count() or 1) // _CORES, fit, _MOST), 1)


def finite(value: Any) -> Any:
    """The value with strings in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def place_for_code() -> None:
    """Let CuPy keep machine code in a temporary folder if it cannot in the home, since it cannot even be imported then."""
    usual = Path("~/.cupy/kernel_cache").expanduser()
    try:
        usual.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=usual).close()
    except OSError:
        os.environ.setdefault("CUPY_CACHE_DIR", tempfile.mkdtemp(prefix="cupy-"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder for gpu.json and gpu.md")
    parser.add_argument("--cpu-rehearsal", action="store_true", help="run what needs no GPU, on the CPU")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS], metavar="NAME",
                        help=f"only these: {', '.join(part.name for part in PARTS)}")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.cpu_rehearsal:
        place_for_code()
    setting = Setting("cpu" if options.cpu_rehearsal else "cuda", options.cpu_rehearsal, options.out.resolve())
    found: dict[str, Outcome] = {}
    chosen = [part for part in PARTS if not options.parts or part.name in options.parts]
    begin = perf_counter()

    def beside() -> int:
        figures = found["environment"].figures if "environment" in found else {}
        return at_once(figures.get("device", {}).get("memory") or (None if options.cpu_rehearsal else memory_of_card()))

    for part, outcome in outcomes(chosen, setting, sum(part.seconds for part in PARTS), beside):
        found[part.name] = outcome
        print(f"{part.name:14} {outcome.status:8} {outcome.seconds:5.1f} s  {outcome.summary}", flush=True)
        # After each part, so that an interruption does not lose the results so far.
        done = [(p, found[p.name]) for p in chosen if p.name in found]
        (options.out / "gpu.json").write_text(json.dumps(finite({
            "version": 1, "rehearsal": options.cpu_rehearsal, "seconds": perf_counter() - begin,
            "parts": {p.name: {"question": p.question, **dataclasses.asdict(o)} for p, o in done}}), indent=1) + "\n")
        (options.out / "gpu.md").write_text(page(done, options.cpu_rehearsal, perf_counter() - begin))
    sys.exit(any(outcome.problems for outcome in found.values()))


if __name__ == "__main__":
    main()
