"""One part of the answer: what it returns, and how it is run in a process of its own, with a time limit."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Part:
    """A question, the function that answers it (``module:function``), and the seconds that it may take."""

    name: str
    question: str
    function: str
    seconds: int
    #: Without a GPU there is nothing to rehearse.
    needs_gpu: bool = False


@dataclass(frozen=True)
class Setting:
    """What a part is told: where tensors live, whether this is a rehearsal, where it may write, and its seconds."""

    device: str
    rehearsal: bool
    folder: Path
    seconds: float = 0.0


@dataclass
class Outcome:
    """What a part found. ``problems`` is what makes the command fail; ``table`` has its heads in its first row."""

    summary: str = ""
    problems: list[str] = field(default_factory=list)
    table: list[list[str]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    status: str = "ok"
    seconds: float = 0.0


def python(*words: str) -> list[str]:
    """A module as a command."""
    return [sys.executable, "-m", *words]


def find(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def run_part(part: Part, setting: Setting) -> Outcome:
    """Run a part in a process of its own: what crashes or hangs there takes nothing else with it."""
    if setting.rehearsal and part.needs_gpu:
        return Outcome("needs a GPU", status="not run")
    path = setting.folder / f"part-{part.name}.json"
    path.unlink(missing_ok=True)
    command = python("bench.gpu.part", part.function, setting.device, str(int(setting.rehearsal)), str(path), str(part.seconds))
    # A rehearsal measures nothing, and may share its machine with others.
    limit = part.seconds * (6 if setting.rehearsal else 1)
    start = perf_counter()
    code, output = run_limited(command, limit)
    seconds = perf_counter() - start
    if path.exists():
        found = Outcome(**json.loads(path.read_text()))
        path.unlink()
    else:
        why = f"did not end within {limit} s" if code is None else f"ended with code {code} and said nothing"
        found = Outcome(why, [f"{why}; the end of its output:\n{output[-3000:]}"])
    if found.status == "ok" and found.problems:
        found.status = "failed"
    found.seconds = seconds
    return found


def run_limited(command: list[str], seconds: float, environment: dict[str, str] | None = None) -> tuple[int | None, str]:
    """A command's exit code, None where it had to be stopped, and what it printed."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                               env={**os.environ, **(environment or {})}, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        # The whole group: a part's own processes hold the pipe, and the device, open.
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, output


def main() -> None:
    function, device, rehearsal, path, seconds = sys.argv[1:]
    try:
        # What a part starts itself ends before the part has to.
        found = find(function)(Setting(device, rehearsal == "1", Path(path).parent, float(seconds) - 4))
    except Exception:
        found = Outcome("raised an exception", [traceback.format_exc()])
    beside = Path(path).with_suffix(".new")
    beside.write_text(json.dumps(dataclasses.asdict(found)))
    beside.rename(path)


if __name__ == "__main__":
    main()
