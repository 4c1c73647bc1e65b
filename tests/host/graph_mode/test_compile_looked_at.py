"""A compiled function's programs are looked at while another thread traces one."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

import gradcore


@pytest.mark.parametrize("look", ["programs", "plans", "explain", "draw"])
def test_a_program_may_be_traced_while_the_others_are_looked_at(look: str) -> None:
    compiled = gradcore.compile(lambda x: x + 1)
    for n in (1, 2):
        compiled(gradcore.ones(n))
    sizes = iter(range(3, 20))

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        # Before the list of programs is made and, where Python calls a function for that, while it is.
        calls = {f.f_code.co_name for f in (frame, frame.f_back) if f is not None}
        if event == "call" and "_cached" in calls:
            sys.settrace(None)
            compiled(gradcore.ones(next(sizes)))
            sys.settrace(trace)
        return None

    sys.settrace(trace)
    try:
        found = getattr(compiled, look)
        found = found() if callable(found) else found
    finally:
        sys.settrace(None)
    assert found
    assert len(compiled.programs) > 2
