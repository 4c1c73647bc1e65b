"""docs/memory.md: every example prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from gradcore import _step

PAGE = Path(__file__).resolve().parents[2] / "docs" / "memory.md"
EXAMPLES = re.findall(r"^## (.*?)\n.*?```python\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_an_example_prints_what_it_says(title: str, code: str) -> None:
    expected = re.findall(r"^#> (.*)$", code, re.MULTILINE)
    assert expected
    # As in a process of its own: growth is told from the steps before.
    _step._ends.clear()
    out = io.StringIO()
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(out):
        exec(compile(code, "memory.md", "exec"), names)
    names.clear()
    found = [re.sub(r"#\d+ ", "# ", line) for line in out.getvalue().splitlines()]
    assert found == [re.sub(r"#\d+ ", "# ", line) for line in expected]
