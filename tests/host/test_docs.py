"""docs: every example prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from gradcore import _step

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = [(page, title, code) for page in ("memory.md", "report.md") for title, code in re.findall(
    r"^## (.*?)\n.*?```python\n(.*?)```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)]


@pytest.mark.parametrize(("page", "title", "code"), EXAMPLES, ids=[title for _, title, _ in EXAMPLES])
def test_an_example_prints_what_it_says(page: str, title: str, code: str, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = re.findall(r"^#> (.*)$", code, re.MULTILINE)
    assert expected
    # As in a process of its own: growth is told from the steps before.
    _step._ends.clear()
    out = io.StringIO()
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(out):
        exec(compile(code, page, "exec"), names)
    names.clear()
    found = [re.sub(r"#\d+ ", "# ", line) for line in out.getvalue().splitlines()]
    assert found == [re.sub(r"#\d+ ", "# ", line) for line in expected]
