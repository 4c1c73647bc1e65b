"""What a part of bench.gpu has started ends with it, when it is out of time or the command is interrupted."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.gpu import __main__, correct, part
from bench.gpu.part import Part, Setting, run_limited, run_part


def test_what_a_part_starts_ends_with_it():
    code, output = run_limited([sys.executable, "-c", "import subprocess, sys; print('begun', flush=True); "
                                "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"], 2)
    assert code is None
    assert output == "begun\n"


@pytest.mark.parametrize("home", ["folder", "file"])
def test_machine_code_has_a_folder(home, tmp_path, monkeypatch):
    if home == "file":
        (tmp_path / home).write_text("in which even root can make no folder")
    monkeypatch.setenv("HOME", str(tmp_path / home))
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    monkeypatch.setattr(__main__.tempfile, "tempdir", str(tmp_path))
    __main__.place_for_code()
    # It is the environment of all parts.
    assert ("CUPY_CACHE_DIR" in os.environ) == (home == "file")
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)


def test_a_process_that_the_driver_does_not_let_go_of_holds_nothing_up(monkeypatch):
    """As one that waits in the kernel for a device that does not answer: it is killed and does not end."""
    killed = []
    monkeypatch.setattr(part, "_end", killed.append)
    code, output = run_limited([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(99)"], 1, ending=0.5)
    assert (code, output) == (None, "begun\n\nIt was killed, and has not ended.\n")
    lasting = part._lasting.pop()
    assert killed and lasting.poll() is None
    lasting.kill()
    lasting.wait()


PLANTED = """
import os, sys, time, types

class Refused(Exception):
    status = 700

def refuse():
    raise Refused

def test_a():
    pass

def test_that_crashes():
    os._exit(9)

def test_b():
    pass

def test_that_hangs():
    time.sleep(600)

def test_c():
    assert "cupy.cuda.runtime" not in sys.modules

def test_whose_kernel_faults():
    sys.modules["cupy.cuda.runtime"] = types.SimpleNamespace(CUDARuntimeError=Refused, deviceSynchronize=refuse)
    assert 0

def test_d():
    assert "cupy.cuda.runtime" not in sys.modules

def test_that_fails():
    assert 0

def test_e():
    pass
"""


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.skipif(
    importlib.util.find_spec("xdist") is None, reason="pytest-xdist is not installed"))])
def test_a_test_that_takes_its_process_with_it_costs_no_other_test(workers, tmp_path, monkeypatch):
    (tmp_path / "test_planted.py").write_text(PLANTED)
    monkeypatch.setattr(correct, "_MANY_KERNELS", (str(tmp_path / "test_planted.py"),))
    monkeypatch.setattr(correct, "_TEST_SECONDS", 4)
    monkeypatch.setattr(correct.os, "cpu_count", lambda: workers)
    if not workers:
        monkeypatch.setattr(correct, "find_spec", lambda name: None)
    outcome = correct.forms(Setting("cpu", False, tmp_path, 90))
    assert outcome.figures["passed"] == 5, outcome
    wrong = [name for name in ("crashes", "hangs", "kernel_faults", "fails")
             if not any(name in problem.partition(": ")[0] for problem in outcome.problems)]
    assert not wrong, outcome.problems
    assert not any("pytest ended" in problem for problem in outcome.problems), outcome.problems
    assert not workers or "test_that_hangs" in str(outcome.problems)


def starts_another(setting):
    run_limited([sys.executable, "-c", "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)",
                 str(setting.folder / "started")], 600)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="what a process has started is read from /proc, as on Linux")
@pytest.mark.parametrize("error", [subprocess.TimeoutExpired, KeyboardInterrupt])
def test_what_a_parts_own_children_started_ends_with_it(error, tmp_path, monkeypatch):
    """Else a process that was to be limited by the part would hold the device while the next parts run."""
    communicate, waits = subprocess.Popen.communicate, []

    def interrupted(process, *args, timeout=None):
        waits.append(timeout)
        while not ((tmp_path / "started").exists() and (tmp_path / "started").read_text()):
            time.sleep(0.05)
        if len(waits) == 1:
            raise error("planted", timeout) if error is subprocess.TimeoutExpired else error
        return communicate(process, *args, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    part = Part("planted", "?", "tests.host.cuda.test_bench_gpu_stopped:starts_another", 60)
    setting = Setting("cpu", False, tmp_path)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            run_part(part, setting)
    else:
        assert run_part(part, setting).status == "failed"
    stat = Path("/proc", (tmp_path / "started").read_text(), "stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.05)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed: pip install -e '.[nodriver]'")
def test_compilers_end_in_time_however_long_they_take_to_start(tmp_path, monkeypatch):
    """Each reads a clock that began before it was started, and its result is found among what it prints."""
    from bench.gpu import facts
    from tests.host.cuda import cuda_rows

    monkeypatch.setattr(cuda_rows, "noted", lambda: SimpleNamespace(wanted={"scan": {"a", "b"}}))
    monkeypatch.setattr(facts, "python", lambda module, path, first, step, until: [
        sys.executable, "-c", f"import json, time; print(json.dumps({{'compiled': 1, 'failed': [], 'seconds': {until} - "
                              "time.time()}), 'at exit', sep='\\n')"])
    outcome = facts.compile_all(Setting("cuda", False, tmp_path, 60))
    assert outcome.problems == [] and outcome.summary.startswith(f"{outcome.figures['processes']} of 2 instances")
    assert 0 < outcome.figures["seconds"] / outcome.figures["processes"] < 60


def test_a_crash_among_the_calls_costs_one_call(tmp_path, monkeypatch):
    """A process that dies in a call is restarted with the next call."""

    def run(command, seconds, environment=None):
        path, start = Path(command[command.index("bench.gpu.rows") + 2]), int(command[command.index("bench.gpu.rows") + 3])
        with path.open("a") as log:
            for k in range(start, 5):
                print(json.dumps({"call": k, "name": f"op-{k}"}), file=log)
                if k == 2:
                    log.write('{"call": 2, "na')
                    return 139, "segmentation fault"
                print(json.dumps({"call": k, "name": f"op-{k}", "error": "wrong" if k == 3 else None}), file=log)
        return 0, ""

    monkeypatch.setattr(correct, "run_limited", run)
    monkeypatch.setattr(correct, "find_spec", lambda name: name)
    outcome = correct.kernels(Setting("cpu", True, tmp_path, 60))
    assert outcome.figures == {"calls": 4, "wrong": 1, "crashes": 1, "ops": ["op"]}
    assert outcome.problems == ["op-2: the process ended with code 139: segmentation fault", "op-3: wrong"]
