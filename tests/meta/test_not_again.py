"""Tests that a run of pytest has passed are left out of the next one by --passed-to and --not-again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import os
import pytest

@pytest.mark.parametrize("k", ["a b", "ü"])
def test_passes(k): pass

@pytest.mark.extras
def test_does_more(): pass

def test_skips():
    if not os.environ.get("EXTRA"): pytest.skip("no extra")

def test_fails():
    if os.environ.get("FAILS"): pytest.fail("as asked", pytrace=False)
"""


def ran(folder: Path, *argv: str, **environment: str) -> list[str]:
    """The names of the tests that a run of pytest reports."""
    plugins = ("-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:randomly")
    done = subprocess.run([sys.executable, "-m", "pytest", *plugins, "-v", *argv, "."], cwd=folder, timeout=120,
                          capture_output=True, text=True, encoding="utf-8",
                          env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **environment})
    assert done.returncode == ("FAILS" in environment) and not done.stderr, done.stdout + done.stderr
    lines = [line.removeprefix("test_it.py::") for line in done.stdout.splitlines() if line.startswith("test_it.py::")]
    return [re.split(r" +[([]", line)[0] for line in lines]


def test_what_has_passed_is_left_out_but_what_does_more_with_extras(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = extras\n")
    assert len(ran(tmp_path, "--passed-to", "failed.txt", FAILS="1")) == 5
    # A run that failed vouches for nothing.
    assert not (tmp_path / "failed.txt").exists()
    assert len(ran(tmp_path, "--passed-to", "passed.txt")) == 5
    assert [name.split("[")[0] for name in (tmp_path / "passed.txt").read_text(encoding="utf-8").splitlines()] == [
        f"test_it.py::test_{name}" for name in ("passes", "passes", "does_more", "fails")]
    assert ran(tmp_path, "--not-again", "passed.txt", EXTRA="1") == ["test_does_more PASSED", "test_skips PASSED"]
