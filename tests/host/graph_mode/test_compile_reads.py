"""What a refused read on the host is said to be made by."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.errors import TraceError
from gradcore.program.tracing.trace_log import _asked


def stepped(x: Any, name: str, **options: Any) -> None:
    w = nn.Parameter(gradcore.ones(3))
    optimizer = getattr(gradcore.optim, name)([w], **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (w * x).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def test_a_read_that_no_named_function_makes_is_put_in_words() -> None:
    # As if the library read in code that has only names which pass a call on.
    scope = {"__name__": "gradcore", "asked": _asked}
    exec(compile("def call():\n    return (lambda: asked())()", _asked.__code__.co_filename, "exec"), scope)
    assert scope["call"]() == "what it calls there"  # type: ignore[operator]


@pytest.mark.parametrize("options", [{}, {"line_search_fn": "strong_wolfe"}], ids=["plain", "line search"])
def test_a_read_in_an_optimizer_is_its_steps(options: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=r"reads a value of a tensor on the host, by LBFGS\.step\(\)"):
        gradcore.compile(lambda x: stepped(x, "LBFGS", **options))(gradcore.ones(3))
