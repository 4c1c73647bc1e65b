"""An interrupt of the command ``gradcore`` while its modules are imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: As an installer writes it.
SCRIPT = "import sys\nfrom gradcore.cli.main import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


def run(tmp_path: Path, raised: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a module that raises in place of one that gradcore imports."""
    stand_in = tmp_path / "first" / "numpy.py"
    stand_in.parent.mkdir()
    stand_in.write_text(f"raise {raised}\n")
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join((str(stand_in.parent), str(ROOT)))})


@pytest.mark.parametrize("name", ["-m gradcore", "-mgradcore", "-m gradcore.cli.main", "gradcore"])
def test_an_interrupt_of_the_imports_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "gradcore").write_text(SCRIPT)
    words = name.split() if name.startswith("-") else [str(tmp_path / name)]
    done = run(tmp_path, "KeyboardInterrupt", *words, "train")
    assert done.returncode and done.stderr == "gradcore: interrupted\n" and not done.stdout


@pytest.mark.parametrize(("raised", "argv"), [
    ("ImportError('planted')", ["-m", "gradcore"]), ("KeyboardInterrupt", ["-c", "import gradcore", "-m", "gradcore"]),
    ("KeyboardInterrupt", ["{}/mine.py"])])
def test_other_errors_and_programs_keep_their_tracebacks(tmp_path: Path, raised: str, argv: list[str]) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = run(tmp_path, raised, *(word.format(tmp_path) for word in argv))
    assert done.returncode and "Traceback" in done.stderr and "gradcore: interrupted" not in done.stderr
