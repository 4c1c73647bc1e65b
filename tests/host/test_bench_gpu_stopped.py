"""What a part of bench.gpu has started ends with it, when it is out of time or the command is interrupted."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

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
