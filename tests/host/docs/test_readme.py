"""The README's example runs, and prints what the README shows, except for times."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradcore.ops import all_ops
from tests.families import families, table
from tests.forms import all_forms

README = Path(__file__).parents[3] / "README.md"
TABLE = re.compile(r"(<!-- coverage: .*? -->\n)(.*?)(<!-- end of coverage -->)", re.DOTALL)
BLOCK = re.compile(r"(<!-- report: .*? -->\n```text\n)(.*?)(```)", re.DOTALL)


def without_times(text):
    text = re.sub(r"after [\d.]+ ms", "after T ms", text)
    return re.sub(r"[\d.]+% of the step's [\d.]+ ms", "T of the step", text)


def printed(tmp_path):
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code is not None
    assert len(code[1].strip().splitlines()) <= 20
    (tmp_path / "train.py").write_text(code[1])
    result = subprocess.run([sys.executable, "-W", "error", "train.py"], cwd=tmp_path, capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": str(README.parent)})
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_readme_shows_what_its_example_prints(tmp_path):
    output = printed(tmp_path)
    shown = BLOCK.search(README.read_text())
    assert shown is not None
    if os.environ.get("GRADCORE_WRITE_README") == "1" and without_times(shown[2]) != without_times(output):
        README.write_text(BLOCK.sub(lambda m: m[1] + output + m[3], README.read_text()))
        shown = BLOCK.search(README.read_text())
    assert without_times(shown[2]) == without_times(output)


@pytest.mark.extras
def test_the_table_of_what_is_covered_is_counted():
    found = families()
    assert sum(f.ops for f in found) == len(all_ops()) and sum(f.forms for f in found) == len(all_forms())
    counted = table()
    if os.environ.get("GRADCORE_WRITE_README") == "1":
        assert "? of" not in counted, "the table counts CUDA kernels, which needs CuPy: pip install -e '.[nodriver]'"
        README.write_text(TABLE.sub(lambda m: m[1] + counted + m[3], README.read_text()))
    shown = TABLE.search(README.read_text())
    assert shown is not None
    written = shown[2]
    if "? of" in counted:
        # The set of kernels is not known without CuPy.
        written = re.sub(r"\d+ of (\d+) \|$", r"? of \1 |", written, flags=re.MULTILINE)
    assert written == counted, "GRADCORE_WRITE_README=1 pytest tests/host/docs/test_readme.py regenerates it"


def test_the_step_in_graph_mode_is_traced_and_then_replayed():
    example, compiled = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(compiled.strip().splitlines()) <= 7
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(example, "train.py", "exec"), names)
    exec(compile(compiled, "README.md", "exec"), names)
    train = names["train"]
    losses = [train(names["x"], names["y"]).item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True) and len(train.programs) == len(train.traces) == 1
    del train
    names.clear()


def test_the_readme_says_of_the_example_in_questions_what_that_prints():
    said = re.search(r"(\d\.\d\d) GB for a peak of (\d\.\d\d)", README.read_text())
    shown = re.search(r"#> (\d\.\d\d) GB allocated, (\d\.\d\d) reserved", (README.parent / "docs" / "questions.md").read_text())
    assert said is not None and shown is not None and said.groups() == shown.groups()[::-1]


def test_the_readme_opens_with_two_commands():
    commands = re.findall(r"```console\n\$ (.*?)\n```", README.read_text())
    assert commands == ["pip install -e . && gradcore train", "pip install -e '.[test]' && pytest"]
