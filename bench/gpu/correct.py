"""Correctness on a GPU: its tests, the logs of three models, all sample calls, and compute-sanitizer."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, time
from typing import Any

from bench.gpu import pytest_lines
from bench.gpu.facts import sanitizer_path
from bench.gpu.part import Outcome, Setting, python, run_limited, slower


def tests(setting: Setting) -> Outcome:
    """``pytest tests/gpu``, with allocations that no op declares as errors, but for the files of :func:`forms`."""
    # A rehearsal skips every test: those of one file show as well how they are counted.
    if setting.rehearsal:
        return _pytest(setting, "tests", "tests/gpu/test_capture.py")
    return _pytest(setting, "tests", "tests/gpu", *(f"--ignore={path}" for path in _MANY_KERNELS))


#: Tests with hundreds of kernels that no other part compiles, each of which takes a compiler half a second.
_MANY_KERNELS = ("tests/gpu/test_forms.py", "tests/gpu/test_mixed.py")


def forms(setting: Setting) -> Outcome:
    """The tests that :func:`tests` leaves out, in several processes if pytest-xdist is installed."""
    workers = () if setting.rehearsal or find_spec("xdist") is None else ("-n", str(min(os.cpu_count() or 1, 12)))
    return _pytest(setting, "forms", *(_MANY_KERNELS[-1:] if setting.rehearsal else _MANY_KERNELS), *workers)


#: The seconds that a test may take, and the most processes, each of which goes on where the one before it ended.
_TEST_SECONDS, _RUNS = 25, 10


def _pytest(setting: Setting, name: str, *words: str) -> Outcome:
    path = setting.folder / f"{name}.jsonl"
    path.unlink(missing_ok=True)
    until = perf_counter() + setting.seconds
    variables = {"GRADCORE_STRICT": "1", pytest_lines.PATH: str(path), pytest_lines.MOST: str(_TEST_SECONDS * slower())}
    codes: list[int | None] = []
    while len(codes) < _RUNS:
        code, output = run_limited(python("pytest", *words, "-q", "-p", "no:cacheprovider", "-p", "bench.gpu.pytest_lines"),
                                   max(until - perf_counter(), 1), variables)
        codes.append(code)
        lines = _lines(path)
        finished = {line["name"] for line in lines if line["outcome"] != "started"}
        broken = next((line["name"] for line in lines if line["name"] not in finished), None)
        if broken is not None:
            why = f"{'no time was left' if code is None else f'the process ended with code {code}'}:\n{output[-1500:]}"
            with path.open("a") as log:
                # The line before it may be incomplete.
                print("", json.dumps({"name": broken, "outcome": "failed", "why": why}), sep="\n", file=log)
        if code is None or (broken is None and code != pytest_lines.SPOILT):
            break
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    problems, how = [], "pytest timed out" if code is None else f"pytest ended with code {code}"
    skipped: Counter[str] = Counter()
    for line in _lines(path):
        if line["outcome"] == "started":
            continue
        counts[line["outcome"]] += 1
        if line["outcome"] == "failed":
            problems.append(f"{line['name']}: {line['why']}")
        elif line["why"]:
            skipped[line["why"]] += 1
    # What earlier processes have found is not in the code of the last one, which is 5 if they have left no test.
    if code not in (0, 1, 5)[:len(codes) + 1] or (len(codes) == 1 and bool(code) != bool(problems)):
        problems.insert(0, f"{how}:\n{output[-3000:]}")
    if not setting.rehearsal and not counts["passed"]:
        problems.append("no test ran")
    path.unlink(missing_ok=True)
    return Outcome(", ".join(f"{n} {what}" for what, n in counts.items()), problems[:40],
                   [["tests skipped", "why"], *([str(n), why] for why, n in skipped.most_common())],
                   {**counts, "skipped because": dict(skipped)})


# -- logs ---------------------------------------------------------------------------------------------------------------


def logs(setting: Setting) -> Outcome:
    """Train three models for three steps: records, peaks and the pool's figures on the device must equal those on meta."""
    from tests.host.memory.test_one_log import SIZES, run
    from tests.logs import normalized

    outcome = Outcome(table=[["model", "batch", "device", "records", "peak bytes", "same as meta"]])
    models: dict[str, Any] = {"mlp": SIZES["digits"], "cnn": "cnn", "gpt": "gpt"}
    for name, sizes in models.items():
        for batch in (7,) if setting.rehearsal else (1, 7, 64):
            expected, predicted = run("meta", sizes, batch, "adam")
            for device in dict.fromkeys(("cpu", setting.device)):
                found, reports = run(device, sizes, batch, "adam")
                difference = first_difference([normalized(log) for log in found], [normalized(log) for log in expected])
                for step, (ours, theirs) in enumerate(zip(reports, predicted, strict=True)):
                    for what in ("by_role", "pool"):
                        if difference is None and getattr(ours, what) != getattr(theirs, what):
                            difference = f"step {step}: {what} is {getattr(ours, what)}, not {getattr(theirs, what)}"
                peak = reports[-1].peak.allocated
                if difference is None and peak != predicted[-1].peak.allocated:
                    difference = f"the peak is {peak}, not {predicted[-1].peak.allocated}"
                outcome.table.append([name, str(batch), device, str(sum(map(len, found))), f"{peak:,}",
                                      "no" if difference else "yes"])
                if difference:
                    outcome.problems.append(f"{name}, batch {batch}, {device}: {difference}")
                setting.keep(outcome)
    same = sum(row[-1] == "yes" for row in outcome.table[1:])
    outcome.summary = f"{same} of {len(outcome.table) - 1} logs equal meta's, record by record"
    return outcome


def first_difference(found: list[list[Any]], expected: list[list[Any]]) -> str | None:
    """A description of the first difference between the logs of some steps."""
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for k, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if a != b:
                return f"step {step}, record {k}: {a}, but meta has {b}"
        if len(ours) != len(theirs):
            return f"step {step} has {len(ours)} records, but meta's {len(theirs)}"
    return None


# -- sample calls ---------------------------------------------------------------------------------------------------------


def kernels(setting: Setting) -> Outcome:
    """Run every sample call in each dtype twice: NumPy's values, bitwise equal results, no write out of bounds."""
    if find_spec("cupy") is None:
        return Outcome("CuPy, which launches the kernels, is not installed", status="not run")
    path = setting.folder / "calls.jsonl"
    path.unlink(missing_ok=True)
    until = perf_counter() + setting.seconds
    start, crashes = 0, []
    while len(crashes) < 20:
        code, output = run_limited(python("bench.gpu.rows", setting.device, str(path), str(start),
                                          "40" if setting.rehearsal else "1", "0", "0"), max(until - perf_counter(), 1))
        if code == 0:
            break
        last = ([{"call": start, "name": "before the first call"}, *_lines(path)])[-1]
        crashes.append(f"{last['name']}: " + ("no time was left" if code is None else f"the process ended with code {code}: "
                                              f"{output[-500:].strip()}"))
        if code is None:
            break
        start = last["call"] + 1
        with path.open("a") as log:
            log.write("\n")
    found = _of_calls(_lines(path), crashes)
    path.unlink(missing_ok=True)
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines that a process wrote; the last may be incomplete if it was stopped."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def _of_calls(lines: list[dict[str, Any]], crashes: list[str]) -> Outcome:
    done = [line for line in lines if "error" in line]
    wrong = [f"{line['name']}: {line['error']}" for line in done if line["error"]]
    ops = sorted({line["name"].split("-")[0] for line in done if line["error"]})
    return Outcome(f"{len(done) - len(wrong)} of {len(done)} calls agree with NumPy"
                   + (f"; wrong: {', '.join(ops)}" if ops else ""),
                   [text[:600] for text in [*crashes, *wrong][:60]] + ([] if done else ["no call was made"]),
                   figures={"calls": len(done), "wrong": len(wrong), "crashes": len(crashes), "ops": ops})


#: Seconds before its limit at which a tool's last call begins, so that it ends by itself and says what it has found.
_LAST = 15
#: Lines of compute-sanitizer that report nothing.
_SAYS_NOTHING = re.compile(r"COMPUTE-SANITIZER|ERROR SUMMARY: 0|RACECHECK SUMMARY: 0|^=+ *$")
#: By tool of compute-sanitizer: N if it runs every N-th call.
_EVERY = {"memcheck": 60, "racecheck": 400, "initcheck": 400, "synccheck": 400}


def _sanitized(name: str, setting: Setting) -> Outcome:
    """Run a tool of compute-sanitizer on sample calls of every op, with a separate allocation for each array."""
    tool = sanitizer_path()
    if tool is None:
        return Outcome("compute-sanitizer is not installed (it comes with the CUDA toolkit)", status="not run")
    path = setting.folder / f"{name}.jsonl"
    path.unlink(missing_ok=True)
    # CuPy raises what its calls return, while the runtime's own look-ups in a driver older than it fail by design.
    quiet = ("--report-api-errors", "no") if name == "memcheck" else ()
    code, output = run_limited([tool, "--tool", name, *quiet, "--error-exitcode", "77", *python(
        "bench.gpu.rows", setting.device, str(path), "0", str(_EVERY[name]), "1", str(time() + setting.seconds - _LAST))],
        setting.seconds)
    lines = _lines(path)
    path.unlink(missing_ok=True)
    calls, left = sum("error" in line for line in lines), sum(line.get("left", 0) for line in lines)
    # Of a tool that had to be stopped, what it had not written by then is not known.
    found = [line for line in output.splitlines() if line.startswith("========= ") and not _SAYS_NOTHING.search(line)]
    result = f"code {code}" if code else "nothing found" if code == 0 else "stopped before its verdict"
    outcome = Outcome(f"{calls} calls: {result}" + f", no time for {left}" * (left > 0),
                      figures={"calls": calls, "complete": code == 0 and not left})
    if code or (code is None and found):
        outcome.problems.append(f"{result}: " + "\n".join(found[:15] or [output[-1500:]]))
    if not calls and code in (0, None):
        outcome.problems.append(f"it has checked no call: {result}; the end of its output:\n{output[-1500:]}")
    return outcome


memcheck, racecheck, initcheck, synccheck = (partial(_sanitized, name) for name in _EVERY)
