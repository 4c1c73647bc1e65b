"""Parts of bench.gpu run beside each other or alone, within one limit of time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bench.gpu import __main__ as command
from bench.gpu import part as parts
from bench.gpu import schedule
from bench.gpu.part import Outcome, Part, Setting

SETTING = Setting("cpu", False, Path())


class Clock:
    """Time that passes while a part runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *taken: float) -> None:
        self.now, self.taken, self.given = 100.0, iter(taken), {}
        monkeypatch.setattr(schedule, "perf_counter", lambda: self.now)
        monkeypatch.setattr(schedule, "run_part", self.run)

    def run(self, part, setting, spare):
        self.given[part.name] = part.seconds + spare
        self.now += next(self.taken)
        return Outcome(part.name)


# 10 of its own, 7.5 left by the first, 3.5 by the first two; and the 20 of those that were not asked for.
@pytest.mark.parametrize(("asked", "seconds"), [("abc", [10, 17.5, 13.5]), ("b", [30])])
def test_a_part_may_use_what_other_parts_left(asked, seconds, monkeypatch):
    clock = Clock(monkeypatch, 2.5, 14.0, 1.0)
    chosen = [Part(name, "?", "", 10) for name in asked]
    assert [outcome.summary for _, outcome in schedule.outcomes(chosen, SETTING, 30, lambda: 1)] == [*asked]
    assert [clock.given[name] for name in asked] == seconds


def test_a_part_that_took_too_long_leaves_the_others_their_own_seconds(monkeypatch):
    clock = Clock(monkeypatch, 25.0, 1.0)
    list(schedule.outcomes([Part(name, "?", "", 10) for name in "ab"], SETTING, 20, lambda: 1))
    assert clock.given == {"a": 10, "b": 10}


def test_a_part_beside_others_may_use_the_seconds_that_they_need_together(monkeypatch):
    clock = Clock(monkeypatch, 0, 0, 0, 0)
    chosen = [*(Part(name, "?", "", 10, True) for name in "abc"), Part("d", "?", "", 10)]
    list(schedule.outcomes(chosen, SETTING, 40, lambda: 2))
    # Two of ten seconds beside each other need ten, and the last one ten of its own.
    assert sorted(clock.given.values()) == [20, 25, 30, 40] and clock.given["d"] == 40


def test_what_measures_runs_alone(monkeypatch):
    meeting, running, most = threading.Barrier(3, timeout=20), set(), []

    def run(part, setting, spare):
        running.add(part.name)
        if part.beside:
            # Breaks, with an error, unless all three come here.
            meeting.wait()
        most.append((part.name, len(running)))
        time.sleep(0.05)
        running.remove(part.name)
        return Outcome()

    monkeypatch.setattr(schedule, "run_part", run)
    chosen = [Part(name, "?", "", 1, name in "bcd") for name in "abcdef"]
    ended = [part.name for part, _ in schedule.outcomes(chosen, SETTING, 60, lambda: 3)]
    assert ended[0] == "a" and sorted(ended[1:4]) == [*"bcd"] and ended[4:] == ["e", "f"]
    assert [n for name, n in most if name in "aef"] == [1, 1, 1]


def test_an_interrupt_ends_what_runs(tmp_path, monkeypatch):
    def run(part, setting, spare):
        code = f"import pathlib, time; pathlib.Path({str(tmp_path / part.name)!r}).touch(); time.sleep(600)"
        parts.run_limited([sys.executable, "-c", code], 600)
        return Outcome()

    def interrupted(running, *how):
        while not all((tmp_path / name).exists() for name in "ab"):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(parts, "_over", threading.Event())
    monkeypatch.setattr(schedule, "run_part", run)
    monkeypatch.setattr(schedule, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(schedule.outcomes([Part(name, "?", "", 1, True) for name in "abc"], SETTING, 60, lambda: 2))
    for process in [*parts._running]:
        process.wait(timeout=5)
    assert not (tmp_path / "c").exists()


def test_an_interrupt_before_they_start_anything_lets_them_start_nothing(monkeypatch):
    may_start = threading.Event()
    monkeypatch.setattr(parts, "_over", threading.Event())
    started: list[object] = []

    def run(part, setting, spare):
        may_start.wait(timeout=20)
        try:
            parts.run_limited([sys.executable, "-c", ""], 5)
            started.append(part)
        except InterruptedError:
            started.append(None)
        return Outcome()

    def interrupted(running, *how):
        raise KeyboardInterrupt

    monkeypatch.setattr(schedule, "run_part", run)
    monkeypatch.setattr(schedule, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(schedule.outcomes([Part(name, "?", "", 1, True) for name in "ab"], SETTING, 60, lambda: 2))
    may_start.set()
    while len(started) < 2:
        time.sleep(0.01)
    assert started == [None, None]


# Processes that a shell runs in the background, and what they start, ignore interrupts.
HANGING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from bench.gpu import __main__ as command
from bench.gpu.part import Part
command.PARTS = Part("hangs", "?", "tests.host.cuda.test_bench_gpu:hangs", 60),
sys.argv = ["bench.gpu", "--cpu-rehearsal", "--out", sys.argv[1]]
command.main()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="what a process has started is read from /proc, as on Linux")
def test_an_interrupted_command_leaves_no_process(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HANGING, str(tmp_path)], cwd=parts.ROOT, stderr=subprocess.PIPE,
                               text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    children = Path(f"/proc/{process.pid}/task")

    def started():
        return [int(pid) for task in children.glob("*/children") for pid in task.read_text().split()]

    while not (found := started()):
        time.sleep(0.05)
    process.send_signal(2)
    try:
        assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in found)


@pytest.mark.parametrize(("cores", "memory", "expected"), [
    (16, 80 << 30, 8), (64, 80 << 30, 10), (64, 141 << 30, 12), (4, 80 << 30, 2), (1, 80 << 30, 1), (16, 6 << 30, 1),
    (16, None, 8)])
def test_as_many_run_beside_each_other_as_have_cores_and_memory(cores, memory, expected, monkeypatch):
    monkeypatch.setattr(command.os, "cpu_count", lambda: cores)
    assert command.at_once(memory) == expected


def test_every_part_that_checks_comes_before_those_that_measure():
    assert [part.beside for part in command.PARTS] == [False] * 2 + [True] * 13 + [False] * 11
