"""An interrupt of the command ``gradcore``: while its modules are imported, in a finalizer, and in a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradcore.cli import train
from gradcore.cli.main import main
from gradcore.cli.steps import train_step

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


#: A model whose training drops an object with a finalizer that an interrupt comes in, and then waits to be interrupted.
FINALIZED = """
import signal
import time

# A process in the background of a script ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Dropped:
    def __del__(self):
        raise {raised}

def build(batch_size):
    Dropped()
    for _ in range(600):
        time.sleep(0.01)
    raise ValueError("not interrupted")
"""


@pytest.mark.parametrize(("raised", "texts"), [
    ("KeyboardInterrupt", ["gradcore: interrupted"]), ("OSError('planted')", ["Traceback", "planted", "not interrupted"])])
def test_an_interrupt_of_a_finalizer_is_not_lost(tmp_path: Path, raised: str, texts: list[str]) -> None:
    model = tmp_path / "mine.py"
    model.write_text(FINALIZED.format(raised=raised))
    done = subprocess.run([sys.executable, "-m", "gradcore", "measure", str(model), "--device", "meta"], capture_output=True,
                          text=True, timeout=120, cwd=ROOT)
    assert done.returncode == (130 if len(texts) == 1 else 1)
    assert all(text in done.stderr for text in texts)
    assert len(texts) > 1 or done.stderr == "gradcore: interrupted\n"


@pytest.mark.parametrize(("number", "kind", "said"), [
    (3, KeyboardInterrupt, "interrupted"), (3, ValueError, "planted"), (1, KeyboardInterrupt, "interrupted")])
def test_a_run_that_is_cut_short_says_where_its_steps_are(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int,
        kind: type[BaseException], said: str) -> None:
    calls = iter(range(1, 9))

    def step(*given: Any) -> Any:
        if next(calls) == number:
            raise kind("planted")
        return train_step(*given)

    monkeypatch.setattr(train, "train_step", step)
    status = main(["train", "--steps", "5", "--quiet", "--device", "cpu", "--out", str(tmp_path)])
    assert status == (130 if said == "interrupted" else 1)
    there = [f"; the run so far is in {path}" for path in tmp_path.iterdir()]
    assert len(there) == (number > 1) and capsys.readouterr().err == f"gradcore: {said}{''.join(there)}\n"
