"""Functions made of pieces that read parts of a batch: a compiled one gives what the function gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore

#: Pieces of functions, to be put together in all ways.
STARTS: tuple[str, ...] = ("x, y, i = b", "x = b[0]; y = b[1]", "x, y, _ = b", "x, *y = b; y, i = y", "(x, y), i = b[:2], 5",
                           "x, _, _ = b; _, y, i = b", "x, y, i = b if c else b", "i = b[2]; x, y, _ = b",
                           "_, y, i = x, *r = b", "x, y, i = b; b = (x, y, 7)", "i, x, y = b[-1], b[-3], b[-2]",
                           "x, y, k = b; i = 3; c = k")
ENDS = ("x * y", "x * i", "x * b[2]", "x * len(b)", "[x * y, i][0]", "(lambda: x * y)()", "(lambda: x * i)()", "x * c")


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("end", ENDS)
def test_functions_made_of_pieces(start: str, end: str) -> None:
    scope: dict[str, Callable[..., Any]] = {}
    exec(f"def f(b, c=1):\n    {start}\n    return {end}", scope)
    f, compiled = scope["f"], gradcore.compile(scope["f"], max_programs=20)
    for i in (2, 3, 2, 4):
        batch = gradcore.ones(2), gradcore.full((2,), 3.0), i
        try:
            eager = f(batch).tolist()
        except (UnboundLocalError, TypeError, NameError) as error:
            with pytest.raises(type(error)):
                compiled(batch)
        else:
            assert compiled(batch).tolist() == eager
