"""docs: every example and every command prints what it says."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

from gradcore import _step

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = ("memory.md", "report.md", "questions.md", "sizing.md", "cuda.md", "shipping.md", "graph-mode.md", "graph-plans.md",
         "graph-questions.md")
EXAMPLES = [(page, section.splitlines()[0], code) for page in PAGES
            for section in re.split(r"^## ", (DOCS / page).read_text(), flags=re.MULTILINE)
            for code in re.findall(r"^```python\n(?!# \w+\.py\n)(.*?)^```", section, re.MULTILINE | re.DOTALL)]
#: A file that a section's commands read, and its code.
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUESTIONS = [section for page in ("questions.md", "sizing.md")
             for section in re.split(r"^## ", (DOCS / page).read_text(), flags=re.MULTILINE)[1:]]


@pytest.fixture(autouse=True, scope="module")
def no_pinned_memory_of_others() -> None:
    """Cycles that the tests before have left may hold some, which examples would count. To collect all takes half a second."""
    gc.unfreeze()
    gc.collect()


@pytest.mark.parametrize(("page", "title", "code"), EXAMPLES, ids=[title for _, title, _ in EXAMPLES])
def test_an_example_prints_what_it_says(page: str, title: str, code: str, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    if "gradcore.onnx" in code and importlib.util.find_spec("onnx") is None:
        pytest.skip("onnx is not installed: pip install -e '.[onnx]'")
    monkeypatch.chdir(tmp_path)
    expected = re.findall(r"^#> (.*)$", code, re.MULTILINE)
    assert expected
    # As in a separate process: growth is computed from earlier steps.
    _step._ends.clear()
    out = io.StringIO()
    # Its names are those of a script's own module.
    monkeypatch.setitem(sys.modules, "__main__", script := types.ModuleType("__main__"))
    names = vars(script)
    with contextlib.redirect_stdout(out):
        exec(compile(code, page, "exec"), names)
    names.clear()
    found = [re.sub(r"#\d+ ", "# ", line) for line in out.getvalue().splitlines()]
    assert found == [re.sub(r"#\d+ ", "# ", line) for line in expected]


def test_the_log_of_an_expression(tmp_path: Path) -> None:
    # In a process of its own, since numbers and offsets of buffers depend on what was there before.
    code, = re.findall(r"^```python\n(.*?)^```", (DOCS / "architecture.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "architecture.md").write_text(code)
    assert _printed("python architecture.md", tmp_path).splitlines() == re.findall(r"^#> (.*)$", code, re.MULTILINE)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))],
                         ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), target
        titles = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE) if heading else []
        assert not heading or heading in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], heading


def test_how_to_contribute_is_read_in_a_minute() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) < 50


def test_a_long_page_begins_with_a_list_of_its_sections() -> None:
    for page in sorted(DOCS.glob("*.md")):
        opening, *sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
        if len(sections) < 8:
            continue
        listed = [" ".join(title.split()) for title in re.findall(r"\[([^]]+)\]\(#", opening)]
        assert listed == [section.splitlines()[0] for section in sections], page.name


@pytest.mark.parametrize("section", [s for s in QUESTIONS if "```console" in s], ids=lambda s: s.splitlines()[0])
def test_a_command_prints_what_it_says(section: str, tmp_path: Path) -> None:
    blocks = "".join(re.findall(r"^```console\n(.*?)```", section, re.MULTILINE | re.DOTALL))
    commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", blocks, re.MULTILINE)
    assert commands
    for name, code in FILE.findall(section):
        (tmp_path / name).write_text(code)
    for command, expected in commands:
        pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line.rstrip()) + "\n" for line in expected.splitlines())
        # Tables have spaces at the ends of lines.
        printed = re.sub(r" +$", "", _printed(command, tmp_path), flags=re.MULTILINE)
        assert re.fullmatch(pattern, printed), f"{command} printed\n{printed}"


def _printed(command: str, folder: Path) -> str:
    """The output of a command in a separate process, with our paths relative to the repository."""
    program, *argv = shlex.split(command)
    argv = {"gradcore": ["-m", "gradcore.cli.main"], "python": []}[program] + argv
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Timelines and tables fit it.
    environment.pop("COLUMNS", None)
    done = subprocess.run([sys.executable, *argv], env=environment, cwd=folder, capture_output=True, text=True)
    return done.stdout.replace(f"{ROOT}/", "") + (f"[exit status {done.returncode}]\n" if done.returncode else "")
