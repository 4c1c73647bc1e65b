"""``gradcore.compiler``: what functions may ask of :func:`gradcore.compile`, by PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradcore.program.tracing.recorder import busy

__all__ = ["allow_in_graph", "assume_constant_result", "cudagraph_mark_step_begin", "disable", "is_compiling",
           "is_dynamo_compiling", "is_exporting"]


def allow_in_graph(fn: Any) -> Any:
    """The function itself, or the list of them: every function may be traced."""
    return fn


def assume_constant_result(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself: what it reads is guarded as elsewhere, so that its result is not assumed to be constant."""
    return fn


def disable(fn: Callable[..., Any] | None = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """The function itself, or with None a decorator that returns it.

    Nothing has to be kept out of a program: a function that does what a replay would not do is not replayed.
    """
    return (lambda function: function) if fn is None else fn


def is_compiling() -> bool:
    """Whether the caller runs to be traced. A replay does not ask."""
    return busy.depth > 0


is_dynamo_compiling = is_compiling


def is_exporting() -> bool:
    """Whether the caller runs to be written to a file: no, as :mod:`gradcore.onnx` reads a recorded graph."""
    return False


def cudagraph_mark_step_begin() -> None:
    """Do nothing: a result of a compiled function is never overwritten by a later call."""
