"""What a part of bench.gpu has started ends with it, when it is out of time or the command is interrupted."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.gpu.part import Part, Setting, run_limited, run_part


def test_what_a_part_starts_ends_with_it():
    code, output = run_limited([sys.executable, "-c", "import subprocess, sys; print('begun', flush=True); "
                                "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"], 2)
    assert code is None
    assert output == "begun\n"


def starts_another(setting):
    run_limited([sys.executable, "-c", "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)",
                 str(setting.folder / "started")], 600)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="what a process has started is read from /proc, as on Linux")
@pytest.mark.parametrize("error", [subprocess.TimeoutExpired, KeyboardInterrupt])
def test_what_a_parts_own_children_started_ends_with_it(error, tmp_path, monkeypatch):
    """Else a process that was to be limited by the part would hold the device while the next parts run."""
    communicate = subprocess.Popen.communicate

    def interrupted(process, *args, timeout=None):
        while timeout and not ((tmp_path / "started").exists() and (tmp_path / "started").read_text()):
            time.sleep(0.05)
        if timeout:
            raise error("planted", timeout) if error is subprocess.TimeoutExpired else error
        return communicate(process, *args)

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    part = Part("planted", "?", "tests.host.test_bench_gpu_stopped:starts_another", 60)
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
    from tests.host import cuda_rows

    monkeypatch.setattr(cuda_rows, "noted", lambda: SimpleNamespace(wanted={"scan": {"a", "b"}}))
    monkeypatch.setattr(facts, "python", lambda module, path, first, step, until: [
        sys.executable, "-c", f"import json, time; print(json.dumps({{'compiled': 1, 'failed': [], 'seconds': {until} - "
                              "time.time()}), 'at exit', sep='\\n')"])
    outcome = facts.compile_all(Setting("cuda", False, tmp_path, 60))
    assert outcome.problems == [] and outcome.summary.startswith(f"{outcome.figures['processes']} of 2 instances")
    assert 0 < outcome.figures["seconds"] / outcome.figures["processes"] < 60
