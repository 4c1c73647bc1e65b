"""The command that a user runs first, ``gradcore train``: an MLP to its end, and some steps of a GPT."""

from __future__ import annotations

import json
import tempfile
from time import perf_counter
from typing import Any

from bench.gpu.part import Outcome, Setting, python, run_limited

#: By model: the steps, None for a whole run.
_STEPS = {"mlp": None, "chargpt": 40}
#: The least share of digits that a whole run of the MLP must recognize; on a CPU it is 98 %.
_ACCURACY = 0.95


def train(setting: Setting) -> Outcome:
    """Each run must end with code 0, and the MLP must recognize digits."""
    outcome = Outcome(table=[["model", "steps", "seconds", "result", "peak bytes"]])
    until = perf_counter() + setting.seconds
    for model, steps in {"mlp": 20}.items() if setting.rehearsal else _STEPS.items():
        with tempfile.TemporaryDirectory() as folder:
            code, output = run_limited(python(
                "gradcore.cli.main", "train", "--device", setting.device, "--model", model, "--json", "--out", folder,
                *(() if steps is None else ("--steps", str(steps)))), max(until - perf_counter(), 1))
        line = next((line for line in output.splitlines() if line.startswith("{")), None)
        if code != 0 or line is None:
            outcome.problems.append(f"{model}: " + ("no time was left" if code is None else f"code {code}: {output[-1500:]}"))
            continue
        found: dict[str, Any] = json.loads(line)
        figures = {k: v for k, v in found.items() if isinstance(v, float) and k != "seconds"}
        result = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        outcome.figures[model] = {**figures, "seconds": found["seconds"], "losses": [step["loss"] for step in found["steps"]]}
        outcome.table.append([model, str(len(found["steps"])), f"{found['seconds']:.1f}", result,
                              f"{found['report']['peak']['allocated']:,}"])
        if steps is None and found["accuracy"] < _ACCURACY:
            outcome.problems.append(f"{model}: {result} after a whole run")
        setting.keep(outcome)
    outcome.summary = "; ".join(f"{row[0]}: {row[3]} after {row[1]} steps in {row[2]} s" for row in outcome.table[1:])
    return outcome
