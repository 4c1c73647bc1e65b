"""The parts of ``bench.gpu``: their settings and outcomes, and running one in a process of its own with a time limit."""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Part:
    """A part: its question, its function (``module:function``), and its own seconds."""

    name: str
    question: str
    function: str
    seconds: int
    #: May others run beside it? Not if it measures times, or bytes of the whole card.
    beside: bool = False
    #: True if there is nothing to rehearse without a GPU.
    needs_gpu: bool = False


@dataclass(frozen=True)
class Setting:
    """The settings of a part: the device, whether this is a rehearsal, the folder to write to, and the seconds left."""

    device: str
    rehearsal: bool
    folder: Path
    seconds: float = 0.0
    #: The file for the outcome.
    path: Path | None = None

    def keep(self, outcome: Outcome) -> None:
        """Write the outcome so far, which is what remains of the part if it runs out of time, or crashes."""
        if self.path is not None:
            beside = self.path.with_suffix(".new")
            beside.write_text(json.dumps(dataclasses.asdict(outcome)))
            beside.rename(self.path)


@dataclass
class Outcome:
    """The outcome of a part. ``problems`` make the command fail; the first row of ``table`` is its header."""

    summary: str = ""
    problems: list[str] = field(default_factory=list)
    table: list[list[str]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    status: str = "ok"
    seconds: float = 0.0


def python(*words: str) -> list[str]:
    """The command that runs a module with this interpreter. If it is killed, what it printed is there, and where it crashed."""
    return [sys.executable, "-u", "-X", "faulthandler", "-m", *words]


def find(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


#: By how much the limits of a rehearsal are longer, which measures nothing, and may run on a busy machine.
REHEARSED = 6


def run_part(part: Part, setting: Setting, spare: float = 0.0) -> Outcome:
    """Run a part in a process of its own, so that a crash or hang does not affect the others; it may take ``spare`` seconds
    beside its own."""
    if setting.rehearsal and part.needs_gpu:
        return Outcome("needs a GPU", status="not run")
    path = setting.folder / f"part-{part.name}.json"
    path.unlink(missing_ok=True)
    limit = part.seconds * REHEARSED if setting.rehearsal else part.seconds + int(spare)
    command = python("bench.gpu.part", part.function, setting.device, str(int(setting.rehearsal)), str(path),
                     str(part.seconds if setting.rehearsal else limit))
    start = perf_counter()
    code, output = run_limited(command, limit, ending=_ENDING)
    seconds = perf_counter() - start
    found = _so_far(path)
    for left in (path, path.with_suffix(".new")):
        left.unlink(missing_ok=True)
    if code != 0:
        why = f"timed out after {limit} s" if code is None else f"ended with code {code} and printed no result"
        found.summary = f"{why}; before: {found.summary}" if found.summary else why
        found.problems.append(f"{why}; the end of its output:\n{output[-3000:]}")
    if found.status == "ok" and found.problems:
        found.status = "failed"
    found.seconds = seconds
    return found


def _so_far(path: Path) -> Outcome:
    """The outcome that a part has written."""
    return Outcome(**json.loads(path.read_text())) if path.exists() else Outcome()


#: The seconds for which a stopped part is waited for, and what a part has stopped. A driver may never let go of a process.
_ENDING, _ENDING_WITHIN = 15, 2
#: Those that run, after :func:`end_all` no more, and those that were killed and have not ended.
_running: set[subprocess.Popen[str]] = set()
_starting, _over = threading.Lock(), threading.Event()
_lasting: list[subprocess.Popen[str]] = []


def slower() -> int:
    """By how much limits are longer than on a GPU: the tests' card is slow."""
    return 40 if "GRADCORE_ON_CARD" in os.environ else 1


def run_limited(command: list[str], seconds: float, environment: dict[str, str] | None = None,
                ending: float = _ENDING_WITHIN) -> tuple[int | None, str]:
    """A command's exit code, None if it was stopped, and its output. It may take ``seconds``, and ``ending`` more to end."""
    with _starting:
        if _over.is_set():
            raise InterruptedError(f"it is over, and {command} is not started")
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", env={**os.environ, **(environment or {})}, start_new_session=True)
        _running.add(process)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process.pid)
        return None, _rest(process, ending)
    except BaseException:
        _end(process.pid)
        _rest(process, ending)
        raise
    finally:
        _running.discard(process)
    return process.returncode, output


def end_all() -> None:
    """Kill what other threads run, and let them start nothing more."""
    with _starting:
        _over.set()
    for process in [*_running]:
        _end(process.pid)


def _rest(process: subprocess.Popen[str], seconds: float) -> str:
    """The output of a process that has been killed."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired as late:
        text = late.output or b""
        _lasting.append(process)
        assert process.stdout is not None
        process.stdout.close()
        return (text.decode(errors="replace") if isinstance(text, bytes) else text) + "\nIt was killed, and has not ended.\n"


def _end(pid: int) -> None:
    """Kill a process and all that it has started, in its group or in others: they keep the pipe and the device open."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in parentheses, may have spaces.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    started = [pid]
    for one in started:
        started += [child for child, parent in parents.items() if parent == one]
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for one in started[1:]:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def main() -> None:
    function, device, rehearsal, path, seconds = sys.argv[1:]
    # A wait for the device cannot be interrupted, so that only another thread can print where it is.
    faulthandler.dump_traceback_later(max(float(seconds) - 2, 1))
    try:
        # Child processes of a part must end before its own time limit.
        setting = Setting(device, rehearsal == "1", Path(path).parent, float(seconds) - 4, Path(path))
        found = find(function)(setting)
    except Exception:
        found = _so_far(Path(path))
        found.problems.append(traceback.format_exc())
    setting.keep(found)


if __name__ == "__main__":
    main()
